"""How early a job is warned before its time limit: as the spec says, else as early as the saves of its predecessors need, else as the site says."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from tuneplane.contract.layout import StorageRoot
from tuneplane.contract.leads import save_seconds, suggested_lead_s
from tuneplane.record.files import read_object

from hpc.spec.durations import parse_time
from hpc.submit.usage import recent_runs

if TYPE_CHECKING:
    from hpc.spec.jobspec import JobSpec

MOST_RUNS: Final = 20
"""The experiment's newest runs that are looked at."""
ALIKE: Final = 5
"""Runs of the same kind whose saves count."""


def measured_lead(
    root: StorageRoot, owner: str, exp: str, spec: JobSpec, options: Mapping[str, Any], lead_s: int
) -> tuple[dict[str, Any], list[str]]:
    """(options, what to tell): with an earlier warning where saves of the experiment's runs of the same shape took too long for `lead_s` seconds.

    A spec that says `signal` keeps its word, and the warning never comes in the first half of the job's time.
    """
    if options.get("signal") or not (runs := recent_runs(root, owner, exp, since=0.0)):
        return dict(options), []
    newest = sorted(runs, key=lambda run: run.root.stat().st_mtime, reverse=True)[:MOST_RUNS]
    kind = _kind(spec.normalised())
    alike = islice((run for run in newest if _kind(read_object(run.jobspec) or {}) == kind), ALIKE)
    seconds = [s for run in alike for s in save_seconds(run)]
    if max(seconds, default=0.0) < lead_s:
        return dict(options), []
    limit = parse_time(str(options["time"])) if options.get("time") else None
    wanted = suggested_lead_s(seconds) if limit is None else min(suggested_lead_s(seconds), limit // 2)
    if wanted <= lead_s:
        return dict(options), []
    told = f"the warning comes {wanted} s before the end, since saves of earlier runs took up to {max(seconds):.0f} s (--signal says otherwise)"
    return {**options, "signal": f"USR2@{wanted}"}, [told]


def _kind(spec: Mapping[str, Any]) -> Any:
    """What the time of a save follows from, as far as the spec says it."""
    body = spec.get("spec") or {}
    given = body.get("hyperparams") or {}
    named = ("zero_stage", "lora_rank", "async_save")
    return body.get("recipe", {}).get("name"), body.get("model"), body.get("resources"), [given.get(n) for n in named]
