"""The package of a follow-up, made from its parent's package and from what the site has today. Reads only; the rules are in `followups`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tuneplane.contract.followups import ARTEFACTS, CHECKPOINTS, EVAL
from tuneplane.contract.layout import RunPaths, StorageRoot
from tuneplane.record.files import read_json

from hpc.errors import Refusal, Refusals
from hpc.submit import admission, checkpointed, launchplan
from hpc.submit.followups import EVALUATOR, Parent, Source, baseline_model, baseline_run, derive, wanted
from hpc.submit.hub import read_pins
from hpc.submit.inputs import DigestCache, resolve_inputs
from hpc.submit.kernelzip import find_kernels
from hpc.submit.plugins import FOLDER as PLUGINS
from hpc.submit.plugins import RECORD, locked_record
from hpc.submit.prepare import Around, Prepared, runtime_record
from hpc.submit.usage import owner_runs

if TYPE_CHECKING:
    from hpc.catalog.recipes import Recipe

BASELINE_FIELD: Final = "spec.evaluation.baseline"
NOT_PACKED: Final = "sha256:" + "0" * 64
"""Stands for the digest of a package that is not written."""


def works(root: StorageRoot, run: RunPaths) -> tuple[str, str]:
    """Where a run's job may find its package: the owner's, or the service user's copy."""
    return str(run.work), str(root.admitted / run.run_id / "work")


def load_parent(root: StorageRoot, run: RunPaths, asked: Mapping[str, Any] | None = None) -> Parent:
    """A run by its package, every byte of it compared with its list. Raises Refusal(s) E-SUBMIT-071."""
    document, launch, digest, _ = admission.read_package(run)
    return Parent(run, document, launch, digest, works(root, run), dict(asked or {}), packs_of(run))


def packs_of(run: RunPaths) -> tuple[str, ...]:
    """Ids of the benchmark packs that a package carries, by the record that was compared with its list."""
    record = run.work / ".tuneplane" / RECORD
    return _packs(read_json(record) if record.is_file() else None)


def _packs(record: Mapping[str, Any] | None) -> tuple[str, ...]:
    rows = record["plugins"] if record else []
    return tuple(row["id"] for row in rows if row["facts"]["manifest"]["capability"] == "benchmark")


def source_of(run: RunPaths, artefact: str) -> Source:
    """Raises Refusal(s) E-SUBMIT-071 for a package that is not what its list says."""
    return Source(run, artefact, admission.read_package(run)[2])


def check_children(around: Around, prepared: Prepared, experiment: Path) -> None:
    """What packing the follow-ups of a submission would refuse, before its own package is written. Reads only; raises Refusal(s)."""
    records, run = prepared.records, prepared.run
    parent = Parent(
        run,
        records["jobspec.json"],
        records["launch.json"],
        NOT_PACKED,
        works(around.root, run),
        packs=_packs(records.get(RECORD)),
        sources=experiment,
    )
    beside = [CHECKPOINTS] if checkpointed.asked(prepared.spec, prepared.recipe) else []
    for action in beside + wanted(prepared.spec, prepared.recipe):
        _drafted(around, parent, action, parent.checkpoints if action == CHECKPOINTS else parent.final, run)


def prepare_child(around: Around, parent: Parent, action: str, source: Source, run: RunPaths) -> Prepared:
    """The submission of a follow-up, made from the parent's package. Reads only; raises Refusal(s)."""
    drafted = _drafted(around, parent, action, source, run)
    files, records = _contents(parent.run, drafted.recipe, {p.id for p in drafted.spec.spec.plugins})
    return replace(drafted, files=files, records=records | drafted.records)


def _drafted(around: Around, parent: Parent, action: str, source: Source, run: RunPaths) -> Prepared:
    """A follow-up without what it takes from the parent's package. Reads only; raises Refusal(s)."""
    from hpc.catalog.runtimes import Runtimes
    from hpc.catalog.shelf import Catalogue
    from hpc.spec.jobspec import parse

    root, site = around.root, around.site
    work = works(root, run)[site.admission.mode == "enforced"]
    catalogue = Catalogue.load(root)
    method = {EVAL: parent.evaluator, CHECKPOINTS: EVALUATOR}.get(action)
    evaluator = catalogue.get(method) if method else None
    baseline, more = _baseline(around, parent) if action == EVAL else (None, {})
    derived = derive(parent, action, source, evaluator, work, baseline)
    spec = parse(derived.document)
    recipe = evaluator or catalogue.get(spec.spec.recipe.name, spec.spec.recipe.version)
    fleet, profile = parent.launch["fleet"], site.profiles[parent.launch["profiles"][0]]
    options = launchplan.merged_options(spec, site, profile, recipe)
    if faults := launchplan.limit_refusals(options, site, spec, recipe, fleet=fleet, swept=action == CHECKPOINTS):
        raise Refusals(faults)
    runtime_id = spec.spec.framework.runtime_id or recipe.runtime_id(spec.spec.framework.version)
    runtimes = Runtimes.load(root)
    runtime = None if site.fleets[fleet].kind == "local" and runtime_id not in runtimes else runtimes.get(runtime_id)
    given = {
        **{key: parent.launch[key] for key in ("profile", "pin_resource", "overrides", "env", "fleet", "config")},
        "profiles": parent.launch["profiles"][:1], "options": options, "binds": list(site.binds),
        "runtime": runtime_record(runtime, site.runtimes.verify), "kernel": find_kernels(root).as_json(), **derived.given,
        "inputs": {**derived.given["inputs"], **more},
    }  # fmt: skip
    launch = launchplan.launch_document(spec, recipe, site, options=options, work=work, given=given, action=action)
    records = {"jobspec.json": spec.normalised(), "recipe.json": recipe.manifest, "launch.json": launch}
    return Prepared(run, spec, recipe, runtime, find_kernels(root), fleet, options, (profile,), [], records, Path(work))


