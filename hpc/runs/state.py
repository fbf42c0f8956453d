"""Decides what state a run is in. Pure: records, Slurm's answers and the time come in by argument.

The order of belief: the run's own record, then accounting, then the queue, then age. A job is the run's only if id, nonce (in its comment, or in
its unique name) and submit time fit; ids come back, and a stranger's job is never the run's state. A job that ends by a dead node or a preemption
may come back under the same id, so such an end is final only after a grace time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal

from hpc.errors import Refusal
from hpc.runs.records import Attempt, Facts, Submission
from hpc.slurm.query import JobRow
from hpc.slurm.reasons import HELD_FOR_CHECKPOINT, Outlook, explain
from hpc.spec.jobids import JobId
from hpc.spec.text import escaped

RunClass = Literal[
    "queued",
    "running",
    "requeued",
    "done",
    "preempted",
    "timeout",
    "node_fail",
    "cancelled",
    "error",
    "vanished",
    "unknown",
]
ACTIVE: Final = frozenset({"queued", "running", "requeued"})
CLASSES: Final[dict[str, RunClass]] = {
    "done": "done", "preempted": "preempted", "timeout": "timeout", "node_fail": "node_fail", "cancelled": "cancelled",
    "error": "error", "refused": "error", "no_progress": "error",
}  # fmt: skip
"""Classes of an attempt's end record as classes of the run."""

GRACE_S: Final = 60.0
"""How long an end by node failure or preemption, or a job that nobody knows, is not yet the last word."""
SKEW_S: Final = 300.0
"""How far this machine's clock and the controller's may lie apart."""


@dataclass(frozen=True)
class Look:
    """What was asked about a run's job, and when (seconds since 1970; 0: never).

    `asked` holds ids that accounting was asked about; `accounting` is False where there is none; `error` is why the newest query failed;
    `alive` says whether a local job's process lives (None: cannot be seen from here).
    """

    queue: tuple[JobRow, ...] = ()
    history: tuple[JobRow, ...] = ()
    polled_at: float = 0.0
    asked: tuple[str, ...] = ()
    accounting: bool = True
    error: str = ""
    alive: bool | None = None


@dataclass(frozen=True)
class RunState:
    """The decision, what it rests on (`own record`, `sacct`, `squeue`, `age`, `process`, `nothing`), and what people ask next.

    `final`: nothing that is known can change it any more. Times in seconds since 1970.
    """

    cls: RunClass
    evidence: str
    message: str
    final: bool = False
    end_class: str = ""
    attempt: int | None = None
    attempts: int = 0
    job_id: str = ""
    kind: str = ""
    fleet: str = ""
    submitted_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    step: int | None = None
    reason: str = ""
    outlook: Outlook = "unknown"
    dependency: str = ""
    hosts: str = ""
    stop_requested: bool = False
    element: int | None = None

    @property
    def active(self) -> bool:
        return self.cls in ACTIVE

    @property
    def dead(self) -> bool:
        """Queued, but it will never start as it is."""
        return self.cls == "queued" and self.outlook == "hopeless"


def is_ours(row: JobRow, submission: Submission) -> bool | None:
    """Whether a job with the submission's id is the submission's job, not a later owner of the number; None: cannot be told yet. Pure."""
    if submission.cluster and row.cluster and submission.cluster != row.cluster:
        return False
    # Slurm moves the submit time forward on a requeue, never back.
    if row.submitted_at is not None and row.submitted_at < submission.submitted_at - SKEW_S:
        return False
    if row.comment and submission.nonce:
        return submission.nonce in row.comment
    if not row.name:
        return None
    return not submission.job_name or row.name == submission.job_name


def _same_id(rows: Iterable[JobRow], submission: Submission) -> list[JobRow]:
    try:
        wanted = JobId.parse(submission.job_id)
    except Refusal:
        return []
    return [
        r
        for r in rows
        if r.base_id == wanted.job and (wanted.task is None or JobId.parse(r.job_id).task == wanted.task)
    ]


