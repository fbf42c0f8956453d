"""What accounting says that a job used: time, CPU time, memory, and what was allocated. One sacct call."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from hpc.errors import Refusal
from hpc.slurm.query import SEPARATOR

if TYPE_CHECKING:
    from hpc.slurm.commands import Slurm

COLUMNS: Final = ("JobID", "State", "ElapsedRaw", "TotalCPU", "MaxRSS", "AllocTRES")
_TIME: Final = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)")
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)")
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}


@dataclass(frozen=True)
class JobUsage:
    """One job's figures; None where accounting has none. `max_rss_bytes` is the largest task's of all steps, `tres` what was allocated."""

    job_id: str
    state: str
    elapsed_s: int | None
    cpu_s: float | None
    max_rss_bytes: int | None
    tres: dict[str, str]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def usage(slurm: Slurm, job_id: str, *, deadline_s: float | None = None) -> JobUsage | None:
    """The newest life of a job; None where accounting does not know it. Raises Refusal E-SLURM-*."""
    from hpc.slurm.verdicts import classify, refusal

    args = [
        "--noheader",
        "--parsable2",
        f"--delimiter={SEPARATOR}",
        f"--format={','.join(COLUMNS)}",
        f"--jobs={job_id}",
    ]
    done = slurm.run("sacct", [f"--clusters={slurm.cluster}", *args] if slurm.cluster else args, deadline_s=deadline_s)
    if classify(done) != "ok":
        raise refusal(done, "read the accounting records")
    return parse_usage(done.out, job_id)


def parse_usage(text: str, job_id: str) -> JobUsage | None:
    """The job's row with the largest memory of its steps. Pure; rows of another shape are passed over."""
    rows = [line.split(SEPARATOR) for line in text.splitlines() if line.count(SEPARATOR) == len(COLUMNS) - 1]
    own = next((r for r in rows if r[0] == job_id), None)
    if own is None:
        return None
    sizes = [size for r in rows if r[0].startswith(f"{job_id}.") and (size := _bytes(r[4])) is not None]
    return JobUsage(
        job_id,
        own[1],
        int(own[2]) if own[2].isdecimal() else None,
        _seconds(own[3]),
        max(sizes, default=None),
        _tres(own[5]),
    )


def _seconds(text: str) -> float | None:
    """`1-02:03:04`, `02:03:04`, `03:04.567`."""
    match = _TIME.fullmatch(text.strip())
    if not match:
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _bytes(text: str) -> int | None:
    match = _SIZE.fullmatch(text.strip())
    return int(float(match[1]) * _UNITS[match[2]]) if match else None


def _tres(text: str) -> dict[str, str]:
    pairs = (item.partition("=") for item in text.split(",") if "=" in item)
    return {name: value for name, _, value in pairs}


def known(slurm: Slurm, job_id: str, *, deadline_s: float | None = None) -> tuple[JobUsage | None, str]:
    """(figures, "") or (None, why there are none)."""
    try:
        found = usage(slurm, job_id, deadline_s=deadline_s)
    except Refusal as exc:
        return None, f"accounting cannot be asked: {exc.message}"
    return found, "" if found else "accounting does not know the job"