def _baseline(around: Around, parent: Parent) -> tuple[Source | None, dict[str, Any]]:
    """(run, inputs) of what `spec.evaluation.baseline` names: a run's artefact with the model it stands on, or a model, pinned; nothing for `base`.

    Raises Refusal E-SUBMIT-096 where the user has no such run or it left no model, and those of `resolve_inputs`.
    """
    text = str(parent.evaluation.get("baseline", ""))
    if run_id := baseline_run(text):
        run = next((r for r in owner_runs(around.root, around.user) if r.run_id == run_id), None)
        if run is None:
            raise _no_baseline(text, f"{around.user} has no run {run_id}")
        launch = admission.read_package(run)[1]
        if follows := launch.get("follows"):
            raise _no_baseline(text, f"{run_id} only follows a run", f"run/{follows['run_id']}")
        if not run.report.exists():
            raise _no_baseline(text, f"{run_id} has not ended well")
        if not _left(run, ARTEFACTS["final"]):
            raise _no_baseline(text, f"{run_id} ({run.exp}) left no model")
        model = launch["inputs"].get("model")
        return source_of(run, "final"), {"baseline": model} if model else {}
    if named := baseline_model(text):
        return None, {"baseline": _pinned(around, parent, named)}
    return None, {}


def _left(run: RunPaths, name: str) -> bool:
    """Whether a run that is done left files in a folder, by its report; the job reads each of them."""
    try:
        return any(str(row["path"]).startswith(f"{name}/") for row in read_json(run.report)["artifacts"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _no_baseline(text: str, message: str, allowed: str = "run/<run_id> of a training of yours that is done") -> Refusal:
    hint = "`tp runs ls --state done` lists runs; `base` is the model that the run began with."
    return Refusal("E-SUBMIT-096", message, field=BASELINE_FIELD, found=text, allowed=allowed, hint=hint)


def _pinned(around: Around, parent: Parent, named: str) -> Any:
    """A model by its path or reference as an input of the job, every file by digest. Raises Refusals that name the baseline."""
    try:
        return _resolved(around, parent, named)
    except (Refusal, Refusals) as exc:
        faults = exc.items if isinstance(exc, Refusals) else [exc]
    raise Refusals(
        Refusal(f.code, f.message, field=BASELINE_FIELD, found=f.found, allowed=f.allowed, hint=f.hint) for f in faults
    )


def _resolved(around: Around, parent: Parent, named: str) -> Any:
    cache = DigestCache(around.root.user_state(around.user) / "digests.json")
    folder = parent.folder
    found = resolve_inputs(
        {"spec": {"model": {"base": named}}}, root=around.root, site=around.site, experiment=folder, work_exp=str(folder), cwd=folder,
        digest=cache.digest, pins=read_pins(parent.run.exp, folder, None),
    )  # fmt: skip
    cache.save()
    return found["model"]


def _contents(run: RunPaths, recipe: Recipe, plugins: set[str]) -> tuple[list[Any], dict[str, Any]]:
    """Files and records that a follow-up's package takes from its parent's: the code, and those of its plugins that it locks itself."""
    from hpc.project.files import Travelling

    listed = [str(entry["path"]) for entry in read_json(run.package)["files"]]
    leaves = {plugin.rpartition("/")[2] for plugin in plugins}
    kept = [p for p in listed if not p.startswith(f"{PLUGINS}/") or p.split("/")[1] in leaves]
    files = [Travelling(run.work / p, p) for p in kept if not p.startswith((".tuneplane/", "tuneplane_recipes/"))]
    base = f"tuneplane_recipes/{recipe.id}/template"
    files += [Travelling(recipe.template / rel, f"{base}/{rel}") for rel in recipe.template_files()]
    if not plugins:
        return files, {}
    rows = read_json(run.work / ".tuneplane" / RECORD)["plugins"]
    return files, {RECORD: locked_record(row for row in rows if row["id"] in plugins)}
