"""The storage root's folders: who writes each, and with which mode. Pure.

Three kinds. *Admin* folders hold what everybody trusts. *Service* folders hold what the service user makes for
everybody. *Shared parents* hold one folder an owner: sticky, so that nobody can rename or remove another's.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tuneplane.contract.layout import StorageRoot

Kind = Literal["admin", "service", "shared"]
SHELVES: Final = ("plugins", "datasets", "volumes", "models", "environments")


@dataclass(frozen=True)
class Row:
    """One folder: path relative to the root, who writes it, its exact mode."""

    path: str
    kind: Kind
    mode: int


ROWS: Final = (
    Row("", "admin", 0o755),
    Row("site", "admin", 0o2755),
    Row("site/sbatch_templates", "admin", 0o2755),
    Row("site/images", "admin", 0o2755),
    Row("site/kernels", "admin", 0o2755),
    # The service user's signing key, readable for nobody else. The public key that counts stands in the site file.
    Row("site/keys", "service", 0o2755),
    Row("site/users", "admin", 0o2755),
    Row("registry", "admin", 0o2755),
    Row("registry/recipes", "admin", 0o2755),
    Row("registry/activation", "admin", 0o2755),
    *(Row(f"registry/{shelf}", "shared", 0o3775) for shelf in SHELVES),
    Row("registry/channels", "shared", 0o3775),
    Row("registry/seals", "service", 0o2755),
    Row("registry/index", "service", 0o2755),
    Row("registry/log", "service", 0o2755),
    Row("runs", "shared", 0o3775),
    Row("admitted", "service", 0o2755),
    Row("cache", "service", 0o2755),
    Row("cache/hf", "service", 0o2755),
    # Whoever fetches fills them; jobs compare every byte with the lock.
    Row("cache/hf/hub", "shared", 0o3775),
    Row("cache/hf/assets", "shared", 0o3775),
    Row("cache/datasets", "service", 0o2755),
    Row("cache/hubs", "service", 0o2755),
    Row("state", "shared", 0o3775),
)
TOP: Final = frozenset(row.path for row in ROWS if row.path and "/" not in row.path)
FOREIGN_BUT_HARMLESS: Final = frozenset({"lost+found", ".snapshot", ".snapshots", ".zfs"})
"""Names that file systems put at their own top."""


@dataclass(frozen=True)
class OwnerFolder:
    """One folder of an owner: its path, its mode, and whether it takes the project's group."""

    path: Path
    mode: int
    group: bool


def owner_folders(root: StorageRoot, name: str, *, project_group: bool = False) -> list[OwnerFolder]:
    """The folders that belong to one owner. With a project's group, runs/<owner> is setgid, so that runs inherit it."""
    shelves = [OwnerFolder(root.shelf(shelf) / name, 0o755, False) for shelf in (*SHELVES, "channels")]
    runs = OwnerFolder(root.owner_runs(name), 0o2750 if project_group else 0o750, True)
    return [*shelves, runs, OwnerFolder(root.user_state(name), 0o700, False)]


def user_record(root: StorageRoot, name: str) -> Path:
    """site/users/<name>.json: written when an admin adds, retires or transfers someone."""
    return root.site / "users" / f"{name}.json"
