"""`tp submit`, step by step: prepare, pack, admit, freeze the script, submit exactly once, record. Nothing flows backwards."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuneplane.contract.checkpointed import Evaluations
from tuneplane.contract.followups import CHECKPOINTS
from tuneplane.contract.layout import RunPaths, StorageRoot
from tuneplane.record.digest import digest_json
from tuneplane.record.files import read_json, write_json_new
from tuneplane.record.times import parse_utc

from hpc.errors import Refusal, Refusals
from hpc.slurm.commands import Slurm
from hpc.submit import admission, checkpointed, enforce, following, package
from hpc.submit.ahead import Ahead
from hpc.submit.batchscript import Script, make_script
from hpc.submit.data import make_ready
from hpc.submit.dispatch import Clock, Submitted, slurm_of
from hpc.submit.followpack import check_children
from hpc.submit.followups import name_of
from hpc.submit.intents import IntentBook
from hpc.submit.pieces import Piece, dispatch_whole
from hpc.submit.prepare import Around, InProject, Prepared, prepare
from hpc.submit.usage import Queued, newest_number, open_submission, queued_jobs, recent_runs, usage_of

if TYPE_CHECKING:
    from hpc.project.project import Experiment
    from hpc.submit.flags import Flags

REPEAT_S = 60
FOLDER_AGE_S = 3600
"""A run folder that did not change for so long holds no submission of the last REPEAT_S, slow sbatch and two clocks included."""


def new_run(root: StorageRoot, owner: str, exp: str, clock: Clock) -> RunPaths:
    return root.run(owner, exp, f"run-{clock.token(4)}")


def preview(around: InProject, experiment: Experiment, flags: Flags, clock: Clock) -> tuple[Prepared, Script]:
    """What would be submitted, and its script. Writes nothing below the storage root but the user's digest cache."""
    run = new_run(around.root, around.user, experiment.name.rsplit("/", 1)[-1], clock)
    prepared = prepare(around, experiment, flags, run)
    check_children(around, prepared, experiment.path)
    if wanted := checkpointed.asked(prepared.spec, prepared.recipe):
        beside = new_run(around.root, around.user, name_of(run.exp, CHECKPOINTS), clock)
        steps = checkpointed.steps_of(wanted.model_dump(), prepared.records["launch.json"]["hyperparams"])
        prepared = replace(prepared, evaluations=Evaluations(beside, tuple(steps)))
    fleet = around.site.fleets[prepared.fleet]
    return prepared, make_script(
        around.root, prepared, fleet, Piece(0), nonce="0" * 16, kind=fleet.kind, cluster=fleet.cluster
    )


def _refuse_repeat(around: InProject, prepared: Prepared, clock: Clock) -> None:
    """The same spec of the same experiment a moment ago is a slip of the finger, not a wish."""
    mine, now = digest_json(prepared.records["jobspec.json"]), parse_utc(clock.now())
    for run in recent_runs(around.root, around.user, prepared.run.exp, since=now.timestamp() - FOLDER_AGE_S):
        if (record := open_submission(run)) is None:
            continue
        try:
            age = (now - parse_utc(record["submitted_at"])).total_seconds()
        except (KeyError, TypeError, ValueError):
            continue  # a damaged record says nothing about another run
        if abs(age) < REPEAT_S and record.get("spec_digest") == mine:
            raise Refusal(
                "E-SUBMIT-052",
                f"the same spec was submitted {max(age, 0):.0f} s ago as {run.run_id}",
                field=prepared.run.exp,
                found=run.run_id,
                allowed="another spec, or --again",
            )


def admit(around: Around, run: RunPaths, clock: Clock, queued: Queued) -> dict[str, Any]:
    """Advisory admission under the user's own uid, or the service user's. Raises Refusal(s); then no admission.json is there."""
    if around.site.admission.mode == "enforced":
        enforce.ask_service(around.site, run, around.root, shutil.which("tp") or "tp")
        value = read_json(around.root.admitted / run.run_id / "admission.json")
        assert isinstance(value, dict)
        return value
    local = any(f.kind == "local" for f in around.site.fleets.values())
    body = admission.judge(
        around.root, around.site, run, usage=lambda owner: usage_of(around.root, owner, queued, local=local)
    )
    record = {**body, "mode": "advisory", "admitted_at": clock.now()}
    write_json_new(run.admission, record)
    return record


