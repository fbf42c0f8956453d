"""Admission: a verdict on a job package from its bytes, the registry and the uid alone.

`admit` reads the package back from disk. It believes neither the process that wrote it nor anything the package says about itself: files against
the list, the spec against its grammar, recipe and runtime against the site's catalogue, launch.json against the rules that make it, the kernel
against the site's, GPUs against the quota. The verdict of a user's own uid is `advisory`; `enforced` is `hpc.submit.enforce`.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tuneplane.contract import schemas
from tuneplane.contract.followups import CHECKPOINTS
from tuneplane.contract.layout import RunPaths, StorageRoot
from tuneplane.contract.plans import RECORD as PLAN_RECORD
from tuneplane.contract.sweeps import RECORD as VARIANTS
from tuneplane.record.canonical import parse_json
from tuneplane.record.digest import FileEntry, TreeError, digest_bytes, digest_json, scan_tree, tree_digest_v2
from tuneplane.record.files import MAX_RECORD_BYTES, read_bytes, read_json

from hpc.errors import Refusal, Refusals
from hpc.spec.arrays import parse_array
from hpc.submit import launchplan
from hpc.submit.data import admission_refusals as data_refusals
from hpc.submit.kernelzip import find_kernels

if TYPE_CHECKING:
    from hpc.catalog.recipes import Recipe
    from hpc.site.sitefile import Site
    from hpc.spec.jobspec import JobSpec

PACKAGE_LIST = ".tuneplane/package.json"
RECORD_BYTES = 64 << 20
"""Room in a package for records and the recipe's own files, beside what travels."""
LAUNCH_TYPES: Mapping[str, type] = {"options": dict, "runtime": dict, "fleet": str, "profiles": list}
"""What admission reads from launch.json beside what it derives itself."""


@dataclass(frozen=True)
class Usage:
    """What the owner's other runs hold: GPUs and number of queued or running runs."""

    gpus: int
    jobs: int


def owner_of(run: RunPaths) -> tuple[int, str]:
    """(uid, name) of the package's owner, as the file system says. Raises Refusal E-SUBMIT-070."""
    info = os.lstat(run.root)
    try:
        name = pwd.getpwuid(info.st_uid).pw_name
    except KeyError as exc:
        raise Refusal(
            "E-SUBMIT-070", f"uid {info.st_uid} has no name here", field=str(run.root), found=info.st_uid
        ) from exc
    if run.owner != name:
        raise Refusal(
            "E-SUBMIT-070",
            f"the folder of {run.owner} holds a run of {name}",
            field=str(run.root),
            found=name,
            allowed=run.owner,
        )
    return info.st_uid, name


def package_limit(site: Site) -> int:
    """Most bytes of a whole package: what may travel, and the records and recipe that are added to it."""
    return (int(site.packages.max_mb) << 20) + RECORD_BYTES


def _record(run: RunPaths, path: str, have: Mapping[str, FileEntry]) -> Any:
    """A record of the package, from the very bytes whose digest was listed: the owner may write them while they are judged."""
    data = read_bytes(run.work / path)
    if path not in have or digest_bytes(data) != have[path].sha256:
        raise TreeError(f"{path} changed while it was read")
    return parse_json(data)


def read_package(run: RunPaths) -> tuple[dict[str, Any], dict[str, Any], str, list[FileEntry]]:
    """(jobspec, launch, package digest, entries) after comparing every byte with the list. Raises Refusal(s) E-SUBMIT-071."""
    try:
        listing = read_json(run.package)
        listed = {e.path: e for e in map(FileEntry.from_json, listing["files"])}
        most = sum(e.size for e in listed.values()) + MAX_RECORD_BYTES
        have = {e.path: e for e in scan_tree(run.work, max_bytes=most) if e.path != PACKAGE_LIST}
        spec, launch = (_record(run, f".tuneplane/{name}.json", have) for name in ("jobspec", "launch"))
    except (OSError, ValueError, KeyError, TypeError, TreeError) as exc:
        raise Refusal("E-SUBMIT-071", f"the package cannot be read whole: {exc}", field=str(run.work)) from exc
    if not isinstance(launch, dict) or any(not isinstance(launch.get(k, t()), t) for k, t in LAUNCH_TYPES.items()):
        raise Refusal("E-SUBMIT-071", "launch.json has another form", field=str(run.launch))
    faults = [
        Refusal("E-SUBMIT-071", "not what the list says", field=path, found=getattr(have.get(path), "sha256", "missing"),
                allowed=getattr(listed.get(path), "sha256", "not in the list"))
        for path in sorted(listed.keys() | have.keys())
        if listed.get(path) != have.get(path)
    ]  # fmt: skip
    if faults:
        raise Refusals(faults)
    return spec, launch, tree_digest_v2(listed.values()), list(listed.values())


