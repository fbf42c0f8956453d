"""The plugins that this job was submitted with: read from the package, and compared with it byte by byte before any of their code runs.

Which plugins there are is the JobSpec's word alone (`spec.plugins`: id, version, digest). What each of them is comes from
`.tuneplane/plugins.json`, written at submission; a work folder made by hand has none, and then `plugin.yaml` itself is read.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES, PathFinder
from pathlib import Path
from typing import Any

from tuneplane.contract import schemas
from tuneplane.contract.layout import SEGMENT
from tuneplane.plugins.fault import PluginFault
from tuneplane.plugins.wheel import read_wheel
from tuneplane.record.digest import V1_SKIPPED_PARTS, directory_digest_v1, is_digest
from tuneplane.record.files import read_bytes, read_json

FOLDER = "tuneplane_plugins"
SPEC, FACTS = ".tuneplane/jobspec.json", ".tuneplane/plugins.json"
MAX_MANIFEST = 1 << 20
RESERVED = frozenset(
    {"tuneplane", "nemo_rl", "common", "ray", "torch", "transformers", "vllm", "trl", "verl", "numpy", "yaml", "json"}
) | {"os", "sys"}


@dataclass(frozen=True)
class LockedPlugin:
    """One locked plugin. `folder` is where the job finds its files; `facts` holds its normalised manifest and what submission knew of it."""

    id: str
    version: str
    digest: str
    leaf: str
    folder: Path
    facts: Mapping[str, Any]

    @property
    def label(self) -> str:
        return f"{self.id}@{self.version}"

    @property
    def manifest(self) -> Mapping[str, Any]:
        value = self.facts.get("manifest")
        return value if isinstance(value, dict) else {}

    @property
    def capability(self) -> str:
        return str(self.manifest.get("capability") or "")

    @property
    def runs_code(self) -> bool:
        """True where a process of the job imports it."""
        job = self.capability == "data-prep" and self.manifest.get("execution") == "job"
        return job or self.capability in ("algorithm", "environment")

    @property
    def wheel(self) -> str:
        """Path of its wheel, "" for a source package."""
        name = str(self.manifest.get("wheel") or "")
        return str(self.folder / name) if name else ""

    @property
    def path_entry(self) -> str:
        """What goes on sys.path for it."""
        return self.wheel or str(self.folder)


def read_locked(work: Path) -> list[LockedPlugin]:
    """The locked plugins in the JobSpec's order; nothing of their files is read but, without plugins.json, `plugin.yaml`.

    Raises PluginFault E-JOB-031 where the records cannot be read, disagree, or name something missing.
    """
    triples = _triples(work)
    facts = _facts(work, triples)
    out = []
    for one, known in zip(triples, facts, strict=True):
        leaf = one["id"].rpartition("/")[2]
        folder = work / FOLDER / leaf
        if known is None:
            known = {"manifest": _manifest(folder, f"plugin {one['id']}@{one['version']}")}
        out.append(LockedPlugin(one["id"], one["version"], one["digest"], leaf, folder, known))
    return out


def _triples(work: Path) -> list[dict[str, str]]:
    try:
        spec = read_json(work / SPEC)
        rows = spec["spec"].get("plugins", [])
        triples = [{key: row[key] for key in ("id", "version", "digest")} for row in rows]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise PluginFault("E-JOB-031", f"{SPEC} does not tell the locked plugins: {exc!r}") from exc
    for one in triples:
        parts = one["id"].split("/") if isinstance(one["id"], str) else []
        named = len(parts) == 2 and all(SEGMENT.match(p) for p in parts) and isinstance(one["version"], str)
        if not named or not is_digest(one["digest"]):
            raise PluginFault("E-JOB-031", f"{SPEC}: not a locked plugin: {one}")
    return triples


def _facts(work: Path, triples: Sequence[Mapping[str, str]]) -> list[dict[str, Any] | None]:
    """The facts of each triple from plugins.json, None for each where there is no such file."""
    try:
        record = read_json(work / FACTS)
    except FileNotFoundError:
        return [None] * len(triples)
    except (OSError, ValueError) as exc:
        raise PluginFault("E-JOB-031", f"{FACTS} cannot be read: {exc}") from exc
    rows = (
        record.get("plugins") if isinstance(record, dict) and record.get("schema") == schemas.LOCKED_PLUGINS else None
    )
    if not isinstance(rows, list) or not all(isinstance(r, dict) and isinstance(r.get("facts"), dict) for r in rows):
        raise PluginFault("E-JOB-031", f"{FACTS} is not a list of locked plugins")
    named = [{key: row.get(key) for key in ("id", "version", "digest")} for row in rows]
    if named != list(triples):
        raise PluginFault("E-JOB-031", f"{FACTS} and {SPEC} name different plugins: {named} and {list(triples)}")
    return [row["facts"] for row in rows]


def _manifest(folder: Path, who: str) -> dict[str, Any]:
    """plugin.yaml of a work folder made by hand, as plain values."""
    try:
        data = read_bytes(folder / "plugin.yaml", limit=MAX_MANIFEST)
    except FileNotFoundError as exc:
        raise PluginFault("E-JOB-031", f"{who} is not in the package: {FOLDER}/{folder.name}") from exc
    except (OSError, ValueError) as exc:
        raise PluginFault("E-JOB-031", f"{who}: plugin.yaml cannot be read: {exc}") from exc
    try:
        import yaml
    except ImportError as exc:
        raise PluginFault("E-JOB-031", f"{who}: without {FACTS} its plugin.yaml needs PyYAML to be read") from exc
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(data, Loader=yaml.SafeLoader)):
            raise PluginFault("E-JOB-031", f"{who}: plugin.yaml holds an alias")
        value = yaml.safe_load(data)
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        raise PluginFault("E-JOB-031", f"{who}: plugin.yaml is not YAML: {exc}") from exc
    if not isinstance(value, dict):
        raise PluginFault("E-JOB-031", f"{who}: plugin.yaml is not a mapping")
    return {**value, "version": str(value.get("version", ""))}


def verify(plugin: LockedPlugin) -> None:
    """Recompute the plugin's digest and compare its identity. Raises PluginFault E-JOB-030 (other bytes) or E-JOB-031 (missing, another plugin)."""
    who = f"plugin {plugin.label}"
    if not plugin.folder.is_dir() or plugin.folder.is_symlink():
        raise PluginFault("E-JOB-031", f"{who} is not in the package: {FOLDER}/{plugin.leaf}")
    try:
        found = directory_digest_v1(plugin.folder)
    except (OSError, ValueError) as exc:  # a file name that is no UTF-8 has no place in the digest
        raise PluginFault("E-JOB-031", f"{who} cannot be read whole: {exc}") from exc
    if found != plugin.digest:
        raise PluginFault("E-JOB-030", f"{who} content digest mismatch: spec={plugin.digest}, actual={found}")
    named = (str(plugin.manifest.get("name", "")).strip(), plugin.manifest.get("version"))
    if named != (plugin.leaf, plugin.version):
        raise PluginFault("E-JOB-031", f"{who} is not what its manifest says: {named[0]}@{named[1]}")
    wheel = str(plugin.manifest.get("wheel") or "")
    if wheel and (os.path.basename(wheel) != wheel or not wheel.endswith(".whl")):
        raise PluginFault("E-JOB-031", f"{who}: {wheel!r} is no wheel at its root")


