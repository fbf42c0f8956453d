"""Admission of a run that follows another one: derived again from the other run's package, and nothing else is let through.

A package that claims to follow a run is spared the quota of GPUs and starts another entry than its recipe's first. So the claim must hold: the parent
is the same owner's, its package is the one that was admitted, and spec and launch.json are what the rules of `followups` make of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tuneplane.contract.followups import BASELINE, CANDIDATE, CHECKPOINTS, EVAL, EXPORT, FOLLOWING
from tuneplane.contract.layout import RUN_ID, SEGMENT, RunPaths, StorageRoot
from tuneplane.record.files import read_json

from hpc.errors import Refusal, Refusals
from hpc.submit.followpack import load_parent, source_of, works
from hpc.submit.followups import ASKABLE, EVALUATOR, Parent, Source, baseline_run, derive, name_of

if TYPE_CHECKING:
    from hpc.catalog.recipes import Recipe
    from hpc.site.sitefile import Site


def action_of(launch: Mapping[str, Any]) -> str:
    """The action of a follow-up, "" for any other run. Raises Refusal E-SUBMIT-097 for a claim that has no form."""
    follows = launch.get("follows")
    if follows is None and "late" not in launch:
        return ""
    named = [follows.get(k) for k in ("action", "run_id", "exp")] if isinstance(follows, dict) else []
    if (
        len(named) != 3
        or named[0] not in FOLLOWING
        or not RUN_ID.match(str(named[1]))
        or not SEGMENT.match(str(named[2]))
    ):
        raise _no("names no run and action", "launch.follows", follows)
    return str(named[0])


def _no(message: str, field: str, found: Any = "", allowed: Any = "") -> Refusal:
    return Refusal(
        "E-SUBMIT-097", message, field=field, found=repr(found)[:200], allowed=repr(allowed)[:200] if allowed else ""
    )


def follow_refusals(
    root: StorageRoot, site: Site, run: RunPaths, document: Mapping[str, Any], launch: Mapping[str, Any], recipe: Recipe
) -> list[Refusal]:
    """What a follow-up's package says against what its parent's package gives; [] for any other run."""
    action = action_of(launch)
    if not action:
        return []
    follows = launch["follows"]
    try:
        parent = _admitted(root, site, root.run(run.owner, follows["exp"], follows["run_id"]))
        parent = replace(parent, asked=_asked(follows))
        source = _source(root, site, run.owner, parent, action, launch)
        baseline = _baseline(root, site, run.owner, parent, launch) if action == EVAL else None
    except (Refusal, Refusals) as exc:
        fault = exc.items[0] if isinstance(exc, Refusals) else exc
        return [
            fault if fault.code == "E-SUBMIT-097" else _no(f"{fault.code} {fault.message}", "launch.follows", follows)
        ]
    method = {EVAL: parent.evaluator, CHECKPOINTS: EVALUATOR}.get(action, recipe.id)
    if recipe.id != method:
        return [_no("is no evaluation of these suites", "spec.recipe", recipe.id, method)]
    if parent.document["metadata"]["name"] != parent.run.exp or run.exp != name_of(parent.run.exp, action):
        return [_no("stands under another experiment", "spec.metadata.name", run.exp, name_of(parent.run.exp, action))]
    work = works(root, run)[site.admission.mode == "enforced"]
    return list(
        _differences(parent, action, source, None if action == EXPORT else recipe, work, baseline, document, launch)
    )


def _asked(follows: Mapping[str, Any]) -> Mapping[str, Any]:
    asked = follows.get("asked", {})
    if not isinstance(asked, dict) or set(asked) - set(ASKABLE):
        raise _no("asks for what it may not", "launch.follows.asked", asked, ASKABLE)
    return asked


def _differences(
    parent: Parent, action: str, source: Source, evaluator: Recipe | None, work: str, baseline: Source | None, document: Mapping[str, Any],
    launch: Mapping[str, Any],
) -> Iterator[Refusal]:  # fmt: skip
    from hpc.spec.jobspec import parse

    want = derive(parent, action, source, evaluator, work, baseline)
    if parse(want.document).normalised() != document:
        yield _no("is not the spec that the parent gives", "spec", document, want.document)
    inputs = {name: value for name, value in launch.get("inputs", {}).items() if name != BASELINE}
    for key, found in (("follows", launch["follows"]), ("late", launch.get("late")), ("inputs", inputs)):
        if found != want.given[key]:
            yield _no("is not what the parent gives", f"launch.{key}", found, want.given[key])
    for key in ("profile", "pin_resource", "overrides", "env", "fleet", "config"):
        if launch.get(key) != parent.launch.get(key):
            yield _no("is not the parent's", f"launch.{key}", launch.get(key), parent.launch.get(key))


def _admitted(root: StorageRoot, site: Site, run: RunPaths) -> Parent:
    """A run whose package is the one that was admitted. Raises Refusal E-SUBMIT-097."""
    parent = load_parent(root, run)
    place = root.admitted / run.run_id / "admission.json" if site.admission.mode == "enforced" else run.admission
    try:
        said = read_json(place)
    except (OSError, ValueError) as exc:
        raise _no(f"{run.run_id} has no admission: {exc}", "launch.follows", run.run_id) from exc
    if said.get("package_digest") != parent.package_digest or said.get("owner") != run.owner:
        raise _no(
            f"{run.run_id} was admitted as another package",
            "launch.follows",
            said.get("package_digest"),
            parent.package_digest,
        )
    return parent


def _source(
    root: StorageRoot, site: Site, owner: str, parent: Parent, action: str, launch: Mapping[str, Any]
) -> Source:
    """The run whose artefact is worked on: the parent or its checkpoints, or an export of the parent."""
    if action == CHECKPOINTS:
        if not parent.document["spec"].get("evaluation", {}).get("on_checkpoint"):
            raise _no("evaluates checkpoints of a run that did not ask for it", "launch.follows", parent.run.run_id)
        return parent.checkpoints
    named = launch.get("late", {}).get(CANDIDATE) or {}
    if named.get("run_id") == parent.run.run_id:
        return parent.final
    if action == EXPORT or not RUN_ID.match(str(named.get("run_id"))):
        raise _no("works on another run than it follows", "launch.late", named, parent.run.run_id)
    export = _admitted(root, site, root.run(owner, name_of(parent.run.exp, EXPORT), named["run_id"]))
    follows = export.launch.get("follows") or {}
    if (follows.get("run_id"), follows.get("action")) != (parent.run.run_id, EXPORT):
        raise _no("works on what is no export of the run that it follows", "launch.late", named, parent.run.run_id)
    return Source(export.run, EXPORT, export.package_digest)


def _baseline(root: StorageRoot, site: Site, owner: str, parent: Parent, launch: Mapping[str, Any]) -> Source | None:
    """The run that the baseline names, where the package says it stands; its package is compared like every other."""
    run_id = baseline_run(str(parent.evaluation.get("baseline", "")))
    if not run_id:
        return None
    exp = str((launch.get("late", {}).get(BASELINE) or {}).get("exp"))
    if not SEGMENT.match(exp):
        raise _no("does not say where the baseline's run stands", "launch.late", exp)
    return source_of(root.run(owner, exp, run_id), "final")
