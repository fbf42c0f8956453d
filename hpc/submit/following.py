"""Packs, admits and submits what follows a run. The rules are in `followups`; what follows a run is found again by `followlist`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tuneplane.contract.checkpointed import Evaluations
from tuneplane.contract.checkpointed import steps_of as checkpointed_steps
from tuneplane.contract.followups import CHECKPOINTS, EVAL, EXPORT
from tuneplane.contract.layout import RunPaths, StorageRoot
from tuneplane.record.files import read_json

from hpc.errors import Refusal, Refusals
from hpc.submit import checkpointed, package
from hpc.submit.dispatch import Clock, Submitted, slurm_of
from hpc.submit.followlist import children, remember
from hpc.submit.followpack import load_parent, prepare_child, source_of
from hpc.submit.followups import Parent, Source, hand_refusals, name_of, wanted
from hpc.submit.pieces import dispatch_whole
from hpc.submit.prepare import Around, Prepared
from hpc.submit.usage import Queued, holds, open_submission, queued_jobs


@dataclass(frozen=True)
class Planned:
    """A follow-up that is packed and admitted: what it does, its submission, and the run whose job must have ended well before, or lets it go."""

    action: str
    prepared: Prepared
    source: RunPaths


@dataclass(frozen=True)
class Followed:
    """A follow-up after its submission; `job_id` is "" where it could not be submitted, and `fault` says why."""

    action: str
    run: RunPaths
    after: str
    job_id: str
    fault: str = ""

    def as_json(self) -> dict[str, Any]:
        named = {"action": self.action, "run_id": self.run.run_id, "exp": self.run.exp, "after": self.after}
        return {**named, "job_id": self.job_id or None, "fault": self.fault or None}


def plan_all(around: Around, run: RunPaths, prepared: Prepared, clock: Clock, queued: Queued) -> list[Planned]:
    """Pack and admit everything that follows a run whose package is written and admitted. Raises Refusal(s); then nothing of it is left."""
    out: list[Planned] = []
    beside = [CHECKPOINTS] if checkpointed.asked(prepared.spec, prepared.recipe) else []
    actions = beside + wanted(prepared.spec, prepared.recipe)
    if not actions:
        return out
    parent = load_parent(around.root, run)
    source = parent.final
    try:
        for action in actions:
            of = parent.checkpoints if action == CHECKPOINTS else source
            planned = plan_one(around, parent, action, of, clock, queued)
            out.append(planned)
            if action == EXPORT:
                source = source_of(planned.prepared.run, EXPORT)
    except BaseException:
        forget_all(out)
        raise
    return out


def plan_one(around: Around, parent: Parent, action: str, source: Source, clock: Clock, queued: Queued) -> Planned:
    """Pack and admit one follow-up. Raises Refusal(s); then nothing of it is left."""
    from hpc.submit.pipeline import admit, ensure_owner_folder, new_run

    exp = name_of(parent.run.exp, action)
    ensure_owner_folder(around, exp)
    run = new_run(around.root, around.user, exp, clock)
    prepared = prepare_child(around, parent, action, source, run)
    limit = int(around.site.packages.max_mb) << 20
    package.write_package(run, prepared.files, prepared.records, max_bytes=limit, created_at=clock.now())
    planned = Planned(action, prepared, source.run)
    try:
        admit(around, run, clock, queued)
        remember(parent.run, action, run, clock.now())
    except BaseException:
        forget_all([planned])
        raise
    return planned


def by_hand(
    around: Around,
    run: RunPaths,
    action: str,
    asked: Mapping[str, Any],
    *,
    clock: Clock,
    sleep: Callable[[float], None],
) -> Followed:
    """An export or an evaluation of a run that is there, in the way of those that were asked for with it. Raises Refusal(s).

    An evaluation takes the run's newest export where one is done or on its way, else what the training left.
    """
    from hpc.catalog.shelf import Catalogue
    from hpc.spec.jobspec import parse
    from hpc.store.locks import held

    given = read_json(run.launch).get("follows")
    origin = around.root.run(run.owner, given["exp"], given["run_id"]) if given else run
    parent = load_parent(around.root, origin, asked)
    spec = parse(parent.document)
    recipe = Catalogue.load(around.root).get(spec.spec.recipe.name, spec.spec.recipe.version)
    if faults := hand_refusals(spec, recipe, action):
        raise Refusals(faults)
    fleet = around.site.fleets[parent.launch["fleet"]]
    slurm = slurm_of(fleet, around.site) if fleet.kind == "slurm" else None
    with held(around.root.user_state(around.user) / f"submit-{name_of(origin.exp, action)}.lock", timeout_s=0):
        queued = queued_jobs(slurm, around.user) if slurm else None
        source = _newest_source(around.root, parent, action, queued)
        behind_source(source.run, queued)
        planned = plan_one(around, parent, action, source, clock, queued)
        try:
            done = submit_one(around, planned.prepared, planned.source, clock=clock, sleep=sleep)
        except (Refusal, Refusals):
            if not any(planned.prepared.run.submissions.iterdir()):
                forget_all([planned])
            raise
    return Followed(action, planned.prepared.run, source.run.run_id, done.job_id)


def _newest_source(root: StorageRoot, parent: Parent, action: str, queued: Queued) -> Source:
    exports = [child for found, child in children(root, parent.run) if found == EXPORT] if action == EVAL else []
    usable = [child for child in exports if child.report.exists() or holds(child, queued)]
    return source_of(usable[-1], EXPORT) if usable else parent.final


def forget_all(planned: Sequence[Planned]) -> None:
    """Remove follow-ups that were certainly never handed to a fleet."""
    for one in planned:
        run = one.prepared.run
        hidden = run.root.with_name(f".{run.root.name}.refused")
        os.rename(run.root, hidden)
        package.discard(hidden)


def evaluations(planned: Sequence[Planned]) -> Evaluations | None:
    """What evaluates the run's checkpoints; the run's own script lets it go."""
    for one in planned:
        if one.action == CHECKPOINTS:
            return Evaluations(one.prepared.run, checkpointed_steps(one.prepared.records["launch.json"]))
    return None


def submit_all(
    around: Around, planned: Sequence[Planned], *, clock: Clock, sleep: Callable[[float], None]
) -> list[Followed]:
    """Submit packed follow-ups, each behind the job that it waits for. What cannot be submitted is said, and the rest behind it is not tried."""
    out: list[Followed] = []
    fault = ""
    for one in planned:
        run = one.prepared.run
        if fault:
            out.append(Followed(one.action, run, one.source.run_id, "", fault))
            continue
        try:
            done = submit_one(around, one.prepared, one.source, clock=clock, sleep=sleep)
        except (Refusal, Refusals) as exc:
            said = str(exc.items[0]) if isinstance(exc, Refusals) else str(exc)
            out.append(Followed(one.action, run, one.source.run_id, "", said))
            fault = said if one.action != CHECKPOINTS else ""  # nothing waits for the evaluations of checkpoints
        else:
            out.append(Followed(one.action, run, one.source.run_id, done.job_id))
    return out


def submit_one(
    around: Around,
    prepared: Prepared,
    source: RunPaths,
    *,
    clock: Clock,
    sleep: Callable[[float], None],
    first: int = 0,
) -> Submitted:
    """Submit a follow-up behind its source's job. Raises Refusal."""
    fleet = around.site.fleets[prepared.fleet]
    slurm = slurm_of(fleet, around.site) if fleet.kind == "slurm" else None
    waiting = behind(prepared, source)
    return dispatch_whole(around, waiting, first=first, clock=clock, sleep=sleep, slurm=slurm)


