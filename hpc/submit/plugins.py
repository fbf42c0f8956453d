"""Locked plugins on their way into a job package: the same conditions for the one who packs and for admission, which reads the package back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tuneplane
from tuneplane.contract import schemas
from tuneplane.contract.layout import StorageRoot
from tuneplane.record.digest import directory_digest_v1

from hpc.errors import Refusal, Refusals
from hpc.plugins.requires import JobFacts, collisions, travels, unmet
from hpc.project.files import Travelling
from hpc.submit.launchplan import is_per_node

if TYPE_CHECKING:
    from hpc.catalog.recipes import Recipe
    from hpc.registry.resolve import Version
    from hpc.site.sitefile import Site
    from hpc.spec.jobspec import JobSpec

FOLDER = "tuneplane_plugins"
RECORD = "plugins.json"


@dataclass(frozen=True)
class Carried:
    """What locked plugins add to a package: files, and the record that spares the job any YAML. Both empty without plugins."""

    files: list[Travelling]
    records: dict[str, Any]
    versions: tuple[Version, ...] = ()


def job_facts(spec: JobSpec, recipe: Recipe, site: Site, fleet: str) -> JobFacts:
    """The job as requirements of plugins see it."""
    named = site.fleets.get(fleet)
    return JobFacts(
        core_version=tuneplane.__version__,
        framework=spec.spec.framework.kind,
        framework_version=spec.spec.framework.version,
        method=spec.spec.recipe.name,
        backend=named.kind if named else "",
        runs_ranks=not is_per_node(recipe),
        integration=recipe.integration,
    )


def triples(spec: JobSpec) -> list[dict[str, str]]:
    """`{id, version, digest}` of every locked plugin."""
    return [{"id": p.id, "version": p.version, "digest": p.digest} for p in spec.spec.plugins]


def carry(root: StorageRoot, site: Site, spec: JobSpec, job: JobFacts) -> Carried:
    """Every locked plugin from the registry, its bytes compared with its record. Raises Refusals E-REG-*, E-INSTALL-002 … -015, all at once."""
    if not spec.spec.plugins and not spec.spec.recipe.plugins and not job.integration:
        return Carried([], {})
    faults, found = locate(root, site, triples(spec))
    faults += conditions(found, spec.spec.recipe.plugins, job)
    faults += [fault for version in found for fault in _damages(version)]
    if faults:
        raise Refusals(faults)
    files = [
        Travelling(version.content / entry.path, f"{FOLDER}/{version.name}/{entry.path}")
        for version in found
        for entry in version.files
    ]
    record = locked_record(_row(v.id, v.version, v.digest, v.digest_v2, v.facts) for v in found)
    return Carried(files, {RECORD: record}, tuple(found))


def _damages(version: Version) -> list[Refusal]:
    from hpc.registry.resolve import verify_content

    return [problem.refusal() for problem in verify_content(version)]


def locate(root: StorageRoot, site: Site, locked: Iterable[Mapping[str, str]]) -> tuple[list[Refusal], list[Version]]:
    """The registry's versions behind the triples. A disabled one still runs for an existing lock; other bytes never do (E-INSTALL-005)."""
    from hpc.plugins.kind import PLUGIN
    from hpc.registry.resolve import resolve

    faults: list[Refusal] = []
    found: list[Version] = []
    for index, one in enumerate(locked):
        try:
            version = resolve(root, PLUGIN, f"{one['id']}@{one['version']}", site=site, for_new=False)
        except Refusal as fault:
            faults.append(fault)
            continue
        except Refusals as several:
            faults += several.items
            continue
        if version.digest != one["digest"]:
            message = f"{one['id']}@{one['version']} is locked to other bytes"
            field = f"spec.plugins[{index}].digest"
            faults.append(Refusal("E-INSTALL-005", message, field=field, found=one["digest"], allowed=version.digest))
        elif differs := _other_manifest(version):
            faults.append(differs)
        else:
            found.append(version)
    return faults, found


