"""Everything in the registry that is not a version: pointers, recipe packs and seals, found by walking. Names only; nothing is believed here."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tuneplane.contract.layout import StorageRoot

from hpc.errors.core import Refusal
from hpc.registry.generations import Pointer
from hpc.registry.kinds import Kind
from hpc.registry.pointers import POLICY, SWITCHES, admin_switch, owner_switch, policy_pointer
from hpc.registry.problems import INCOMPLETE, Problem, below, of_error, of_refusal
from hpc.registry.seals import LOG
from hpc.registry.shelf import SWITCH, Shelf, is_segment

if TYPE_CHECKING:
    from hpc.site.sitefile import Site

PACKS: Final = ".packs"
PACK_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*@[A-Za-z0-9._+-]+")


def names(folder: Path) -> list[str]:
    """Sorted names; none where the folder is missing. Raises OSError otherwise."""
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def admin_pointers(
    root: StorageRoot, kinds: Sequence[Kind], site: Site | None, problems: list[Problem]
) -> Iterator[Pointer]:
    """Every pointer of the admins that there is. What cannot be listed goes to `problems`."""
    try:
        for capability in filter(is_segment, names(root.activation / POLICY)):
            yield policy_pointer(root, capability, site=site)
        for kind in kinds:
            base = root.activation / SWITCHES / kind.name
            for owner in filter(is_segment, names(base)):
                for name in filter(is_segment, names(base / owner)):
                    yield admin_switch(root, kind, owner, name, site=site)
    except OSError as exc:
        problems.append(of_error(exc, below(root.path, exc.filename or root.activation), "list"))


def owner_pointers(shelf: Shelf, problems: list[Problem]) -> Iterator[Pointer]:
    """The owners' switches of one shelf."""
    for owner in shelf.owners():
        try:
            for name in shelf.packages(owner):
                if os.path.lexists(shelf.package(owner, name) / SWITCH):
                    yield owner_switch(shelf, owner, name, shelf.uid(owner))
        except Refusal as fault:
            problems.append(of_refusal(fault, f"registry/{shelf.kind.shelf}/{owner}", INCOMPLETE))


def pack_subjects(root: StorageRoot) -> Iterator[tuple[str, Path]]:
    """(subject, folder) of every recipe pack that was published whole. Packs that an admin put there by hand are the admin's to change."""
    for framework in filter(is_segment, _quiet(root.recipes)):
        for name in filter(PACK_NAME.fullmatch, _quiet(root.recipes / framework / PACKS)):
            yield f"recipes/{framework}/{PACKS}/{name}", root.recipes / framework / PACKS / name


def _quiet(folder: Path) -> list[str]:
    try:
        return names(folder)
    except OSError:
        return []  # the audit of that part says so


def seal_subjects(root: StorageRoot) -> Iterator[str]:
    """The subject of every file that lies where a seal lies."""
    for folder, folders, found in os.walk(root.seals):
        folders[:] = sorted(f for f in folders if f != LOG)
        for name in sorted(found):
            if name.endswith(".json") and not name.startswith("."):
                yield os.path.relpath(os.path.join(folder, name), root.seals).removesuffix(".json")
