"""Acts on runs: stop and share; and says whether a run may be retried or resumed. Submitting again is the command line's to call."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tuneplane.contract.layout import RunPaths
from tuneplane.record.events import EventWriter
from tuneplane.record.files import read_json, write_json_new

from hpc.errors import Refusal
from hpc.runs.records import Facts, Submission
from hpc.runs.state import RunState
from hpc.slurm.commands import Slurm
from hpc.slurm.verdicts import classify, refusal
from hpc.store.owners import start_ticks

SHARED: Final = "shared.json"
_PRIVATE: Final = frozenset({"env.json"})
"""Files that stay the owner's alone: a job's environment may hold what it was told in confidence."""


@dataclass(frozen=True)
class Actor:
    """Who acts, and when: Unix name and real uid; `now` gives UTC text."""

    name: str
    uid: int
    now: Callable[[], str]


def require_owner(run: RunPaths, actor: Actor) -> None:
    """Raises Refusal E-RUNS-014 unless the run is the actor's: by its place and by the folder's uid."""
    if run.owner != actor.name or os.lstat(run.root).st_uid != actor.uid:
        raise Refusal(
            "E-RUNS-014", f"{run.run_id} is {run.owner}'s", field=run.run_id, found=actor.name, allowed=run.owner
        )


def record(run: RunPaths, actor: Actor, action: str, stage: str, status: str, message: str) -> None:
    """An event of a login-node action, in a chain of its own. Raises OSError."""
    number = 0
    while True:
        writer = f"job-{action}-{number}"
        try:
            # Made exclusively, so that two commands at once never share a writer.
            os.close(
                os.open(run.events / f"{writer}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            )
            break
        except FileExistsError:
            number += 1
    EventWriter(run.events, writer, run_id=run.run_id, now=actor.now).append(stage, status, message, by=actor.name)


def stop(run: RunPaths, facts: Facts, state: RunState, actor: Actor, slurm: Callable[[], Slurm]) -> str:
    """Ask for the end: a mark that the job itself honours, then scancel or a signal. What was done, in words.

    The mark is written first, so that a job that is being requeued at this moment does not come back. Does not wait for the end.
    Raises Refusal E-RUNS-014, E-RUNS-010 (ended), E-RUNS-016 (a process on another machine), E-SLURM-* with exit 75 when Slurm does not answer.
    """
    require_owner(run, actor)
    submission = facts.last_submission
    if submission is None or (state.final and state.cls != "unknown") or state.cls == "vanished":
        raise Refusal(
            "E-RUNS-010", f"{run.run_id} has ended: {state.end_class or state.cls}", field=run.run_id, found=state.cls
        )
    fresh = False
    for place in (run.root, *(run.element(n).root for n, _ in facts.elements)):
        try:
            write_json_new(place / "stop_requested", {"at": actor.now(), "by": actor.name})
            fresh = True
        except FileExistsError:
            pass  # asked before; asking Slurm again does no harm
    if fresh:
        record(run, actor, "stop", "stopping", "running", "stop requested")
    if submission.kind == "local":
        return _stop_local(run, submission)
    parts = facts.submissions if submission.tasks is not None else (submission,)
    return "; ".join(_stop_slurm(part, actor, slurm()) for part in parts)


def _stop_slurm(submission: Submission, actor: Actor, slurm: Slurm) -> str:
    # The name holds the run id: with it scancel can never hit another job that has this id now.
    args = [f"--user={actor.name}", f"--name={submission.job_name}", submission.job_id]
    if slurm.cluster:
        args.insert(0, f"--clusters={slurm.cluster}")
    done = slurm.run("scancel", args)
    if classify(done) != "ok":
        failed = refusal(done, f"cancel job {submission.job_id}")
        if failed.code != "E-SLURM-020":
            raise failed
    return f"job {submission.job_id} is cancelled"


def _stop_local(run: RunPaths, submission: Submission) -> str:
    pid = submission.pid
    if pid is None or start_ticks(pid) != submission.pid_start:
        raise Refusal(
            "E-RUNS-016", f"process {pid} of {run.run_id} is not on this machine", field=run.run_id, found=pid
        )
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return f"process {pid} had just ended"
    return f"process {pid} was asked to end"


def require_ended(run: RunPaths, state: RunState, actor: Actor) -> None:
    """Raises Refusal E-RUNS-014, E-RUNS-011 (queued or running), E-RUNS-012 (done), E-RUNS-015 (nobody knows)."""
    require_owner(run, actor)
    if state.active:
        raise Refusal(
            "E-RUNS-011",
            f"{run.run_id} is {state.cls}",
            field=run.run_id,
            found=state.cls,
            allowed="a run that has ended",
        )
    if state.cls == "done" and state.element is None:  # of an array, what is left to do is found when it is submitted
        raise Refusal(
            "E-RUNS-012", f"{run.run_id} is done", field=run.run_id, found="done", allowed="a run that did not end well"
        )
    if state.cls == "unknown" and not state.final and state.job_id:
        raise Refusal("E-RUNS-015", f"{run.run_id}: {state.message}", field=run.run_id, found="unknown")


def newest_checkpoint(run: RunPaths) -> int:
    """The step of the newest complete checkpoint. Raises Refusal E-RUNS-013."""
    try:
        pointer = read_json(run.checkpoints / "latest.json")
        step, path = int(pointer["step"]), run.checkpoints / str(pointer["path"]) / "manifest.json"
        there = path.is_file()
    except (OSError, ValueError, KeyError, TypeError):
        there, step = False, -1
    if not there:
        raise Refusal("E-RUNS-013", f"{run.run_id} has no complete checkpoint", field=run.run_id)
    return step


def share(run: RunPaths, actor: Actor, *, undo: bool = False) -> int:
    """Open one run for reading to everybody who reaches the storage root, or close it again; how many files and folders that touched.

    The folders above it become passable, not listable; runs beside it that were not shared are closed to others first. A job's environment stays
    private. Raises Refusal E-RUNS-014.
    """
    require_owner(run, actor)
    mark = run.root / SHARED
    if undo:
        if mark.exists():
            os.unlink(mark)
        return _set(run.root, 0o750)
    for exp in _real_folders(run.root.parent.parent):
        for other in _real_folders(exp):
            if other != run.root and not (other / SHARED).exists():
                _set(other, 0o750)
        _set(exp, 0o751)
    if not mark.exists():
        write_json_new(mark, {"at": actor.now(), "by": actor.name})
    touched = _open(run.root)
    _set(run.root.parent.parent, 0o751)
    return touched


def _real_folders(path: Path) -> list[Path]:
    with os.scandir(path) as entries:
        return [Path(e.path) for e in entries if e.is_dir(follow_symlinks=False) and not e.name.startswith(".")]


def _set(path: Path, mode: int) -> int:
    """Exact permission bits of a folder; its setgid bit stays."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        kept = stat.S_IMODE(os.fstat(fd).st_mode) & stat.S_ISGID
        os.fchmod(fd, mode | kept)
    finally:
        os.close(fd)
    return 1


def _open(top: Path) -> int:
    """Let others read what its owner can read: files r, folders r and x. Links are left alone."""
    touched = 0
    for folder, _, names in os.walk(top):
        for name in [*(n for n in names if n not in _PRIVATE), ""]:
            path = os.path.join(folder, name) if name else folder
            try:
                fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                found = os.fstat(fd).st_mode
                if stat.S_ISREG(found) or stat.S_ISDIR(found):
                    executable = stat.S_ISDIR(found) or found & 0o100
                    os.fchmod(fd, stat.S_IMODE(found) | 0o044 | (0o011 if executable else 0))
                    touched += 1
            finally:
                os.close(fd)
    return touched
