"""The site's playbook and prompt: selecting an exact version, and what a reader of the selection ends up with.

Selecting is the registry's (`hpc.registry.activation`); what a policy package must be, and how it is loaded, is told here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tuneplane.contract.layout import StorageRoot

from hpc.errors import Refusal
from hpc.plugins import playbook, prompt
from hpc.registry import activation
from hpc.registry.activation import Active, Applied
from hpc.registry.resolve import Version, require_content, resolve
from hpc.registry.shelf import parse_ref
from hpc.site.users import User

if TYPE_CHECKING:
    from hpc.site.sitefile import Site

LOADERS: Final[Mapping[str, Callable[[Path], Any]]] = {"playbook": playbook.load, "prompt": prompt.load}
CAPABILITIES: Final = tuple(LOADERS)
DEFAULTS: Final = "built-in defaults"


@dataclass(frozen=True)
class Standing:
    """What is selected, and what this process could apply; the two may differ, and then `problems` say why."""

    capability: str
    stored: Active
    applied: Applied[Any]

    @property
    def is_applied(self) -> bool:
        """True where this process applies what is selected."""
        return self.stored.of == self.applied.selection.of and self.stored.of == self.stored.generation

    @property
    def stored_words(self) -> str:
        return _words(self.stored)

    @property
    def applied_words(self) -> str:
        return _words(self.applied.selection)

    @property
    def problems(self) -> list[str]:
        return [p.message for p in self.applied.problems]

    def as_json(self) -> dict[str, Any]:
        return {
            "capability": self.capability,
            "stored": _selection(self.stored) | {"generation": self.stored.generation},
            "applied": _selection(self.applied.selection) | {"generation": self.applied.selection.of},
            "is_applied": self.is_applied,
            "problems": self.problems,
        }


def _words(selection: Active) -> str:
    return f"{selection.id}@{selection.version}" if selection.id else DEFAULTS


def _selection(selection: Active) -> dict[str, Any]:
    return {
        "id": selection.id, "version": selection.version, "digest": selection.digest, "actor": selection.actor, "at": selection.at,
    }  # fmt: skip


def standing(root: StorageRoot, capability: str, *, site: Site | None = None) -> Standing:
    """The selection and what became of it here. Raises Refusal E-REG-022 where no selection can be read, E-STORE-02x."""
    return Standing(capability, activation.active(root, capability, site=site), in_force(root, capability, site=site))


def in_force(root: StorageRoot, capability: str, *, site: Site | None = None) -> Applied[Any]:
    """The policy that readers use now; its value is None for the built-in defaults. Never raises a refusal: the last good one stays in force."""

    def load(selection: Active) -> Any:
        version = resolve(root, _kind(), f"{selection.id}@{selection.version}", for_new=False, site=site)
        if version.digest != selection.digest:
            message = f"{version} has other bytes than when it was activated"
            raise Refusal("E-REG-014", message, found=version.digest, allowed=selection.digest)
        require_content(version)
        return LOADERS[capability](version.content)

    return activation.applied(root, capability, load, site=site)


def activate(root: StorageRoot, site: Site, user: User, ref: str, generation: int | None, *, now: str) -> Standing:
    """Select the exact version `ref`, whole and loadable. Raises Refusal E-REG-*, E-INSTALL-030 (no exact version), E-INSTALL-031 (no policy)."""
    if not parse_ref(ref, "REF").version:
        raise Refusal("E-INSTALL-030", "names no version", field="REF", found=ref, allowed="OWNER/NAME@VERSION")
    version = resolve(root, _kind(), ref, for_new=True, site=site, field="REF")
    capability = _capability(version)
    require_content(version)
    LOADERS[capability](version.content)
    stored = activation.activate(
        root, site, user, capability, version.id, version.version, version.digest, generation, now=now
    )
    return Standing(capability, stored, in_force(root, capability, site=site))


def deactivate(
    root: StorageRoot, site: Site, user: User, capability: str, generation: int | None, *, now: str
) -> Standing:
    """Back to the built-in defaults. Raises Refusal E-REG-007, E-REG-020 … E-REG-022, E-STORE-02x."""
    stored = activation.deactivate(root, site, user, capability, generation, now=now)
    return Standing(capability, stored, in_force(root, capability, site=site))


def _capability(version: Version) -> str:
    found = str(version.facts["manifest"]["capability"])
    if found not in LOADERS:
        message = f"{version} is of the capability {found}"
        raise Refusal("E-INSTALL-031", message, field="REF", found=found, allowed=" or ".join(CAPABILITIES))
    return found


def _kind() -> Any:
    from hpc.plugins.kind import PLUGIN

    return PLUGIN
