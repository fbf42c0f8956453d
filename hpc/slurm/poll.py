"""One query for all of a user's jobs, shared by every process through a cache file.

At most one refresh happens in an interval, whatever the number of callers: the cache is refreshed under a lock, and who finds the lock busy takes
the old answer with its age. The interval grows while nothing changes and while Slurm does not answer. The cache is state, not a record: a damaged
one is thrown away.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tuneplane.record.canonical import canonical_bytes
from tuneplane.record.files import replace

from hpc.errors import Refusal
from hpc.slurm import query
from hpc.slurm.query import JobRow

if TYPE_CHECKING:
    from hpc.slurm.commands import Slurm

SCHEMA: Final = "tuneplane-hpc/slurm-poll/v1"
_GROWTH: Final = 1.5
_WAIT_S: Final = 0.1


@dataclass(frozen=True)
class Poll:
    """What Slurm last said, and when: `polled_at` seconds since 1970 (0: never).

    `error`: code and words of the last refresh where that failed; the rows are then older ones. `accounting`: False where sacct has no answer.
    """

    queue: tuple[JobRow, ...] = ()
    history: tuple[JobRow, ...] = ()
    polled_at: float = 0.0
    tried_at: float = 0.0
    interval_s: float = 0.0
    error: str = ""
    accounting: bool = True
    asked: tuple[str, ...] = field(default=(), repr=False)

    def age_s(self, now: float) -> float:
        return max(0.0, now - self.polled_at)

    def fresh(self, now: float) -> bool:
        # A clock that was set back must not freeze the cache.
        return self.tried_at <= now + 1 and now - self.tried_at < self.interval_s

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "polled_at": self.polled_at,
            "tried_at": self.tried_at,
            "interval_s": self.interval_s,
            "error": self.error,
            "accounting": self.accounting,
            "asked": list(self.asked),
            "queue": [r.as_json() for r in self.queue],
            "history": [r.as_json() for r in self.history],
        }


@dataclass(frozen=True)
class Pace:
    """How often Slurm may be asked: seconds between refreshes at first and at most, and seconds to wait for a first answer."""

    interval_s: float = 30.0
    max_s: float = 180.0
    first_wait_s: float = 60.0


def read_cache(path: Path) -> Poll:
    """The cache as it stands; an empty Poll where there is none or it is damaged."""
    try:
        value = json.loads(path.read_bytes())
        if value["schema"] != SCHEMA:
            return Poll()
        return Poll(
            queue=tuple(map(JobRow.from_json, value["queue"])),
            history=tuple(map(JobRow.from_json, value["history"])),
            polled_at=float(value["polled_at"]),
            tried_at=float(value["tried_at"]),
            interval_s=float(value["interval_s"]),
            error=str(value["error"]),
            accounting=bool(value["accounting"]),
            asked=tuple(map(str, value["asked"])),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return Poll()


def poll(
    slurm: Slurm,
    user: str,
    path: Path,
    *,
    wanted: Callable[[], Iterable[str]],
    now: Callable[[], float],
    pace: Pace,
) -> Poll:
    """What Slurm says about `user`'s jobs, at most an interval old where Slurm answers; a busy lock gives the old answer.

    `wanted` names the job ids whose end matters; those that squeue has forgotten are asked of sacct in the same refresh. Never raises for Slurm's
    sake: a failure is in `error`. Raises Refusal E-STORE-* when the cache's folder cannot be used, E-SLURM-001 when there are no commands.
    """
    from hpc.store.locks import held

    deadline = now() + pace.first_wait_s
    while True:
        cached = read_cache(path)
        if cached.fresh(now()):
            return cached
        try:
            with held(path.with_suffix(".lock"), purpose="poll Slurm"):
                cached = read_cache(path)
                if cached.fresh(now()):
                    return cached
                fetched = _refresh(slurm, user, cached, list(wanted()), now(), pace)
                replace(path, canonical_bytes(fetched.as_json()) + b"\n", mode=0o600)
                return fetched
        except Refusal as exc:
            if exc.code != "E-STORE-001":
                raise
        # Busy: an old answer serves. Without any, the one that another process is fetching now is worth a wait.
        if cached.tried_at or now() >= deadline:
            return cached
        time.sleep(_WAIT_S)


def forget(path: Path) -> None:
    """Make the next `poll` ask Slurm: something was changed just now. Costs one query."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def _refresh(slurm: Slurm, user: str, before: Poll, wanted: list[str], at: float, pace: Pace) -> Poll:
    slower = min(max(before.interval_s, pace.interval_s) * _GROWTH, max(pace.max_s, pace.interval_s))
    try:
        queue = query.jobs(slurm, user).rows
    except Refusal as exc:
        if exc.code == "E-SLURM-001":
            raise
        return Poll(
            before.queue, before.history, before.polled_at, at, slower, str(exc), before.accounting, before.asked
        )
    known = {str(r.base_id) for r in queue}
    missing = sorted(set(wanted) - known)
    # A record that is over and whole does not change any more.
    kept = tuple(r for r in before.history if str(r.base_id) in missing and not r.active and r.name)
    open_ids = [i for i in missing if i not in {str(r.base_id) for r in kept}]
    history, accounting, error = kept, before.accounting, ""
    if open_ids:
        try:
            history = kept + query.history(slurm, ids=open_ids).rows
            accounting = True
        except Refusal as exc:
            accounting = exc.code != "E-SLURM-006"
            error = str(exc) if accounting else ""
    changed = _picture(queue) != _picture(before.queue) or history != before.history
    interval = pace.interval_s if changed or not before.polled_at else slower
    return Poll(queue, history, at, at, interval, error, accounting, tuple(open_ids))


def _picture(rows: Iterable[JobRow]) -> set[tuple[str, str, int | None]]:
    return {(r.job_id, r.state, r.restarts) for r in rows}