def _newest(rows: Iterable[JobRow]) -> JobRow | None:
    """The row that tells most: an active one before ended ones, then the latest submitted."""
    return max(rows, key=lambda r: (r.active, r.cls == "running", r.submitted_at or 0), default=None)


def decide(facts: Facts, look: Look, now: float, *, grace_s: float = GRACE_S) -> RunState:
    """The state of a run. Total: every combination of records and answers has one."""
    submission = facts.last_submission
    if submission is None:
        message = "packed, but no submission is recorded"
        return RunState("unknown", "nothing", message, stop_requested=facts.stop_requested)
    attempt = facts.last_attempt
    base = RunState(
        "unknown", "nothing", "", attempt=attempt.number if attempt else None, attempts=len(facts.attempts), job_id=submission.job_id,
        kind=submission.kind, fleet=submission.fleet, submitted_at=submission.submitted_at,
        started_at=attempt.started_at if attempt else None, ended_at=attempt.ended_at if attempt else None, step=_step(attempt),
        hosts=",".join(attempt.hosts) if attempt else "", stop_requested=facts.stop_requested,
    )  # fmt: skip
    if submission.kind == "local":
        return _local(base, attempt, look, now, submission.after_run)
    return _Slurm(base, submission, attempt, look, now, grace_s).decide()


def _step(attempt: Attempt | None) -> int | None:
    for record in (attempt.end, attempt.requeue) if attempt else ():
        if record and isinstance(record.get("step"), int):
            return int(record["step"])
    return None


def _ended(base: RunState, attempt: Attempt) -> RunState:
    end = attempt.end or attempt.requeue or {}
    word = str(end.get("class") or "preempted")
    message = escaped(str(end.get("message") or end.get("reason") or ""), keep="\n\t")
    return replace(
        base,
        cls=CLASSES.get(word, "unknown"),
        end_class=word,
        evidence="own record",
        message=message,
        final=not attempt.runs_again,
    )


def _local(base: RunState, attempt: Attempt | None, look: Look, now: float, after_run: str = "") -> RunState:
    if attempt and attempt.end and not attempt.runs_again:
        return _ended(base, attempt)
    if look.alive is None:
        return replace(
            base,
            cls="running",
            evidence="own record",
            message="runs on another machine; its process cannot be seen here",
        )
    if look.alive:
        if attempt is None:
            message = f"waits for {after_run} to end" if after_run else "starting"
            return replace(base, cls="queued", evidence="process", message=message)
        if attempt.runs_again:
            return replace(base, cls="requeued", evidence="process", message="the next attempt is starting")
        return replace(base, cls="running", evidence="process", message="")
    if attempt and attempt.runs_again:
        return replace(_ended(base, attempt), message="asked to run again, but its process is gone", final=True)
    if attempt is None and after_run and base.stop_requested:
        message = f"stopped while it waited for {after_run}"
        return replace(base, cls="cancelled", end_class="cancelled", evidence="process", message=message, final=True)
    # Between the last write and the exit there is a moment; a record may still be on its way.
    if abs(now - (base.submitted_at or 0)) < 2:
        return replace(base, cls="queued", evidence="age", message="just submitted")
    return replace(
        base, cls="vanished", evidence="process", message="the process is gone and left no end record", final=True
    )


