"""A job whose command is a framework's launch plan: its words filled in, its files written, and Ray formed where the framework wants it.

Ray is formed by its own `ray symmetric-run`, once a node: the node that has the published address becomes the head and runs the driver, the
others join and stay until it ends. That command ends with 0 also where it could not start Ray at all or lost it on the way, so the driver's end is
written down by itself and looked for, on every node.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuneplane.contract import exits, plans
from tuneplane.launch.place import Place
from tuneplane.launch.ranks import RankEnd
from tuneplane.launch.rendezvous import Meeting
from tuneplane.launch.verify import LaunchRefused
from tuneplane.record.digest import digest_json
from tuneplane.record.files import read_json

RANK_VARIABLES = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip
"""What tells one rank from another. A Ray driver and its workers make their own."""
FOREIGN = ("PMI", "PMIX", "MPI", "OMPI", "SLURM_")
"""Variables by which a library would take itself for a task of the batch system."""
_DRIVER = (
    'end=$1 RAY_ADDRESS=$2; export RAY_ADDRESS; shift 2; "$@"; code=$?; printf "%s\\n" "$code" >"$end"; exit "$code"'
)
"""The head's command: the driver joins this cluster and makes none of its own, and its exit code is written down."""
PATIENCE_S = 120
"""How long a node whose Ray is gone waits for the driver's end: another node wrote it, and a shared file system may show it a minute late."""
LOST_S = 60
"""How long a node that joined may be without its raylet: at a good end `ray stop` and symmetric-run follow within it."""
_LOOK_S = 10
_OWN = ("TUNEPLANE_RUN_ID", "TUNEPLANE_ATTEMPT", "TUNEPLANE_MAIN_PROCESS_IP", "TUNEPLANE_MAIN_PROCESS_PORT")
"""What every process of this attempt's Ray inherits, and together no process of another job has."""


def read_plan(work: Path, launch: Mapping[str, Any]) -> dict[str, Any] | None:
    """The launch plan of a verified package; None where its entry is no framework's. Raises LaunchRefused E-JOB-060."""
    if "plan" not in launch["entry"]:
        return None
    try:
        value = read_json(work / ".tuneplane" / plans.RECORD)
    except (OSError, ValueError) as exc:
        raise LaunchRefused("E-JOB-060", f"{plans.RECORD} cannot be read: {exc}") from exc
    if not isinstance(value, dict) or digest_json(value) != launch["entry"]["plan"]:
        raise LaunchRefused("E-JOB-060", f"{plans.RECORD} is not the plan of launch.json")
    return value


def write_files(plan: Mapping[str, Any], folder: Path, values: Mapping[str, str]) -> None:
    """The plan's files, filled in, in this node's own folder: once, by its first rank. Raises OSError."""
    if folder.exists():
        return
    folder.mkdir(mode=0o700)
    for name, text in plan["files"].items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_filled(text, values), "utf-8")


def command(
    place: Place, launch: Mapping[str, Any], argv: Sequence[str], env: Mapping[str, str], meeting: Meeting, gpus: int
) -> tuple[list[str], dict[str, str]]:
    """What one process starts, and its environment: the entry's own, or a framework's launch plan filled in. Raises LaunchRefused E-JOB-060."""
    words, variables = list(argv), dict(env)
    if (plan := read_plan(place.work, launch)) is not None:
        folder = place.scratch / "generated"
        variables[plans.GENERATED] = str(folder)
        write_files(plan, folder, variables)
        words = [_filled(word, variables) for word in words]
        variables |= {name: _filled(text, variables) for name, text in plan["env"].items()}
    if launch["entry"]["kind"] != "ray":
        return words, variables
    wait_s = float(launch["policies"]["rendezvous_timeout_s"])
    return ray_argv(words, place, meeting, gpus), ray_environment(variables, place, wait_s)


def _filled(text: str, values: Mapping[str, str]) -> str:
    try:
        return plans.fill(text, values)
    except KeyError as exc:
        raise LaunchRefused("E-JOB-060", f"the launch plan wants {exc.args[0]}, which this job does not have") from exc


def driver_end(place: Place) -> Path:
    """Where the Ray driver's exit code is written when it ended, however it ended."""
    return place.attempt.nodes / "ray-driver.code"


def ray_argv(argv: Sequence[str], place: Place, meeting: Meeting, gpus: int) -> list[str]:
    """What each node starts so that Ray is formed and the head runs `argv`. The port is the job's own."""
    cpus = len(os.sched_getaffinity(0))
    address = f"{meeting.address}:{meeting.port}"
    start = ["--num-cpus", str(cpus), "--num-gpus", str(gpus), "--disable-usage-stats"]
    return [
        "ray", "symmetric-run", "--address", address, "--min-nodes", str(len(place.hosts)), *start,
        "--", "/bin/sh", "-c", _DRIVER, "ray-driver", str(driver_end(place)), address, *argv,
    ]  # fmt: skip


