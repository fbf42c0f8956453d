"""Recipe packs that users published: `<owner>/<name>`, versions on the registry's plugin shelf, read through it and never before it.

The admins' shelf comes first: an owner who is called like a framework cannot stand in for one of its methods. Two owners may publish packs of
one name, since the owner is a part of the id.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tuneplane.contract.layout import StorageRoot

from hpc.catalog.recipes import Recipe, load_recipe
from hpc.errors import Refusal, Refusals
from hpc.registry.kinds import Checked, Kind


def _read_only(folder: Path) -> Checked:
    raise NotImplementedError(f"{folder}: the catalogue reads packs; what may be published is hpc.plugins' question")


SHELF: Final = Kind(name="plugin", shelf="plugins", check=_read_only, max_bytes=0, max_files=0)
ABSENT: Final = frozenset({"E-REG-002"})
"""Nobody has published that name, or not this version."""


def owned_recipe(root: StorageRoot, owner: str, name: str, version: str = "") -> Recipe | None:
    """The pack `<owner>/<name>`: that version, which a lock names, else what is recommended or newest. None where there is none.

    Every byte of the pack is compared with its record. Raises the registry's refusals (disabled, damaged, squatted), and those of a
    broken recipe.yaml.
    """
    from hpc.registry.resolve import require_content, resolve

    ref = f"{owner}/{name}" + (f"@{version}" if version else "")
    try:
        found = resolve(root, SHELF, ref, for_new=not version)
    except Refusal as refusal:
        if refusal.code in ABSENT:
            return None
        raise
    if not _is_recipe(found.facts):
        return None
    require_content(found)
    return load_recipe(found.content, name=name, owner=owner, package_version=found.version)


def _is_recipe(facts: Mapping[str, Any]) -> bool:
    manifest = facts.get("manifest")
    return isinstance(manifest, dict) and manifest.get("capability") == "recipe"


def owned_ids(root: StorageRoot) -> Iterator[str]:
    """`<owner>/<name>` of every published recipe pack that has an enabled version; what cannot be read is left to the audit."""
    from hpc.registry.resolve import resolve
    from hpc.registry.shelf import Shelf

    shelf = Shelf(root, SHELF)
    for owner in shelf.owners():
        for name in shelf.packages(owner):
            try:
                found = resolve(root, SHELF, f"{owner}/{name}", for_new=True)
            except (Refusal, Refusals):
                continue
            if _is_recipe(found.facts):
                yield found.id
