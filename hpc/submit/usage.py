"""GPUs and jobs that an owner's queued and running runs hold, from one look at the queue and the runs' own records.

The queue names the runs (a job's name is `<exp>.<run id>.<first attempt>`), so an owner with ten thousand finished runs costs no more than one
with ten. Only where no queue answers for a run, on a local fleet or when Slurm cannot be asked, is every run looked at.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tuneplane.contract.layout import RunPaths, StorageRoot
from tuneplane.record.files import read_object

from hpc.errors import Refusal
from hpc.spec.arrays import parse_array
from hpc.submit.admission import Usage

if TYPE_CHECKING:
    from hpc.slurm.commands import Slurm

Queued = Mapping[str, str] | None
"""Job ids that Slurm has of an owner → job names; None when it could not be asked."""
_JOB_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\.(run-[0-9a-f]{4,32})\.[0-9]+")


def queued_jobs(slurm: Slurm, user: str) -> Queued:
    """What Slurm has of this user, in one squeue."""
    from hpc.slurm.verdicts import classify

    asked = slurm.run("squeue", ["--noheader", f"--user={user}", "--Format=JobID:32,Name:256"])
    if classify(asked) != "ok":
        return None
    return {line[:32].strip().split("_")[0]: line[32:].strip() for line in asked.out.splitlines()}


def _names(path: os.PathLike[str]) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def newest_number(run: RunPaths, folder: str) -> int | None:
    """The highest numbered entry of `attempts/`, `submissions/` or `batch/`."""
    stems = [name.removesuffix(".json").removesuffix(".sh") for name in _names(run.root / folder)]
    numbers = [int(stem) for stem in stems if stem.isascii() and stem.isdigit() and len(stem) < 10]
    return max(numbers, default=None)


def owner_runs(root: StorageRoot, owner: str) -> Iterator[RunPaths]:
    """Every run folder of an owner."""
    for exp in _names(root.owner_runs(owner)):
        for run_id in _names(root.owner_runs(owner) / exp):
            if run_id.startswith("run-"):
                yield root.run(owner, exp, run_id)


def recent_runs(root: StorageRoot, owner: str, exp: str, *, since: float) -> list[RunPaths]:
    """Runs of one experiment whose folder changed after `since` (seconds since 1970, by the storage server's clock), at least."""
    try:
        with os.scandir(root.owner_runs(owner) / exp) as entries:
            names = [
                e.name for e in entries if e.name.startswith("run-") and e.stat(follow_symlinks=False).st_mtime >= since
            ]
    except OSError:
        return []
    return [root.run(owner, exp, name) for name in sorted(names)]


def open_submission(run: RunPaths) -> dict[str, Any] | None:
    """The newest submission of a run whose last attempt has not ended for good; None for a finished or never submitted run."""
    number = newest_number(run, "submissions")
    if number is None:
        return None
    attempt = newest_number(run, "attempts")
    if attempt is not None and attempt >= number:
        end = read_object(run.attempt(attempt).end)
        if end is not None and not end.get("requeue"):
            return None
    return read_object(run.submissions / f"{number}.json")


def _gpus(run: RunPaths) -> int:
    """GPUs of a run, by its own launch.json; of an array those of the elements that may run at once.

    One that cannot be read counts nothing; an audit says so.
    """
    try:
        launch = read_object(run.launch) or {}
        each = sum(int(p["nodes"]) * int(p["gpus_per_node"]) for p in launch["shape"]["pools"])
        array = (launch.get("options") or {}).get("array")
        return each * (parse_array(str(array)).at_once if array and each else 1)
    except (AttributeError, KeyError, TypeError, ValueError, Refusal):
        return 0


def usage_of(root: StorageRoot, owner: str, queued: Queued, *, local: bool) -> Usage:
    """Sum over the owner's open runs. Without an answer of Slurm every open run counts; `local`: the site has a local fleet."""
    gpus = jobs = 0
    for run in owner_runs(root, owner) if queued is None or local else _named(root, owner, queued):
        if holds(run, queued):
            gpus, jobs = gpus + _gpus(run), jobs + 1
    return Usage(gpus, jobs)


def _named(root: StorageRoot, owner: str, queued: Mapping[str, str]) -> list[RunPaths]:
    """The runs that the queue's job names mean, each once."""
    found = {m.groups() for name in queued.values() if (m := _JOB_NAME.fullmatch(name))}
    return [root.run(owner, exp, run_id) for exp, run_id in sorted(found)]


def holds(run: RunPaths, queued: Queued) -> bool:
    """True while a run is queued or running as far as its records and `queued` tell; a job that its fleet no longer has holds nothing."""
    submission = open_submission(run)
    if submission is None:
        return False
    if submission.get("kind") == "local":
        return _alive(submission)
    return queued is None or any(job in queued for job in _job_ids(run, submission))


def _job_ids(run: RunPaths, newest: dict[str, Any]) -> list[str]:
    """The jobs that may still be there: of an array every part's."""
    records = [newest]
    if newest.get("array"):
        records = [r for name in _names(run.submissions) if (r := read_object(run.submissions / name))]
    return [str(r.get("job_id")) for r in records]


def _alive(submission: dict[str, Any]) -> bool:
    from hpc.store.owners import start_ticks

    pid = submission.get("pid")
    return isinstance(pid, int) and pid > 0 and start_ticks(pid) == submission.get("pid_start")