@dataclass(frozen=True)
class _Slurm:
    """The decision for a job of Slurm, one rule a method."""

    base: RunState
    submission: Submission
    attempt: Attempt | None
    look: Look
    now: float
    grace_s: float

    def decide(self) -> RunState:
        queued, past = _same_id(self.look.queue, self.submission), _same_id(self.look.history, self.submission)
        row = _newest(r for r in queued if is_ours(r, self.submission))
        record = _newest(r for r in past if is_ours(r, self.submission))
        strangers = [r for r in (*queued, *past) if is_ours(r, self.submission) is False]
        live = row if row and row.active else record if record and record.active and row is None else None
        over = record or row
        if self.attempt and (self.attempt.end or self.attempt.requeue):
            return self._after_own_end(self.attempt, live, over)
        if live is not None:
            return self._live(live)
        if over is not None:
            return self._over(over)
        return self._unseen(strangers)

    def _after_own_end(self, attempt: Attempt, live: JobRow | None, over: JobRow | None) -> RunState:
        ended = _ended(self.base, attempt)
        ended_at = attempt.ended_at or self.base.submitted_at or 0.0
        if live is not None and (live.restarts or 0) > attempt.restarts:
            return self._live(live)
        if not attempt.runs_again:
            return ended
        waiting = replace(ended, cls="requeued", message=ended.message or "waits to run again")
        if live is not None:
            return waiting
        # Slurm gives a requeued job a new submit time; such a life can end before it begins, by scancel for one.
        if over is not None and ((over.restarts or 0) > attempt.restarts or (over.submitted_at or 0) >= ended_at - 5):
            return self._over(over)
        if self.look.error or self.look.polled_at < ended_at + self.grace_s:
            return replace(waiting, evidence="own record")
        return replace(ended, message=f"{ended.message}; asked to be requeued, but Slurm has no such job", final=True)

    def _live(self, row: JobRow) -> RunState:
        restarts = row.restarts or 0
        begun = self.attempt is not None and self.attempt.restarts >= restarts
        seen = replace(
            self.base,
            evidence=row.source,
            hosts=row.node_list or self.base.hosts,
            started_at=row.started_at,
            ended_at=None,
        )
        if row.cls == "running":
            message = "" if begun else "the node is being prepared"
            return replace(seen, cls="running", message=message)
        # A pending job's start and end are Slurm's estimates.
        held = self.submission.held and row.reason == "JobHeldUser"
        reason = explain(HELD_FOR_CHECKPOINT if held else row.reason or "None")
        again = restarts > 0 or row.cls == "requeued" or self.attempt is not None
        return replace(
            seen, cls="requeued" if again else "queued", message=reason.meaning, outlook=reason.outlook,
            reason=HELD_FOR_CHECKPOINT if held else row.reason,
            dependency=row.dependency, hosts="",
        )  # fmt: skip

    def _over(self, row: JobRow) -> RunState:
        """Slurm says that the job is over; the run's own record is missing."""
        age = self.now - (row.ended_at or self.look.polled_at)
        seen = replace(
            self.base, evidence=row.source, started_at=self.base.started_at or row.started_at, ended_at=row.ended_at,
            hosts=row.node_list or self.base.hosts, final=age >= self.grace_s,
        )  # fmt: skip
        if row.cls in CLASSES and row.cls != "done":
            how = f"Slurm says {row.state}"
            how += f", exit code {row.exit_code}:{row.signal or 0}" if row.exit_code is not None else ""
            return replace(seen, cls=CLASSES[row.cls], end_class=row.cls, message=f"{how}; the run left no end record")
        if age < self.grace_s:
            return replace(seen, cls="running", message="ending; its record is not there yet")
        return replace(seen, cls="unknown", message=f"Slurm says {row.state}, but the run left no end record")

    def _unseen(self, strangers: list[JobRow]) -> RunState:
        """Neither queue nor accounting shows the job."""
        look, base = self.look, self.base
        if strangers:
            return replace(
                base, evidence=strangers[0].source, message=f"job id {base.job_id} now belongs to another job"
            )
        if look.polled_at < (base.submitted_at or 0.0) + self.grace_s:
            said = "Slurm did not answer" if look.error else "Slurm was not asked since"
            if self.attempt is not None:
                return replace(
                    base, cls="running", evidence="own record", message=f"{said}; by its own record it began"
                )
            return replace(base, cls="queued", evidence="age", message=f"{said}; it was submitted")
        if look.error:
            return replace(base, message=f"Slurm did not answer: {look.error}")
        if look.accounting and str(self._number()) not in look.asked:
            return replace(base, message="the queue does not know the job; accounting was not asked yet")
        where = (
            "neither the queue nor accounting knows the job" if look.accounting else "the queue has forgotten the job"
        )
        old = self.now - (base.submitted_at or 0.0) > 86_400
        return replace(base, cls="vanished", evidence="age", message=f"{where}, and it left no end record", final=old)

    def _number(self) -> int:
        return JobId.parse(self.submission.job_id).job if self.submission.job_id[:1].isdigit() else 0
