"""A recipe's framework integration: bound to the job, compiled to plan.json at submission, and compiled again at admission."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from tuneplane.contract import plans
from tuneplane.contract.layout import StorageRoot
from tuneplane.record.digest import digest_json

from hpc.errors import Refusal, Refusals
from hpc.plugins.compiling import Wanted, compile_plan
from hpc.plugins.fitting import SEVERAL, Machines
from hpc.submit.plugins import FOLDER

if TYPE_CHECKING:
    from hpc.catalog.recipes import Recipe
    from hpc.registry.resolve import Version
    from hpc.site.sitefile import Site
    from hpc.spec.jobspec import JobSpec

INPUTS = ("model", "train", "validation")


def bound(root: StorageRoot, site: Site, recipe: Recipe, locked: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """The locked plugins, and the integration where it comes with `tp` and the experiment does not pin a version of it.

    Raises Refusal E-REG-* where the site does not have it or has disabled it. Another owner's must be locked: `hpc.submit.plugins` says so.
    """
    from hpc.plugins.kind import PLUGIN
    from hpc.registry.resolve import resolve
    from hpc.registry.shelf import SHIPPED_OWNER

    out = [dict(one) for one in locked]
    wanted = recipe.integration
    if not wanted.startswith(f"{SHIPPED_OWNER}/") or wanted in {one["id"] for one in out}:
        return out
    version = resolve(root, PLUGIN, wanted, site=site, for_new=True, field="recipe.adapter_options.integration")
    return [*out, {"id": version.id, "version": version.version, "digest": version.digest}]


def _job(
    spec: JobSpec, recipe: Recipe, document: Mapping[str, Any], launch: Mapping[str, Any], runtime: Mapping[str, Any]
) -> Wanted:
    """The job as an integration sees it; of `launch` only the names of its inputs count."""
    version, given = spec.spec.framework.version, launch.get("inputs") or {}
    rows = [name for name in ("train", "validation") if name in given]
    pools = spec.spec.resources.pools
    return Wanted(
        framework=recipe.framework,
        methods=(recipe.id, f"{recipe.framework}/{recipe.typed.name}"),
        engine=recipe.engine,
        runtime_id=spec.spec.framework.runtime_id or recipe.runtime_id(version),
        runtime_digest=str(runtime.get("sha256") or ""),
        orchestrator=recipe.orchestrator,
        inputs=tuple(name for name in INPUTS if name in given),
        pools={p.name: Machines(p.nodes, p.gpus_per_node, p.series) for p in pools},
        world_size=sum(p.nodes * p.ranks for p in pools),
        hyperparams=recipe.resolve(dict(spec.spec.hyperparams), version),
        paths={name: param.path_for(name, version) for name, param in recipe.typed.params.items()},
        spec=document,
        recipe=recipe.manifest,
        rows={name: form_of(given[name], document, name) for name in rows},
        row_paths={name: given[name]["path"] for name in rows},
        roles=spec.spec.resources.roles,
    )


def form_of(row: Mapping[str, Any], document: Mapping[str, Any], name: str) -> str:
    """How the rows of an input lie: the end of the file's name, `folder` or SEVERAL. Of what travels in the package only the name tells."""
    if any(file["path"] for file in row.get("files") or []):
        source = document["spec"].get("data", {}).get(name) or {}
        return SEVERAL if source.get("dataset") else "folder"
    return PurePosixPath(row["path"]).suffix.removeprefix(".")


def prepared_plan(
    spec: JobSpec, recipe: Recipe, document: Mapping[str, Any], versions: Iterable[Version], data: Mapping[str, Any], runtime: Mapping[str, Any]
) -> dict[str, Any] | None:  # fmt: skip
    """plan.json for a submission, from the registry's own folder; None for a recipe without an integration. Raises Refusal(s) E-FRAME-*."""
    version = next((v for v in versions if v.id == recipe.integration), None)
    if version is None:
        return None
    files = {entry.path: entry.size for entry in version.files}
    identity = {"id": version.id, "version": version.version, "digest": version.digest}
    return compile_plan(version.content, files, identity, _job(spec, recipe, document, data, runtime))


def admitted_plan(
    work: Path, spec: JobSpec, recipe: Recipe, document: Mapping[str, Any], launch: Mapping[str, Any], record: Any, files: Mapping[str, int]
) -> tuple[dict[str, Any] | None, list[Refusal]]:  # fmt: skip
    """(plan.json as the package's own integration gives it, faults). `record` is the package's plan.json, None where there is none."""
    triple = next((p for p in spec.spec.plugins if p.id == recipe.integration), None)
    field = f".tuneplane/{plans.RECORD}"
    if triple is None:
        fault = Refusal("E-FRAME-010", "a plan without an integration", field=field, found=recipe.id)
        return None, [fault] if record is not None else []
    inside = f"{FOLDER}/{triple.id.rpartition('/')[2]}/"
    mine = {path[len(inside) :]: size for path, size in files.items() if path.startswith(inside)}
    identity = {"id": triple.id, "version": triple.version, "digest": triple.digest}
    runtime = launch.get("runtime")
    job = _job(spec, recipe, document, launch, runtime if isinstance(runtime, dict) else {})
    try:
        plan = compile_plan(work / inside, mine, identity, job)
    except Refusal as fault:
        return None, [fault]
    except Refusals as several:
        return None, list(several.items)
    if record == plan:
        return plan, []
    found = digest_json(record) if record is not None else "missing"
    message = "is not what the integration gives"
    return plan, [Refusal("E-FRAME-010", message, field=field, found=found, allowed=digest_json(plan))]
