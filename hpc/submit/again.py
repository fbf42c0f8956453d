"""Retry and resume: the same run and package, a new submission whose first attempt is the next number."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from tuneplane.contract.layout import RunPaths, StorageRoot
from tuneplane.record.files import read_json

from hpc.errors import Refusal, Refusals
from hpc.submit import following, followlist
from hpc.submit.dispatch import Clock, Submitted, slurm_of
from hpc.submit.pieces import dispatch_whole, next_first, unfinished
from hpc.submit.prepare import Around, Prepared
from hpc.submit.usage import holds, newest_number, queued_jobs, usage_of

if TYPE_CHECKING:
    from hpc.site.sitefile import Site


def load_prepared(root: StorageRoot, site: Site, run: RunPaths) -> Prepared:
    """The submission of an existing run, from its own package and today's catalogue. Raises Refusal(s)."""
    from hpc.catalog.runtimes import Runtimes
    from hpc.catalog.shelf import Catalogue
    from hpc.spec.jobspec import parse
    from hpc.submit.admission import read_package
    from hpc.submit.kernelzip import find_kernels

    document, launch, _, _ = read_package(run)
    spec, recorded = parse(document), launch["runtime"]
    runtime = Runtimes.load(root).get(recorded["runtime_id"]) if recorded.get("container") else None
    if runtime is not None and runtime.sha256 != recorded["sha256"]:
        raise Refusal(
            "E-SUBMIT-076",
            "not the image of the first attempt",
            field="launch.runtime",
            found=runtime.sha256,
            allowed=recorded["sha256"],
        )
    work = root.admitted / run.run_id / "work" if site.admission.mode == "enforced" else run.work
    records = {"jobspec.json": document, "recipe.json": read_json(run.recipe), "launch.json": launch}
    profiles = tuple(site.profiles[p] for p in launch["profiles"])
    recipe = Catalogue.load(root).get(spec.spec.recipe.name, spec.spec.recipe.version)
    return Prepared(
        run, spec, recipe, runtime, find_kernels(root), launch["fleet"], launch["options"], profiles, [], records, work,
        evaluations=followlist.evaluations(run),
    )  # fmt: skip


def resubmit(
    root: StorageRoot,
    site: Site,
    run: RunPaths,
    *,
    user: str,
    uid: int,
    resume: bool,
    clock: Clock,
    sleep: Callable[[float], None],
) -> Submitted:
    """Submit the next attempt, of an array those elements that are not done.

    `resume` needs a complete checkpoint; without it (retry) training starts where its checkpoints are, or anew.

    Raises Refusal E-SUBMIT-090 while the run is queued or running, E-SUBMIT-091 without a checkpoint to resume from; Refusals E-SUBMIT-072
    and -073 where the quota has no room for it now.
    """
    from hpc.spec.arrays import parse_array
    from hpc.store.locks import held
    from hpc.submit.admission import quota_refusals

    if run.owner != user:
        raise Refusal("E-SUBMIT-092", f"{run.run_id} is {run.owner}'s", field=run.run_id, found=user, allowed=run.owner)
    # Of two commands at once the second looks when the first has recorded what it did.
    with held(root.user_state(user) / f"submit-{run.exp}.lock", timeout_s=0):
        prepared = load_prepared(root, site, run)
        fleet = site.fleets[prepared.fleet]
        slurm = slurm_of(fleet, site) if fleet.kind == "slurm" else None
        queued = queued_jobs(slurm, user) if slurm else None
        if holds(run, queued):
            raise Refusal("E-SUBMIT-090", f"{run.run_id} has not ended", field=run.run_id)
        source = followlist.source_run(root, run, prepared.records["launch.json"])
        if source is not None:
            prepared = following.behind(prepared, source, queued)
        local = any(f.kind == "local" for f in site.fleets.values())
        used, waits = usage_of(root, user, queued, local=local), bool(prepared.after)
        if faults := quota_refusals(prepared.spec, site, user, used, waits=waits):
            raise Refusals(faults)
        if resume and not any((part.checkpoints / "latest.json").is_file() for part in _parts(run)):
            raise Refusal("E-SUBMIT-091", f"{run.run_id} has no complete checkpoint", field=run.run_id)
        for part in _parts(run):
            if (part.root / "stop_requested").exists():
                number = newest_number(part, "attempts") or 0
                os.rename(part.root / "stop_requested", part.root / f"stop_requested.{number}")
        around = Around(root, site, user, uid)
        text = str(prepared.options.get("array") or "")
        indices = unfinished(run, parse_array(text)) if text else None
        first = next_first(run) if text else next_number(run)
        return dispatch_whole(around, prepared, first=first, clock=clock, sleep=sleep, slurm=slurm, indices=indices)


def resubmit_followups(
    root: StorageRoot, site: Site, run: RunPaths, *, user: str, uid: int, clock: Clock, sleep: Callable[[float], None]
) -> list[following.Followed]:
    """Submit what follows a run again, behind its new job: what is done or still waits is left alone. Says what could not be submitted."""
    out: list[following.Followed] = []
    for action, child in followlist.children(root, run):
        if child.report.exists():
            continue
        try:
            done = resubmit(root, site, child, user=user, uid=uid, resume=False, clock=clock, sleep=sleep)
        except (Refusal, Refusals) as exc:
            fault = exc.items[0] if isinstance(exc, Refusals) else exc
            if fault.code not in ("E-SUBMIT-090", "E-SWEEP-011"):  # it waits or goes on; every element of it is done
                out.append(following.Followed(action, child, run.run_id, "", str(fault)))
        else:
            out.append(following.Followed(action, child, run.run_id, done.job_id))
    return out


def _parts(run: RunPaths) -> list[RunPaths]:
    """The run, and the elements of its array."""
    try:
        names = sorted(int(n) for n in os.listdir(run.array) if n.isascii() and n.isdecimal())
    except FileNotFoundError:
        names = []
    return [run, *map(run.element, names)]


def next_number(run: RunPaths) -> int:
    """The first attempt of a new submission. A number is used once: one whose script was frozen and then refused is left out."""
    return 1 + max(newest_number(run, folder) or 0 for folder in ("attempts", "submissions", "batch"))