def ensure_owner_folder(around: Around, exp: str) -> None:
    """The owner's folders must be the owner's; the experiment's is made in them. Raises Refusal E-SITE-*, E-STORE-*."""
    from hpc.site.members import ensure_owner
    from hpc.site.users import User
    from hpc.store.folders import make_folder

    ensure_owner(around.root, User(around.user, around.uid, os.getgid()), site=around.site)
    make_folder(around.root.owner_runs(around.user) / exp, 0o755, anchor=around.root.path)


def submit(
    around: InProject,
    experiment: Experiment,
    flags: Flags,
    *,
    clock: Clock,
    sleep: Callable[[float], None],
    again: bool = False,
) -> Submitted:
    """Submit an experiment once. Raises Refusal(s); a refusal before sbatch leaves no run, one after it leaves the run with its record."""
    from hpc.store.locks import held

    exp = experiment.name.rsplit("/", 1)[-1]
    state = around.root.user_state(around.user)
    ensure_owner_folder(around, exp)
    with held(state / f"submit-{exp}.lock", timeout_s=0):
        run = new_run(around.root, around.user, exp, clock)
        prepared = prepare(around, experiment, flags, run)
        if not again:
            _refuse_repeat(around, prepared, clock)
        make_ready(around, prepared.records["launch.json"], clock.now())
        fleet = around.site.fleets[prepared.fleet]
        slurm = slurm_of(fleet, around.site) if fleet.kind == "slurm" else None
        queue = Ahead(lambda: queued_jobs(slurm, around.user) if slurm else None)
        packed = package.write_package(
            run,
            prepared.files,
            prepared.records,
            max_bytes=int(around.site.packages.max_mb) << 20,
            created_at=clock.now(),
        )
        try:
            if slurm is not None:
                _check_with_slurm(slurm, around.user, prepared)
            admit(around, run, clock, queue.answer())
            planned = following.plan_all(around, run, prepared, clock, queue.answer())
            prepared = replace(prepared, evaluations=following.evaluations(planned))
        except BaseException:
            _forget(packed.run, state)
            raise
        try:
            done = dispatch_whole(around, prepared, first=0, clock=clock, sleep=sleep, slurm=slurm)
        except BaseException:
            _forget(packed.run, state)
            if not run.root.exists():
                following.forget_all(planned)
            raise
        done = replace(done, followed=tuple(following.submit_all(around, planned, clock=clock, sleep=sleep)))
        return replace(done, warnings=(*done.warnings, *_complete_lock(experiment, prepared)))


def _complete_lock(experiment: Experiment, prepared: Prepared) -> list[str]:
    """Write what the lock of inputs lacked, now that the job is queued. The job does not depend on it: a fault is a word, no refusal."""
    from hpc.data.lock import LOCK_NAME, write_lock

    if not prepared.inputs_lock.inputs:
        return []
    try:
        written = write_lock(experiment.path, prepared.inputs_lock)
    except Refusal as fault:
        return [f"{LOCK_NAME} was not written: {fault}"]
    return [f"{experiment.rel}/{LOCK_NAME} was completed: commit it"] if written else []


def _check_with_slurm(slurm: Slurm, user: str, prepared: Prepared) -> None:
    """What Slurm would take and never start. Raises Refusals E-SUBMIT-063, -064."""
    from hpc.submit.preflight import check_array, check_dependency

    faults = check_dependency(slurm, user, prepared.options)
    if "variants.json" not in prepared.records:  # an array of the user's own numbers is not renumbered for them
        faults += check_array(slurm, prepared.options)
    if wanted := checkpointed.asked(prepared.spec, prepared.recipe):
        steps = checkpointed.steps_of(wanted.model_dump(), prepared.records["launch.json"]["hyperparams"])
        faults += check_array(slurm, {"array": checkpointed.array_of(steps)})
    if faults:
        raise Refusals(faults)


def _forget(run: RunPaths, state: Path) -> None:
    """Remove a run that was certainly never handed to a fleet; one with an open or settled-as-submitted intent stays."""
    try:
        refused = IntentBook(state / "intents").outcome(run.run_id, 0) == "refused"
    except FileNotFoundError:
        refused = newest_number(run, "submissions") is None
    if refused:
        hidden = run.root.with_name(f".{run.root.name}.refused")
        os.rename(run.root, hidden)
        package.discard(hidden)
