"""The state of an array: each element's own, and one word for all of them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from tuneplane.contract.sweeps import MAX_VARIANTS

from hpc.errors import Refusal
from hpc.runs.records import Facts, Submission
from hpc.runs.state import GRACE_S, Look, RunState, decide, is_ours
from hpc.slurm.query import JobRow
from hpc.spec.arrays import parse_array
from hpc.spec.jobids import JobId

ORDER: Final = (
    "running", "requeued", "queued", "unknown", "vanished", "error", "node_fail", "timeout", "preempted", "cancelled", "done",
)  # fmt: skip
"""Which element's class speaks for the whole: what still goes on first, then what needs somebody, done last."""


def is_array(facts: Facts, look: Look) -> bool:
    """Whether the newest submission is an array, by its record, its elements' records or what Slurm shows."""
    submission = facts.last_submission
    if submission is None or submission.kind != "slurm":
        return False
    if facts.elements or submission.tasks is not None:
        return True
    rows = (JobId.parse(r.job_id) for r in (*look.queue, *look.history) if is_ours(r, submission))
    return any(str(i.job) == submission.job_id and (i.task is not None or i.tasks) for i in rows)


def decide_run(facts: Facts, look: Look, now: float, *, grace_s: float = GRACE_S) -> RunState:
    """The state of a run, array or not. An array's message counts its elements; `element` is the one that gave the class."""
    if not is_array(facts, look):
        return decide(facts, look, now, grace_s=grace_s)
    found = elements(facts, look, now, grace_s=grace_s)
    waiting = _waiting(facts, look)
    every = [*found.values(), *(state for state, _ in waiting)]
    if not every:  # submitted, and neither Slurm nor a record shows a part of it yet
        return decide(facts, look, now, grace_s=grace_s)
    chosen = min(every, key=lambda s: ORDER.index(s.cls))
    counts = Counter(s.cls for s in found.values())
    words = [f"{counts[c]} {c}" for c in ORDER if counts[c]] + [f"{text} {state.cls}" for state, text in waiting]
    element = next((n for n, s in found.items() if s is chosen), None)
    return replace(
        chosen, message=f"elements: {', '.join(words)}", final=all(s.final for s in every), element=element,
        job_id=facts.submissions[-1].job_id, attempts=sum(s.attempts for s in found.values()),
    )  # fmt: skip


def elements(facts: Facts, look: Look, now: float, *, grace_s: float = GRACE_S) -> dict[int, RunState]:
    """Each element, judged by the newest submission that it is of; those that wait in Slurm as one rest are left out.

    Where no record says which elements there are: those that have records, or that Slurm shows by their own id.
    """
    attempts, seen = dict(facts.elements), _Seen.of(facts, look)
    out = {}
    for index in sorted(set(attempts) | set(seen.indices(facts)) | (_submitted(facts) - _resting(facts, look))):
        submission = submission_of(facts, index)
        task = index - submission.offset
        own = replace(submission, job_id=f"{submission.job_id}_{task}")
        queue, history = seen.rows(submission.job_id, task)
        part = replace(facts, submissions=(own,), attempts=attempts.get(index, ()), elements=())
        only = replace(look, queue=queue, history=history)
        out[index] = replace(decide(part, only, now, grace_s=grace_s), element=index)
    return out


def _submitted(facts: Facts) -> set[int]:
    """The elements that the submissions' records name. A record that names more than a site could take names none."""
    known = [s for s in facts.submissions if s.tasks is not None and s.tasks.count <= MAX_VARIANTS]
    return {s.offset + task for s in known if s.tasks is not None for task in s.tasks}


def _resting(facts: Facts, look: Look) -> set[int]:
    """The elements that Slurm shows as pending rests; where it shortens their list, all that are not there by their own id."""
    jobs, out = {s.job_id: s for s in facts.submissions}, set[int]()
    for row in look.queue:
        name = JobId.parse(row.job_id)
        submission = jobs.get(str(name.job))
        if submission is not None and name.tasks and row.active and is_ours(row, submission):
            out |= {submission.offset + task for task in _tasks(name.tasks, submission)}
    return out


def _tasks(text: str, submission: Submission) -> Iterable[int]:
    """Slurm's indices of a rest, `3-9%2`; where they are shortened, every one of the submission."""
    try:
        found = parse_array(text)
    except Refusal:
        return submission.tasks or ()
    return found if found.count <= MAX_VARIANTS else ()


def submission_of(facts: Facts, index: int) -> Submission:
    """The newest submission that an element is of; the newest of all where no record says."""
    return next((s for s in reversed(facts.submissions) if s.is_of(index)), facts.submissions[-1])


@dataclass(frozen=True)
class _Seen:
    """Slurm's rows of an array's jobs by job and task, sorted once: there may be thousands."""

    queue: dict[tuple[str, int], list[JobRow]]
    history: dict[tuple[str, int], list[JobRow]]

    @classmethod
    def of(cls, facts: Facts, look: Look) -> _Seen:
        jobs = {s.job_id: s for s in facts.submissions}
        found: list[dict[tuple[str, int], list[JobRow]]] = []
        for rows in (look.queue, look.history):
            sorted_rows: dict[tuple[str, int], list[JobRow]] = {}
            for row in rows:
                name = JobId.parse(row.job_id)
                submission = jobs.get(str(name.job))
                if submission is None or not is_ours(row, submission):
                    continue
                if name.task is not None:
                    sorted_rows.setdefault((submission.job_id, name.task), []).append(row)
                elif name.tasks and not row.active:  # ended before they began, by scancel for one
                    for task in _tasks(name.tasks, submission):
                        one = replace(row, job_id=f"{submission.job_id}_{task}")
                        sorted_rows.setdefault((submission.job_id, task), []).append(one)
            found.append(sorted_rows)
        return cls(*found)

    def rows(self, job_id: str, task: int) -> tuple[tuple[JobRow, ...], tuple[JobRow, ...]]:
        return tuple(self.queue.get((job_id, task), ())), tuple(self.history.get((job_id, task), ()))

    def indices(self, facts: Facts) -> Iterator[int]:
        offsets = {s.job_id: s.offset for s in facts.submissions}
        yield from (offsets[job] + task for job, task in (*self.queue, *self.history))


def _waiting(facts: Facts, look: Look) -> list[tuple[RunState, str]]:
    """The elements that Slurm shows as one pending rest, `123_[4-9]`, a part of a large array each, with what is said of them."""
    out = []
    jobs = {s.job_id: s for s in facts.submissions}
    for row in look.queue:
        name = JobId.parse(row.job_id)
        submission = jobs.get(str(name.job))
        if submission is not None and name.tasks and is_ours(row, submission) and row.active:
            plain = replace(facts, submissions=(submission,), attempts=(), elements=())
            only = replace(look, queue=(replace(row, job_id=submission.job_id),), history=())
            out.append((replace(decide(plain, only, 0.0), job_id=row.job_id), name.tasks))
    return out
