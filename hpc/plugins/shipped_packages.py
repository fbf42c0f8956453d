"""The packages that come with the toolkit, put on a root's shelf under their reserved owner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import tuneplane
from tuneplane.contract.layout import StorageRoot
from tuneplane.record.digest import directory_digest_v1

from hpc.catalog.shipped import shipped
from hpc.errors import Refusal
from hpc.plugins.kind import PLUGIN
from hpc.registry.publish import publish
from hpc.registry.resolve import resolve
from hpc.registry.shelf import SHIPPED_OWNER
from hpc.site.users import User

if TYPE_CHECKING:
    from hpc.site.sitefile import Site


@dataclass(frozen=True)
class Shelved:
    """What became of one package: `new`, or `unchanged` where that version stands on the shelf with the same bytes."""

    id: str
    version: str
    action: str


def publish_shipped_plugins(root: StorageRoot, site: Site, user: User, *, now: str) -> list[Shelved]:
    """Put every shipped package on the shelf; admins only. Doing it twice changes nothing, and no switch is touched.

    Raises Refusal E-REG-*, E-PLUGIN-*; E-REG-001 where a shipped version stands there with other bytes.
    """
    out = []
    for folder in sorted(p for p in shipped("plugins").iterdir() if (p / "plugin.yaml").is_file()):
        checked = PLUGIN.check(folder)
        ref = f"{SHIPPED_OWNER}/{checked.name}@{checked.version}"
        action = "unchanged"
        if _standing_digest(root, site, ref) != directory_digest_v1(folder):
            publish(
                root, PLUGIN, folder, user=user, owner=SHIPPED_OWNER, site=site, method="shipped",
                core_version=tuneplane.__version__, now=now,
            )  # fmt: skip
            action = "new"
        out.append(Shelved(f"{SHIPPED_OWNER}/{checked.name}", checked.version, action))
    return out


def _standing_digest(root: StorageRoot, site: Site, ref: str) -> str:
    """The digest of what stands on the shelf under that version, "" where nothing does."""
    try:
        return resolve(root, PLUGIN, ref, site=site, for_new=False).digest
    except Refusal as refusal:
        if refusal.code == "E-REG-002":
            return ""
        raise