def ray_environment(env: Mapping[str, str], place: Place, wait_s: float) -> dict[str, str]:
    """The environment of Ray and its driver: no rank, nothing of the batch system, its files in the node's own scratch folder."""
    kept = {k: v for k, v in env.items() if k not in RANK_VARIABLES and not k.startswith(FOREIGN)}
    wait = {"RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT": str(int(wait_s))}
    return kept | wait | {"RAY_TMPDIR": str(place.scratch), "RAY_USAGE_STATS_ENABLED": "0"}


def checked_ends(
    place: Place,
    ends: list[RankEnd],
    env: Mapping[str, str],
    say: Callable[[str], None],
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> list[RankEnd]:
    """The ends of a node's Ray; one that only seems good becomes a failed launch or a lost node, and what is left of it on the node is ended."""
    end_processes(env, sleep=sleep)
    if all(e.by_us for e in ends):  # RayWatch saw no raylet: what had started it says nothing of how it went
        ends = [replace(e, exit_code=exits.DONE, signal=0) for e in ends]
    code = max(e.exit_code for e in ends)
    if code and not place.node and (said := _driver_said(place)):
        # With several nodes symmetric-run is itself a client of the Ray that it stops, and may end by that.
        ends = [replace(e, exit_code=said[0], signal=0) for e in ends]
        code = said[0]
    if fault := ray_fault(place, code, sleep=sleep):
        say(fault)
        failed = (
            exits.PEER_LOST if place.node else exits.LAUNCH_FAILED
        )  # a lost node is no fault of the run, and it may run again
        return [replace(e, exit_code=failed, by_us=False) for e in ends]
    return ends


class RayWatch:
    """True once a node that joined was without its raylet for LOST_S: `ray start --block` stays for ever where that was ended by SIGTERM.

    The head needs none: a driver ends with its raylet.
    """

    def __init__(self, place: Place, env: Mapping[str, str], clock: Callable[[], float] = time.monotonic) -> None:
        self._joined, self._marks, self._clock = bool(place.node), _marks(env), clock
        self._seen, self._gone, self._next = False, 0.0, 0.0

    def __call__(self) -> bool:
        now = self._clock()
        if not self._joined or not self._marks or now < self._next:
            return False
        self._next = now + _LOOK_S
        if any(_name(pid) == "raylet" for pid in _family(self._marks)):
            self._seen, self._gone = True, now
        return self._seen and now - self._gone >= LOST_S


def _marks(env: Mapping[str, str]) -> set[bytes]:
    """What the processes of this attempt's Ray have in their environment; empty where they could not be told from others."""
    return {f"{name}={env[name]}".encode() for name in _OWN} if set(_OWN) <= set(env) else set()


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def ray_fault(place: Place, code: int, *, sleep: Callable[[float], None] = time.sleep) -> str:
    """Why a node's Ray did not do its work although its command says 0; "" where it did.

    A node that joined leaves a minute after the head, so the driver's end is there by then; where it is not within PATIENCE_S, this node was
    lost to a driver that may wait for it for ever.
    """
    if code:
        return ""
    if place.node:
        if _head_ended(place, sleep):
            return ""
        return f"E-JOB-062 Ray ended on this node, and its driver not in the {PATIENCE_S} s after"
    if not (said := _driver_said(place)):
        return "E-JOB-061 Ray ended without having run its driver: it was not formed"
    return f"E-JOB-061 the driver ended with {said[0]}, and Ray with 0" if said[0] else ""


def _driver_said(place: Place) -> tuple[int] | None:
    """The driver's exit code where it ended and wrote it."""
    try:
        text = driver_end(place).read_text("ascii").strip()
    except OSError:
        return None
    return (int(text),) if text.isdecimal() else None


def _head_ended(place: Place, sleep: Callable[[float], None]) -> bool:
    """Whether the driver ended, or the head's launcher did, within PATIENCE_S. The folder is listed: a name that was not there may be cached."""
    wanted = {driver_end(place).name, "0.end.json"}
    for waited in range(0, PATIENCE_S + 1, 2):
        if waited:
            sleep(2)
        try:
            if wanted & set(os.listdir(place.attempt.nodes)):
                return True
        except OSError:
            continue  # a mount that comes back
    return False


def end_processes(env: Mapping[str, str], *, sleep: Callable[[float], None] = time.sleep) -> None:
    """End what this attempt's Ray left on the node, and no other process: `ray stop` would end every Ray of this user."""
    if not (marks := _marks(env)):
        return
    for _ in range(5):  # what is being started while the others are ended
        found = _family(marks)
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass  # it ended by itself
        if not found:
            return
        sleep(0.2)


def _family(marks: set[bytes]) -> set[int]:
    """Processes of this user that have these variables, with their descendants: Ray's workers write their title over theirs."""
    parents: dict[int, int] = {}
    found: set[int] = set()
    for entry in Path("/proc").iterdir():
        try:
            if not entry.name.isdigit() or entry.stat().st_uid != os.getuid():
                continue
            state, parent = (entry / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[:2]
            if state == "Z":
                continue
            parents[int(entry.name)] = int(parent)
            if marks <= set((entry / "environ").read_bytes().split(b"\0")):
                found.add(int(entry.name))
        except OSError:
            continue  # it ended, or may not be looked at
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {os.getpid()}
