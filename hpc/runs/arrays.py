"""The state of an array: each element's own, and one word for all of them. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Final

from hpc.runs.records import Facts
from hpc.runs.state import GRACE_S, Look, RunState, decide, is_ours
from hpc.spec.jobids import JobId

ORDER: Final = (
    "running", "requeued", "queued", "unknown", "vanished", "error", "node_fail", "timeout", "preempted", "cancelled", "done",
)  # fmt: skip
"""Which element's class speaks for the whole: what still goes on first, then what needs somebody, done last."""


def is_array(facts: Facts, look: Look) -> bool:
    """Whether the newest submission is an array, by its elements' records or by what Slurm shows."""
    submission = facts.last_submission
    if submission is None or submission.kind != "slurm":
        return False
    if facts.elements:
        return True
    rows = (JobId.parse(r.job_id) for r in (*look.queue, *look.history) if is_ours(r, submission))
    return any(str(i.job) == submission.job_id and (i.task is not None or i.tasks) for i in rows)


def decide_run(facts: Facts, look: Look, now: float, *, grace_s: float = GRACE_S) -> RunState:
    """The state of a run, array or not. An array's message counts its elements; `element` is the one that gave the class."""
    if not is_array(facts, look):
        return decide(facts, look, now, grace_s=grace_s)
    found = elements(facts, look, now, grace_s=grace_s)
    waiting = _waiting(facts, look)
    every = [*found.values(), *([waiting] if waiting else [])]
    chosen = min(every, key=lambda s: ORDER.index(s.cls))
    counts = Counter(s.cls for s in found.values())
    words = [f"{counts[c]} {c}" for c in ORDER if counts[c]]
    if waiting:
        words.append(f"{JobId.parse(waiting.job_id).tasks} {waiting.cls}")
    element = next((n for n, s in found.items() if s is chosen), None)
    return replace(
        chosen, message=f"elements: {', '.join(words)}", final=all(s.final for s in every), element=element,
        job_id=facts.submissions[-1].job_id, attempts=sum(s.attempts for s in found.values()),
    )  # fmt: skip


def elements(facts: Facts, look: Look, now: float, *, grace_s: float = GRACE_S) -> dict[int, RunState]:
    """Each element that has records or that Slurm shows by its own id."""
    submission = facts.submissions[-1]
    attempts = dict(facts.elements)
    rows = [JobId.parse(r.job_id) for r in (*look.queue, *look.history) if is_ours(r, submission)]
    indices = set(attempts) | {i.task for i in rows if str(i.job) == submission.job_id and i.task is not None}
    out = {}
    for index in sorted(indices):
        own = replace(submission, job_id=f"{submission.job_id}_{index}")
        part = replace(facts, submissions=(*facts.submissions[:-1], own), attempts=attempts.get(index, ()), elements=())
        out[index] = replace(decide(part, look, now, grace_s=grace_s), element=index)
    return out


def _waiting(facts: Facts, look: Look) -> RunState | None:
    """The elements that Slurm shows as one pending rest, `123_[4-9]`."""
    submission = facts.submissions[-1]
    for row in look.queue:
        found = JobId.parse(row.job_id)
        if str(found.job) == submission.job_id and found.tasks and is_ours(row, submission) and row.active:
            plain = replace(facts, attempts=(), elements=())
            only = replace(look, queue=(replace(row, job_id=submission.job_id),), history=())
            return replace(decide(plain, only, 0.0), job_id=row.job_id)
    return None
