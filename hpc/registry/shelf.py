"""One shelf of a storage root: whose folders lie there, which packages and versions, and whether they may be believed.

    registry/<shelf>/<owner>/<name>/<version>/{record.json, content/}
    registry/<shelf>/<owner>/<name>/.switch/<n>.json

A folder counts only if it belongs to the owner that it names and nobody else can write it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tuneplane.contract.layout import StorageRoot

from hpc.errors.core import Refusal
from hpc.registry.kinds import Kind
from hpc.site.roll import SHIPPED_OWNER, shelf_uid
from hpc.site.trust import require_owner_folder
from hpc.spec.text import MAX_SEGMENT, SEGMENT, visible
from hpc.store.faults import refusal

if TYPE_CHECKING:
    from hpc.site.sitefile import Site

SWITCH: Final = ".switch"
RECORD: Final = "record.json"
CONTENT: Final = "content"
TEMP_SUFFIX: Final = ".tmp"
__all__ = ["CONTENT", "RECORD", "SHIPPED_OWNER", "SWITCH", "Ref", "Shelf", "is_litter", "is_segment", "parse_ref"]


@dataclass(frozen=True)
class Ref:
    """`<owner>/<name>` with or without `@<version>`."""

    owner: str
    name: str
    version: str = ""

    @property
    def id(self) -> str:
        return f"{self.owner}/{self.name}"

    def __str__(self) -> str:
        return f"{self.id}@{self.version}" if self.version else self.id


def is_segment(text: str) -> bool:
    """True for a name that can be one part of a path on a shelf."""
    return len(text) <= MAX_SEGMENT and SEGMENT.fullmatch(text) is not None


def is_litter(name: str) -> bool:
    """True for the temporary name of a writer that died: `.<name>.<random>.tmp`."""
    return name.startswith(".") and name.endswith(TEMP_SUFFIX)


def parse_ref(text: str, field: str = "") -> Ref:
    """Raises Refusal E-REG-008."""
    path, at, version = text.partition("@")
    parts = path.split("/")
    good = len(parts) == 2 and all(is_segment(p) for p in parts) and (not at or is_segment(version))
    if not good:
        allowed = "<owner>/<name> or <owner>/<name>@<version>"
        raise Refusal("E-REG-008", "is not a reference", field=field, found=visible(text), allowed=allowed)
    return Ref(parts[0], parts[1], version)


class Shelf:
    """Names and folders of one kind. Reads folders only; does not promise that a version which it names is whole."""

    def __init__(self, root: StorageRoot, kind: Kind, *, site: Site | None = None) -> None:
        self.root, self.kind, self.site = root, kind, site

    @cached_property
    def path(self) -> Path:
        return self.root.shelf(self.kind.shelf)

    def package(self, owner: str, name: str) -> Path:
        return self.path / owner / name

    def version(self, owner: str, name: str, version: str) -> Path:
        return self.path / owner / name / version

    def uid(self, owner: str) -> int:
        """The uid that this owner's folders must have. Raises Refusal E-SITE-030, E-SITE-031."""
        return shelf_uid(self.root, owner, site=self.site)

    def owners(self) -> list[str]:
        """Names of all owner folders, believed or not, sorted."""
        return self._names(self.path)

    def packages(self, owner: str) -> list[str]:
        return self._names(self.path / owner)

    def versions(self, owner: str, name: str) -> list[str]:
        """Names of all versions as they stand, sorted by text; see `hpc.registry.order` for which is newest."""
        return self._names(self.package(owner, name))

    def _names(self, folder: Path) -> list[str]:
        try:
            return sorted(n for n in os.listdir(folder) if is_segment(n))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as exc:
            raise refusal(exc, folder, "list") from exc

    def require(self, owner: str, name: str) -> int:
        """The owner's uid, if the owner's folder and the package's are theirs and nobody else can write them.

        Raises Refusal E-REG-002 (no such package), E-SITE-013, E-SITE-02x (not to be believed), E-SITE-030 (nobody knows the owner).
        """
        place = self.package(owner, name)
        if not os.path.lexists(place):
            raise Refusal("E-REG-002", f"there is no {self.kind.name} {owner}/{name}", found=f"{owner}/{name}")
        uid = self.uid(owner)
        require_owner_folder(place.parent, uid)
        require_owner_folder(place, uid)
        return uid
