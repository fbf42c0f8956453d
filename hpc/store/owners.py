"""Who holds a lock, told so that others can judge whether that process still lives.

Death is proved in two ways only: on the same kernel and in the same pid namespace the process is gone (or its number
was given to another); or Slurm says that the job it ran in has ended. Age proves nothing, and neither does a host
name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from tuneplane.record.canonical import CanonicalError, parse_json
from tuneplane.record.times import utc_now

JobEnded = Callable[[str, str], bool]
"""(job id, cluster) -> True only if Slurm says that this job is over."""


@dataclass(frozen=True)
class Owner:
    """One process, as precisely as Linux lets us name it.

    `start_ticks`: /proc/<pid>/stat field 22; `pid_namespace`: its inode.
    """

    host: str
    boot_id: str
    pid_namespace: int
    pid: int
    start_ticks: int
    uid: int
    job_id: str
    cluster: str
    purpose: str
    since: str

    def __str__(self) -> str:
        job = f", job {self.job_id}" if self.job_id else ""
        why = f" for {self.purpose}" if self.purpose else ""
        return f"pid {self.pid} of uid {self.uid} on {self.host}{job}, since {self.since}{why}"

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def start_ticks(pid: int, proc: str = "/proc") -> int | None:
    """Start time of a process in clock ticks since boot, or None if it cannot be read.

    A zombie without threads counts as gone (-1).
    """
    try:
        with open(f"{proc}/{pid}/stat", "rb") as stream:
            tail = stream.read().rpartition(b")")[2].split()
        if tail[0] in (b"Z", b"X") and len(os.listdir(f"{proc}/{pid}/task")) <= 1:
            return -1
        return int(tail[19])
    except (OSError, ValueError, IndexError):
        return None


def boot_id() -> str:
    """The kernel's id of this boot; empty where it is hidden."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
            return stream.read().strip()
    except OSError:
        return ""


def pid_namespace() -> int:
    """Inode of this process's pid namespace; 0 where it is hidden."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def this_process(purpose: str = "", *, env: Mapping[str, str] | None = None, now: Callable[[], str] = utc_now) -> Owner:
    """The calling process as an Owner; the job id comes from Slurm's own variables in `env` (the process environment
    by default).
    """
    variables = os.environ if env is None else env
    pid = os.getpid()
    return Owner(
        host=os.uname().nodename,
        boot_id=boot_id(),
        pid_namespace=pid_namespace(),
        pid=pid,
        start_ticks=start_ticks(pid) or 0,
        uid=os.getuid(),
        job_id=variables.get("SLURM_JOB_ID", ""),
        cluster=variables.get("SLURM_CLUSTER_NAME", ""),
        purpose=purpose,
        since=now(),
    )


def parse_owner(data: bytes) -> Owner | None:
    """The Owner written in `data`, or None if it is damaged; a damaged record proves nothing."""
    try:
        value = parse_json(data)
    except CanonicalError:
        return None
    kinds = {"pid_namespace": int, "pid": int, "start_ticks": int, "uid": int}
    names = [f.name for f in fields(Owner)]
    if not isinstance(value, dict) or sorted(value) != sorted(names):
        return None
    if any(type(value[n]) is not kinds.get(n, str) for n in names):
        return None
    return Owner(**value)


def is_gone(owner: Owner, *, ended: JobEnded | None = None, proc: str = "/proc") -> bool:
    """True only with proof that the process has ended; every doubt is False."""
    if owner.job_id and ended is not None and ended(owner.job_id, owner.cluster):
        return True
    here = (boot_id(), pid_namespace())
    if "" in here or 0 in here or (owner.boot_id, owner.pid_namespace) != here or owner.start_ticks <= 0:
        return False
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # it lives, and belongs to someone else
    now = start_ticks(owner.pid, proc)
    # A /proc that hides others' processes gives None: no proof.
    return now is not None and now != owner.start_ticks