def _manifest(run: RunPaths, entries: list[FileEntry]) -> Any:
    """The recipe manifest that the package was made with. Raises Refusal E-SUBMIT-071."""
    try:
        return _record(run, ".tuneplane/recipe.json", {e.path: e for e in entries})
    except (OSError, ValueError) as exc:
        raise Refusal("E-SUBMIT-071", f"recipe.json cannot be read: {exc}", field=str(run.recipe)) from exc


def quota_refusals(spec: JobSpec, site: Site, owner: str, used: Usage, *, waits: bool = False) -> list[Refusal]:
    """GPUs and jobs of this run and the owner's others against the quota; both numbers are named.

    A run that `waits` for another one begins when that one's GPUs are free again.
    """
    array = spec.spec.slurm.array if spec.spec.slurm else ""
    at_once = parse_array(array).at_once if array else 1
    mine = at_once * sum(p.nodes * p.gpus_per_node for p in spec.spec.resources.pools)
    own = site.quota.users.get(owner)
    gpus = own.gpus if own is not None and own.gpus is not None else site.quota.gpus
    jobs = own.jobs if own is not None and own.jobs is not None else site.quota.jobs
    out = []
    if mine and not waits and used.gpus + mine > gpus:
        out.append(
            Refusal(
                "E-SUBMIT-072",
                f"{owner} would hold {used.gpus + mine} GPUs ({used.gpus} queued or running and {mine} here)",
                field="spec.resources.pools",
                found=used.gpus + mine,
                allowed=f"at most {gpus}"
                + (f"; --max-running or %N lets fewer of the {at_once} elements run at once" if array else ""),
            )
        )
    if used.jobs + 1 > jobs:
        out.append(
            Refusal(
                "E-SUBMIT-073",
                f"{owner} has {used.jobs} jobs queued or running",
                field="quota.jobs",
                found=used.jobs + 1,
                allowed=f"at most {jobs}",
            )
        )
    return out


def _version_refusal(site: Site, core_version: str) -> list[Refusal]:
    """The version that built the package, against the site's tp_min and tp_max."""
    from packaging.version import InvalidVersion

    from hpc.site.sitefile import check_version

    field = "provenance.core_version"
    try:
        check_version(site, core_version)
    except InvalidVersion:
        return [
            Refusal("E-SUBMIT-074", "not a version", field=field, found=core_version, allowed="a version such as 0.4.0")
        ]
    except Refusal as fault:
        return [Refusal("E-SUBMIT-074", fault.message, field=field, found=core_version, allowed=fault.allowed)]
    return []


def _plan(
    run: RunPaths, spec: JobSpec, recipe: Recipe, document: Mapping[str, Any], launch: Mapping[str, Any], entries: list[FileEntry]
) -> tuple[dict[str, Any] | None, list[Refusal]]:  # fmt: skip
    """The launch plan of a recipe with a framework integration, compiled again, and what is wrong with the package's."""
    have = {e.path: e for e in entries}
    path = f".tuneplane/{PLAN_RECORD}"
    if not recipe.integration and path not in have:
        return None, []
    from hpc.submit.frameworks import admitted_plan

    record = _record(run, path, have) if path in have else None
    return admitted_plan(run.work, spec, recipe, document, launch, record, {e.path: e.size for e in entries})


def _launch_refusals(
    launch: Mapping[str, Any], spec: JobSpec, recipe: Recipe, site: Site, work: str, plan: Mapping[str, Any] | None
) -> list[Refusal]:
    """launch.json against the rules that make it from the spec."""
    from hpc.submit.continuing import start_refusals
    from hpc.submit.followcheck import action_of

    options = launch.get("options") or {}
    kept = ("entry", "shape", "hyperparams", "peft", "policies", "network")
    want = launchplan.launch_document(
        spec, recipe, site, options=options, work=work, given={}, plan=plan, action=action_of(launch)
    )
    changed = [
        Refusal("E-SUBMIT-075", "launch.json is not what the spec gives", field=f"launch.{key}", found=repr(launch.get(key))[:200],
                allowed=repr(want[key])[:200])
        for key in kept
        if launch.get(key) != want[key]
    ]  # fmt: skip
    return changed + start_refusals(launch, spec)


def _runtime_refusals(launch: Mapping[str, Any], spec: JobSpec, root: StorageRoot, site: Site) -> list[Refusal]:
    from hpc.catalog.runtimes import Runtimes

    recorded = launch.get("runtime") or {}
    if not recorded.get("container"):
        if site.fleets.get(launch.get("fleet", "")) and site.fleets[launch["fleet"]].kind == "local":
            return []
        return [
            Refusal(
                "E-SUBMIT-076",
                "no image, and the fleet is not local",
                field="launch.runtime",
                allowed="a registered SIF",
            )
        ]
    runtimes = Runtimes.load(root)
    framework = spec.spec.framework
    runtime = runtimes.by_image(framework.image, site) if framework.image else runtimes.get(recorded["runtime_id"])
    if recorded.get("sha256") != runtime.sha256 or recorded.get("sif") != str(runtime.sif):
        return [
            Refusal(
                "E-SUBMIT-076",
                "not the registered image",
                field="launch.runtime",
                found=recorded.get("sha256"),
                allowed=runtime.sha256,
            )
        ]
    return []