def import_roots(plugin: LockedPlugin) -> tuple[str, ...]:
    """The top-level names that its path entry makes importable, as its files say; none for a package that no process imports."""
    if not plugin.runs_code:
        return ()
    if plugin.wheel:
        return read_wheel(plugin.wheel, f"plugin {plugin.label}").import_roots
    suffixes, roots = (".py", *EXTENSION_SUFFIXES), set()
    for entry in os.scandir(plugin.folder):
        if entry.is_dir():
            if entry.name not in V1_SKIPPED_PARTS and entry.name.isidentifier() and _holds_code(entry.path, suffixes):
                roots.add(entry.name)
        elif suffix := next((s for s in suffixes if entry.name.endswith(s)), ""):
            roots.add(entry.name[: -len(suffix)].split(".")[0])
    return tuple(sorted(roots))


def _holds_code(folder: str, suffixes: tuple[str, ...]) -> bool:
    return any(name.endswith(suffixes) for _, _, names in os.walk(folder) for name in names)


def check_collisions(plugins: Iterable[LockedPlugin]) -> None:
    """No two plugins share a folder or an import name, and none takes a reserved one or the standard library's. Raises PluginFault E-JOB-032."""
    leaves: dict[str, str] = {}
    owners: dict[str, str] = {}
    for plugin in plugins:
        if (other := leaves.setdefault(plugin.leaf, plugin.label)) != plugin.label:
            raise PluginFault("E-JOB-032", f"plugins {other} and {plugin.label} would both be {FOLDER}/{plugin.leaf}")
        for root in import_roots(plugin):
            if root in RESERVED or root in sys.stdlib_module_names:
                raise PluginFault("E-JOB-032", f"plugin {plugin.label} brings the module {root}, which is taken")
            if (other := owners.setdefault(root, plugin.label)) != plugin.label:
                raise PluginFault("E-JOB-032", f"plugins {other} and {plugin.label} both bring the module {root}")


def check_unowned(plugin: LockedPlugin, search_path: Sequence[str] | None = None) -> None:
    """None of the plugin's import names is loaded from elsewhere or lies elsewhere on `search_path` (sys.path). Raises PluginFault E-JOB-032.

    Runs no code: only top-level names are looked for. A folder without code of its own (a namespace) owns no name.
    """
    for root in import_roots(plugin):
        if place := _elsewhere(plugin, root, search_path):
            message = f"plugin {plugin.label} brings the module {root}, which this interpreter has at {place}"
            raise PluginFault("E-JOB-032", message)


def _elsewhere(plugin: LockedPlugin, root: str, search_path: Sequence[str] | None) -> str:
    """Where `root` comes from, "" when only the plugin has it."""
    if root in sys.modules:
        place = getattr(sys.modules[root], "__file__", None) or "a module without a file"
    else:
        found = PathFinder.find_spec(root, search_path)
        place = (found.origin if found else "") or ""
    return "" if not place or is_inside(plugin, place) else place


def is_inside(plugin: LockedPlugin, path: str) -> bool:
    """True when a module's file lies in the plugin's own folder or wheel, links resolved."""
    real, entry = os.path.realpath(path), os.path.realpath(plugin.path_entry)
    return real == entry or real.startswith(entry + os.sep)


def missing_recipe_plugins(spec: Mapping[str, Any]) -> list[str]:
    """Names that `spec.recipe.plugins` asks for and no locked plugin has as its leaf. `spec` is the whole JobSpec document."""
    body = spec["spec"]
    have = {str(row["id"]).rpartition("/")[2] for row in body.get("plugins", [])}
    return [name for name in body.get("recipe", {}).get("plugins", []) if name not in have]


def python_path(plugins: Iterable[LockedPlugin]) -> list[str]:
    """What environment packages put on PYTHONPATH: the folder of a source package, the wheel of a wheel."""
    return [p.path_entry for p in plugins if p.capability == "environment"]