def _other_manifest(version: Version) -> Refusal | None:
    """E-REG-012 where the record tells another manifest than its plugin.yaml. What is called in the job is taken from the record, which is its
    owner's word alone until it is sealed, while the digest that a lock keeps is of the bytes. A sealed record of another release is left alone:
    that release may have read the same bytes otherwise."""
    from hpc.plugins.manifest import MANIFEST_NAME, read_manifest
    from hpc.registry.resolve import read_file

    if version.seal is not None and version.record["published"].get("core_version") != tuneplane.__version__:
        return None
    try:
        manifest, _, _ = read_manifest(read_file(version, MANIFEST_NAME))
    except Refusal as fault:
        return fault
    told, own = version.facts["manifest"], manifest.as_json() if manifest else {}
    if key := next((key for key in sorted(told) if told[key] != own.get(key)), ""):
        message = f"{version} records another {key} than its {MANIFEST_NAME} gives"
        return Refusal("E-REG-012", message, field=str(version.folder), found=told[key], allowed=str(own.get(key)))
    return None


def conditions(found: Sequence[Version], recipe_plugins: Iterable[str], job: JobFacts) -> list[Refusal]:
    """Everything that the plugins ask of the job, of each other, and the recipe of them."""
    out: list[Refusal] = []
    for version in found:
        manifest = version.facts["manifest"]
        label = f"{version.id}@{version.version}"
        if travels(manifest):
            out += unmet(label, manifest, job)
        else:
            message = f"{label} is a {manifest['capability']} package"
            out.append(Refusal("E-INSTALL-002", message, field="spec.plugins", found=manifest["capability"]))
    out += collisions({v.id: v.facts for v in found})
    if job.integration and job.integration not in {v.id for v in found}:
        message = f"{job.method} is compiled by {job.integration}, which is not locked"
        out.append(Refusal("E-FRAME-001", message, field="spec.plugins", found="not locked", allowed=job.integration))
    have = {version.name for version in found}
    for leaf in recipe_plugins:
        if leaf not in have:
            message = f"{job.method} needs the plugin {leaf}"
            out.append(
                Refusal("E-INSTALL-015", message, field="spec.recipe.plugins", found=", ".join(sorted(have)) or "none")
            )
    return out


def _row(plugin_id: str, version: str, digest: str, digest_v2: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    leaf = plugin_id.rpartition("/")[2]
    return {
        "id": plugin_id, "version": version, "digest": digest, "digest_v2": digest_v2, "leaf": leaf, "facts": dict(facts),
    }  # fmt: skip


def locked_record(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """plugins.json: every locked plugin with the facts of its own bytes, in the order of the JobSpec."""
    return {"schema": schemas.LOCKED_PLUGINS, "plugins": [dict(row) for row in rows]}


def admission_refusals(
    root: StorageRoot, site: Site, work: Path, spec: JobSpec, job: JobFacts, record: Any
) -> list[Refusal]:
    """The plugins of a package on disk against registry, triples and requirements; `record` is its plugins.json, None where there is none."""
    locked = triples(spec)
    faults, found = locate(root, site, locked)
    faults += conditions(found, spec.spec.recipe.plugins, job) if not faults else []
    rows = []
    for version in found:
        faults += _packed(work / FOLDER / version.name, version)
        rows.append(_row(version.id, version.version, version.digest, version.digest_v2, version.facts))
    want = locked_record(rows) if locked else None
    if not faults and record != want:
        faults.append(Refusal("E-INSTALL-021", "differs from the registry's records", field=f".tuneplane/{RECORD}"))
    return faults


def _packed(folder: Path, version: Version) -> Iterator[Refusal]:
    try:
        found = directory_digest_v1(folder) if folder.is_dir() else "missing"
    except OSError as exc:
        found = f"unreadable: {exc.strerror}"
    if found != version.digest:
        message = (
            f"plugin {version.id}@{version.version} content digest mismatch: spec={version.digest}, actual={found}"
        )
        yield Refusal("E-INSTALL-020", message, field=f"{FOLDER}/{version.name}", found=found, allowed=version.digest)