def _recipe_refusals(spec: JobSpec, recipe: Recipe, manifest: Any, site: Site) -> list[Refusal]:
    from hpc.catalog.locks import admission_refusals, observability_refusal

    version = spec.provenance.core_version
    out = [*admission_refusals(spec.normalised(), recipe, version), *_version_refusal(site, version)]
    url = observability_refusal(recipe, spec.spec.framework.observability_url)
    if url is not None:
        out.append(url)
    if manifest != recipe.manifest:
        out.append(
            Refusal(
                "E-SUBMIT-077",
                "recipe.json in the package is not the site's recipe",
                field="spec.recipe",
                allowed=recipe.digest,
            )
        )
    return out


def _plugin_refusals(
    root: StorageRoot,
    site: Site,
    run: RunPaths,
    spec: JobSpec,
    recipe: Recipe,
    launch: Mapping[str, Any],
    entries: list[FileEntry],
) -> list[Refusal]:
    from hpc.submit.plugins import RECORD, admission_refusals, job_facts

    path = f".tuneplane/{RECORD}"
    have = {e.path: e for e in entries}
    if not spec.spec.plugins and not spec.spec.recipe.plugins and not recipe.integration and path not in have:
        return []
    record = _record(run, path, have) if path in have else None
    facts = job_facts(spec, recipe, site, str(launch.get("fleet", "")))
    return admission_refusals(root, site, run.work, spec, facts, record)


def _listed(entries: list[FileEntry], record: str) -> bool:
    return any(e.path == f".tuneplane/{record}" for e in entries)


def _sweep_refusals(
    run: RunPaths, spec: JobSpec, recipe: Recipe, launch: Mapping[str, Any], entries: list[FileEntry]
) -> list[Refusal]:
    """The table of variants against the spec's array, the inputs and the recipe."""
    if not _listed(entries, VARIANTS):
        return []
    from hpc.submit.sweeps import table_refusals, variant_refusals

    record = _record(run, f".tuneplane/{VARIANTS}", {e.path: e for e in entries})
    sweep, faults = table_refusals(record, launch.get("options") or {}, launch.get("inputs") or {})
    return faults + (
        variant_refusals(sweep, recipe, spec.spec.framework.version, spec.spec.hyperparams) if sweep else []
    )


def judge(root: StorageRoot, site: Site, run: RunPaths, *, usage: Callable[[str], Usage]) -> dict[str, Any]:
    """The body of admission.json (without mode, time and signature). Raises Refusal(s), everything that is wrong at once."""
    from hpc.catalog.shelf import Catalogue
    from hpc.spec.jobspec import parse
    from hpc.submit.followcheck import action_of, follow_refusals

    uid, owner = owner_of(run)
    document, launch, package_digest, entries = read_package(run)
    spec = parse(document)
    recipe = Catalogue.load(root).get(spec.spec.recipe.name, spec.spec.recipe.version)
    work = str(root.admitted / run.run_id / "work" if site.admission.mode == "enforced" else run.work)
    faults = _plugin_refusals(root, site, run, spec, recipe, launch, entries)
    # A compiler is run only if its package is the registry's.
    plan, more = _plan(run, spec, recipe, document, launch, entries) if not faults else (None, [])
    faults += more
    faults += _launch_refusals(launch, spec, recipe, site, work, plan) if not recipe.integration or plan else []
    faults += [
        *_recipe_refusals(spec, recipe, _manifest(run, entries), site),
        *_runtime_refusals(launch, spec, root, site),
        *launchplan.limit_refusals(
            launch.get("options") or {},
            site,
            spec,
            recipe,
            fleet=str(launch.get("fleet", "")),
            swept=_listed(entries, VARIANTS) or action_of(launch) == CHECKPOINTS,
        ),
        *quota_refusals(spec, site, owner, usage(owner), waits="follows" in launch),
    ]
    if (size := sum(e.size for e in entries)) > (limit := package_limit(site)):
        faults.append(
            Refusal("E-SUBMIT-041", "the package is too large", field=str(run.work), found=size, allowed=str(limit))
        )
    kernel = find_kernels(root).as_json()
    if launch.get("kernel") != kernel:
        faults.append(
            Refusal(
                "E-SUBMIT-078",
                "not the site's kernel",
                field="launch.kernel",
                found=repr(launch.get("kernel"))[:200],
                allowed=repr(kernel),
            )
        )
    faults += _sweep_refusals(run, spec, recipe, launch, entries)
    faults += data_refusals(root, site, owner, document, launch)
    faults += follow_refusals(root, site, run, document, launch, recipe)
    if faults:
        raise Refusals(faults)
    return {
        "schema": schemas.ADMISSION, "run_id": run.run_id, "owner": owner, "uid": uid, "spec_digest": digest_json(document),
        "package_digest": package_digest, "kernel": kernel, "verdict": "admitted",
    }  # fmt: skip
