"""Gathers what `tp job why` reasons about: the attempt's clues, accounting's steps, parents of a dependency, waits of similar jobs."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from hpc.cli.desk import Desk
from hpc.cli.runview import local, span
from hpc.errors import Refusal
from hpc.plugins.playbook import BUILTIN, Playbook
from hpc.runs.arrays import submission_of
from hpc.runs.clues import gather
from hpc.runs.continuity import advice
from hpc.runs.diagnosis import Diagnosis
from hpc.runs.incarnation import rows_of_life
from hpc.runs.records import Facts
from hpc.runs.state import RunState
from hpc.runs.waiting import DAYS, band, recent_waits
from hpc.runs.why import dependencies, diagnose
from hpc.slurm import query
from hpc.slurm.query import JobRow


def explain_run(desk: Desk, facts: Facts, state: RunState) -> Diagnosis:
    """The diagnosis of one run. Slurm is asked where it can add something; that it does not answer is no failure here."""
    steps: list[JobRow] = []
    parents: dict[str, str] = {}
    submission = facts.last_submission if state.element is None else submission_of(facts, state.element)
    if submission is not None and submission.kind == "slurm" and submission.job_id[:1].isdigit():
        if not state.active and state.cls != "done":
            task = "" if state.element is None else f"_{state.element - submission.offset}"
            rows = _history(desk, state, [submission.job_id + task], steps=True)
            steps = rows_of_life(rows, submission, state)
        wanted = [job for _, job, _ in dependencies(state.dependency)]
        if wanted:
            parents = {str(r.base_id): r.state for r in _history(desk, state, wanted)}
    playbook, problems = _playbook(desk)
    clues = gather(facts.run, state.attempt, state.element, limits=playbook.thresholds)
    found = diagnose(facts, state, clues, steps=steps, parents=parents, playbook=playbook)
    told = advice(facts.run)
    more = [*(("playbook", problem) for problem in problems), *([("warning", told)] if told else [])]
    return replace(found, facts=[*found.facts, *more])


def _playbook(desk: Desk) -> tuple[Playbook, list[str]]:
    """The site's active playbook, else the built-in one, and why it is not the newest selection. Nothing of it can stop a diagnosis."""
    if not (desk.root.activation / "policy" / "playbook").is_dir():
        return BUILTIN, []
    from hpc.plugins.policy import in_force

    applied = in_force(desk.root, "playbook")
    return applied.value or BUILTIN, [f"{p.message}; an older one is in force" for p in applied.problems]


def _history(desk: Desk, state: RunState, ids: list[str], *, steps: bool = False) -> list[JobRow]:
    try:
        return list(query.history(desk.asker.slurm(state.fleet), ids=ids, steps=steps, deadline_s=10).rows)
    except Refusal:
        return []


def estimate(desk: Desk, state: RunState) -> dict[str, Any] | None:
    """When a queued run may start: a band from similar jobs with how many they were, beside Slurm's own estimate. None for other runs."""
    if state.cls not in ("queued", "requeued") or state.kind != "slurm" or state.dead:
        return None
    row = next(
        (r for r in desk.asker.poll(state.fleet).queue if str(r.base_id) == state.job_id.partition("_")[0]), None
    )
    if row is None:
        return None
    folder = desk.root.user_state(desk.user)
    cache = folder / f"waits-{state.fleet or 'default'}-{row.partition}.json" if folder.is_dir() else None
    history, problem = recent_waits(desk.asker.slurm(state.fleet), row.partition, cache, time.time())
    found = band(history, nodes=row.nodes, limit_s=_seconds(row.time_limit))
    if found is not None:
        similar = f"{found.similar} similar jobs of {found.all_jobs} in {row.partition}, {DAYS} days"
        words = (
            f"after {span(found.low_s)} to {span(found.high_s)}, half of them within {span(found.mid_s)} ({similar})"
        )
    else:
        words = problem or f"too few similar jobs in {row.partition} in {DAYS} days to say"
    text = {"others began": words, "Slurm says": local(row.started_at) if row.started_at else "no estimate"}
    return {"band": found.as_json() if found else None, "slurm_estimate": row.started_at, "text": text}


def _seconds(limit: str) -> int | None:
    from hpc.spec.durations import parse_time

    try:
        return parse_time(limit)
    except Refusal:
        return None
