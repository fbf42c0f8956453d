"""Where an experiment's lock stands, by both verdicts, and how it is brought up to the catalogue.

Upgrading several experiments is all or nothing: every new lock is worked out before the first is written, and if a write
fails (or is interrupted) the ones before it are put back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuneplane.record import files
from tuneplane.record.canonical import pretty_bytes

from hpc.catalog.locks import (
    LOCK_NAME,
    LockState,
    admission_refusals,
    lock_state,
    make_lock,
    malformed_reason,
    read_lock,
    text_at,
)
from hpc.catalog.recipes import Recipe
from hpc.catalog.shelf import Catalogue
from hpc.errors import Refusal, Refusals


@dataclass(frozen=True)
class Standing:
    """Both verdicts on one lock. `refusals` are admission's; [] means that it would admit."""

    recipe: str
    lock: LockState
    refusals: list[Refusal]

    @property
    def good(self) -> bool:
        """True if a submission would be refused by neither."""
        return self.lock.admits and not self.refusals

    def as_json(self) -> dict[str, Any]:
        return {
            "recipe": self.recipe,
            "lock": {"state": self.lock.state, "admits": self.lock.admits, "reasons": self.lock.reasons},
            "admission": {"admits": not self.refusals, "refusals": [r.as_json() for r in self.refusals]},
        }


def standing(folder: Path, catalogue: Catalogue, core_version: str) -> Standing:
    """Both verdicts on the lock of an experiment folder. What is wrong with the lock is the answer, not an exception."""
    try:
        lock = read_lock(folder)
    except Refusal as exc:
        return Standing("", LockState("malformed", [exc.message]), [exc])
    state, name = lock_state(lock, catalogue, core_version), text_at(lock, "recipe.name")
    if reason := malformed_reason(lock):
        return Standing(name, state, [Refusal("E-CATALOG-021", reason, field=str(folder / LOCK_NAME))])
    try:
        refusals = admission_refusals(lock, state.recipe or catalogue.get(name), core_version)
    except Refusal as exc:
        refusals = [exc]
    except Refusals as exc:
        refusals = exc.items
    return Standing(name, state, refusals)


@dataclass(frozen=True)
class Upgrade:
    """One experiment's new lock. `before` is the old file's bytes (None: there was none); `changes` say what differs.

    `remarks` are refusals of the experiment's own settings by the recipe as it is now: the lock is right, config.yaml is not.
    """

    folder: Path
    before: bytes | None
    lock: dict[str, Any]
    changes: list[str]
    remarks: list[Refusal] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        remarks = [r.as_json() for r in self.remarks]
        return {"recipe": self.lock["recipe"]["name"], "changes": self.changes, "remarks": remarks}


def plan_upgrade(
    folder: Path,
    config: Mapping[str, Any],
    catalogue: Catalogue,
    *,
    core_version: str,
    method: str = "",
    framework_version: str = "",
) -> Upgrade:
    """The lock that the catalogue gives this experiment now; nothing is written.

    `method` names the recipe where the lock does not. The locked framework version is kept while the recipe still has it.
    Raises Refusal E-CATALOG-001, 014, 020, 021, 027.
    """
    before = _bytes(folder / LOCK_NAME)
    old = _old_lock(folder, required=not method)
    name = method or text_at(old, "recipe.name")
    if not name:
        raise Refusal("E-CATALOG-021", "names no recipe", field=str(folder / LOCK_NAME))
    recipe = catalogue.get(name)
    locked = text_at(old, "framework.version")
    version = framework_version or (locked if locked in recipe.versions else recipe.default_version)
    new = make_lock(recipe, core_version=core_version, config=config, framework_version=version)
    if refused := [r for r in admission_refusals(new, recipe, core_version) if r.code == "E-CATALOG-027"]:
        raise refused[0]
    unchanged = before == pretty_bytes(new)
    return Upgrade(folder, before, new, [] if unchanged else _changes(old, new), _remarks(recipe, config, version))


def _old_lock(folder: Path, *, required: bool) -> object:
    try:
        return read_lock(folder)
    except Refusal:
        if required:
            raise
        return {}


def _bytes(path: Path) -> bytes | None:
    try:
        return files.read_bytes(path, limit=1 << 20)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as exc:
        raise Refusal("E-CATALOG-021", str(exc), field=str(path)) from exc


def _flat(value: object, prefix: str = "") -> dict[str, str]:
    if not isinstance(value, Mapping):
        return {prefix: str(value)}
    out: dict[str, str] = {}
    for key, item in value.items():
        out |= _flat(item, f"{prefix}.{key}" if prefix else str(key))
    return out


def _changes(old: object, new: Mapping[str, Any]) -> list[str]:
    if malformed_reason(old):
        framework = new["framework"]
        return [
            f"a new lock: {new['recipe']['name']} {new['recipe']['version']}, {framework['kind']} {framework['version']}"
        ]
    was, now = _flat(old), _flat(new)
    lines = [
        f"{path}: {was.get(path, '(none)')} -> {now.get(path, '(none)')}"
        for path in sorted(was.keys() | now.keys())
        if was.get(path) != now.get(path)
    ]
    return lines or ["the file's form"]


def _remarks(recipe: Recipe, config: Mapping[str, Any], version: str) -> list[Refusal]:
    """What the recipe now refuses of the experiment's settings; a missing one may still come with --set."""
    try:
        recipe.resolve(recipe.configured(config, version), version)
    except Refusals as exc:
        return [r for r in exc.items if r.code != "E-CATALOG-011"]
    return []


def apply_upgrades(
    upgrades: Sequence[Upgrade], replace: Callable[[Path, bytes], None] = lambda path, data: files.replace(path, data)
) -> None:
    """Write the new locks, all of them or none. Raises Refusal E-CATALOG-029; then every lock is as it was."""
    done: list[Upgrade] = []
    try:
        for upgrade in upgrades:
            if upgrade.changes:
                done.append(upgrade)
                replace(upgrade.folder / LOCK_NAME, pretty_bytes(upgrade.lock))
    except BaseException as exc:
        for upgrade in reversed(done):
            _put_back(upgrade)
        if isinstance(exc, OSError):
            where = str(done[-1].folder / LOCK_NAME)
            raise Refusal("E-CATALOG-029", exc.strerror or str(exc), field=where) from exc
        raise


def _put_back(upgrade: Upgrade) -> None:
    path = upgrade.folder / LOCK_NAME
    if _bytes(path) == upgrade.before:
        return
    if upgrade.before is None:
        path.unlink(missing_ok=True)
    else:
        files.replace(path, upgrade.before)
