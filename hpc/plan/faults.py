"""What would refuse a submission, all of it at once: everything that `tp submit --dry-run` says, and what it comes to only later. Reads only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import tuneplane

from hpc.errors import Refusal, Refusals
from hpc.submit import pipeline
from hpc.submit.admission import quota_refusals
from hpc.submit.batchscript import Script
from hpc.submit.dispatch import Clock, slurm_of
from hpc.submit.flags import Flags
from hpc.submit.followups import sections
from hpc.submit.preflight import check_array, check_dependency
from hpc.submit.prepare import InProject, Prepared
from hpc.submit.usage import queued_jobs, usage_of

if TYPE_CHECKING:
    from hpc.project.project import Experiment
    from hpc.slurm.commands import Slurm

DIRTY: Final = "E-SUBMIT-036"


@dataclass
class Judged:
    """What a submission would consist of, as far as it can be prepared, and what refuses it. `unasked`: what could not be looked at, and why."""

    prepared: Prepared | None = None
    script: Script | None = None
    faults: list[Refusal] = field(default_factory=list)
    unasked: list[str] = field(default_factory=list)

    def note(self, faults: Iterable[Refusal]) -> None:
        """Keep faults; the same code at the same field once."""
        known = {(f.code, f.field) for f in self.faults}
        for fault in faults:
            if (fault.code, fault.field) not in known:
                known.add((fault.code, fault.field))
                self.faults.append(fault)


def judge(around: InProject, experiment: Experiment, flags: Flags, clock: Clock) -> Judged:
    """Prepare the submission without writing it, and look at everything that would refuse it."""
    out = Judged()
    _prepare(out, around, experiment, flags, clock)
    if out.prepared is None:
        out.note(_checked(around, experiment, flags))
        return out
    fleet = around.site.fleets[out.prepared.fleet]
    slurm = slurm_of(fleet, around.site) if fleet.kind == "slurm" else None
    if slurm is not None:
        options = out.prepared.options
        for what, ask in (
            ("the dependency", lambda: check_dependency(slurm, around.user, options)),
            ("the site's array limit", lambda: check_array(slurm, options)),
        ):
            _asked(out, what, ask)
    _asked(out, "your quota", lambda: _quota(around, out, slurm))
    return out


def _prepare(out: Judged, around: InProject, experiment: Experiment, flags: Flags, clock: Clock) -> None:
    """The preview, and its faults. An uncommitted change hides what is wrong beside it, so then it is asked again as if it were allowed."""
    try:
        out.prepared, out.script = pipeline.preview(around, experiment, flags, clock)
    except Refusal as fault:
        out.note([fault])
        if fault.code == DIRTY and not flags.allow_dirty:
            _prepare(out, around, experiment, replace(flags, allow_dirty=True), clock)
    except Refusals as several:
        out.note(several.items)


def _asked(out: Judged, what: str, ask: Callable[[], list[Refusal]]) -> None:
    try:
        out.note(ask())
    except Refusal as fault:
        out.unasked.append(f"{what}: {fault.message}")


def _quota(around: InProject, out: Judged, slurm: Slurm | None) -> list[Refusal]:
    assert out.prepared is not None
    local = any(f.kind == "local" for f in around.site.fleets.values())
    queued = queued_jobs(slurm, around.user) if slurm is not None else None
    used = usage_of(around.root, around.user, queued, local=local)
    return quota_refusals(out.prepared.spec, around.site, around.user, used)


def _checked(around: InProject, experiment: Experiment, flags: Flags) -> list[Refusal]:
    """What `tp validate` says, and the hyperparameters with those of the command: each part by itself, so that no fault hides another."""
    from hpc.catalog.shelf import Catalogue
    from hpc.project.check import Checked, check
    from hpc.project.config import load_config
    from hpc.spec.settings import parse_settings

    kept = Checked(experiment)
    catalogue = kept.attempt(lambda: Catalogue.load(around.root))
    if catalogue is None:
        return kept.faults
    found = check(
        around.project, experiment, catalogue, core_version=tuneplane.__version__, sections=sections, spec_faults=lambda *_: []
    )  # fmt: skip

    def resolve() -> None:
        recipe, version = catalogue.get(found.method), found.framework_version
        config = load_config(experiment.path)
        recipe.resolve({**recipe.configured(config, version), **parse_settings(list(flags.settings))}, version)

    if found.method and found.framework_version:
        kept.attempt(resolve)
    return [*found.faults, *kept.faults]
