"""When will it start? A band from the waits of similar jobs on this site, with how many they were; never one number.

Similar: the same partition, between half and twice the nodes, between half and twice the time limit. Slurm's own estimate stands beside it, as an
estimate. Does not know about changed priorities, reservations or drained nodes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tuneplane.record.files import replace

from hpc.errors import Refusal
from hpc.slurm.commands import Slurm
from hpc.slurm.query import Wait, waits

MIN_JOBS: Final = 5
DAYS: Final = 7
_KEEP_S: Final = 3600.0


@dataclass(frozen=True)
class Band:
    """Of `similar` jobs, out of `all_jobs` in the partition: 10 % waited less than `low_s`, half less than `mid_s`, 10 % more than `high_s`."""

    low_s: int
    mid_s: int
    high_s: int
    similar: int
    all_jobs: int

    def as_json(self) -> dict[str, int]:
        return dict(vars(self))


def band(history: Sequence[Wait], *, nodes: int, limit_s: int | None) -> Band | None:
    """The band for a job of this shape, or None where fewer than MIN_JOBS were like it. Pure."""

    def like(wait: Wait) -> bool:
        if not nodes / 2 <= wait.nodes <= nodes * 2:
            return False
        return limit_s is None or wait.limit_s is None or limit_s / 2 <= wait.limit_s <= limit_s * 2

    similar = sorted(w.wait_s for w in history if like(w))
    if len(similar) < MIN_JOBS:
        return None
    low, mid, high = (similar[min(len(similar) - 1, len(similar) * q // 100)] for q in (10, 50, 90))
    return Band(low, mid, high, len(similar), len(history))


def recent_waits(slurm: Slurm, partition: str, cache: Path | None, now: float) -> tuple[Sequence[Wait], str]:
    """Waits in the partition over the last DAYS, and why there are none if so. Asked at most once an hour where there is a cache."""
    known = _read(cache)
    if known is not None and 0 <= now - known[0] < _KEEP_S:
        return known[1], ""
    try:
        found = waits(slurm, partition, since=int(now) - DAYS * 86_400)
    except Refusal as exc:
        return (), exc.message
    if cache is not None:
        value = {"at": now, "waits": [[w.wait_s, w.nodes, w.limit_s] for w in found]}
        replace(cache, json.dumps(value, separators=(",", ":")).encode(), mode=0o600)
    return found, ""


def _read(cache: Path | None) -> tuple[float, list[Wait]] | None:
    try:
        value = json.loads(cache.read_bytes()) if cache else None
        return (float(value["at"]), [Wait(*row) for row in value["waits"]]) if value else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