def behind(prepared: Prepared, source: RunPaths, queued: Queued = None) -> Prepared:
    """The submission with its dependency: on the newest job of `source`, none where that ended well. Evaluations of checkpoints are held as
    long as `source` has a job that lets them go, and need nobody else.

    `queued`: what Slurm has of the user, where it was asked. Raises Refusal E-SUBMIT-063 where the source can no longer end well as it is.
    """
    if checkpointed_steps(prepared.records["launch.json"]):
        held = holds(source, queued) and not source.report.exists()
        return waiting_for(prepared, {"run_id": source.run_id, "held": True}) if held else prepared
    after = behind_source(source, queued)
    return waiting_for(prepared, after) if after else prepared


def behind_source(source: RunPaths, queued: Queued = None) -> dict[str, Any]:
    """`{run_id, job_id, …}` of the job that must end well first, {} where it did. Raises Refusal E-SUBMIT-063 as `behind`."""
    record = open_submission(source)
    if source.report.exists():
        return {}
    if record is None or not holds(source, queued):
        message = f"{source.run_id} has no job that could end well"
        hint = f"`tp job retry {source.run_id}` submits it again with what follows it"
        raise Refusal("E-SUBMIT-063", message, field="follows", found=source.run_id, hint=hint)
    return {key: record[key] for key in ("job_id", "pid", "pid_start") if key in record} | {"run_id": source.run_id}


def waiting_for(prepared: Prepared, after: Mapping[str, Any]) -> Prepared:
    """The submission behind the job that `after` names: Slurm holds it back, and ends it where the job fails (P15). One that is `held` waits for
    that job's own word."""
    options = dict(prepared.options)
    if after.get("held"):
        options["hold"] = True
    elif not str(after["job_id"]).startswith("local-"):
        options |= {"dependency": f"afterok:{after['job_id']}", "kill_on_invalid_dep": True}
    return replace(prepared, options=options, after=dict(after))
