"""Where each pointer of the registry lies, and whose word it is.

registry/activation/policy/<capability>/<n>.json               admins: the policy in force
registry/activation/switches/<kind>/<owner>/<name>/<n>.json    admins: enabled, disabled, recommended
registry/<shelf>/<owner>/<name>/.switch/<n>.json               the owner: enabled, disabled
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tuneplane.contract.layout import StorageRoot

from hpc.errors.core import Refusal
from hpc.registry.generations import Judge, Pointer
from hpc.registry.kinds import Kind
from hpc.registry.problems import TAMPERED, Problem, of_refusal
from hpc.registry.shelf import SWITCH, Shelf
from hpc.site.trust import GROUP_OR_OTHER_WRITE, require_admin_owned, require_owner_folder

if TYPE_CHECKING:
    from hpc.site.sitefile import Site

POLICY: Final = "policy"
SWITCHES: Final = "switches"


def admin_judge(root: StorageRoot, site: Site | None) -> Judge:
    """Believes what lies on a path that only admins can write."""

    def judge(path: Path, found: os.stat_result) -> Problem | None:
        try:
            require_admin_owned(root, path, site=site)
        except Refusal as fault:
            return of_refusal(fault, str(path))
        return None

    return judge


def owner_judge(uid: int) -> Judge:
    """Believes what the owner of a package wrote."""

    def judge(path: Path, found: os.stat_result) -> Problem | None:
        if found.st_uid != uid:
            text = f"belongs to uid {found.st_uid}"
            return Problem(TAMPERED, "E-REG-015", str(path), text, f"uid {found.st_uid}", f"uid {uid}")
        if found.st_mode & GROUP_OR_OTHER_WRITE:
            text = f"has mode {stat.S_IMODE(found.st_mode):04o}"
            return Problem(TAMPERED, "E-REG-015", str(path), text, allowed="0444")
        try:
            require_owner_folder(path.parent, uid)
        except Refusal as fault:
            return of_refusal(fault, str(path.parent))
        return None

    return judge


def policy_pointer(root: StorageRoot, capability: str, *, site: Site | None = None) -> Pointer:
    return Pointer(root, root.activation / POLICY / capability, judge=admin_judge(root, site))


def admin_switch(root: StorageRoot, kind: Kind, owner: str, name: str, *, site: Site | None = None) -> Pointer:
    folder = root.activation / SWITCHES / kind.name / owner / name
    return Pointer(root, folder, judge=admin_judge(root, site))


def owner_switch(shelf: Shelf, owner: str, name: str, uid: int) -> Pointer:
    return Pointer(shelf.root, shelf.package(owner, name) / SWITCH, judge=owner_judge(uid))


def make_admin_folder(pointer: Pointer) -> None:
    """Make an admins' pointer folder; who may write registry/activation may write it, too. Raises Refusal E-STORE-021 for others."""
    activation = pointer.root.activation
    found = os.lstat(activation)
    pointer.make(activation, stat.S_IMODE(found.st_mode), found.st_uid if os.geteuid() == 0 else -1)
