"""Which policy is in force: one exact version a capability, or the built-in defaults. Moved by admins, read by everybody.

A reader that cannot read or load what is selected keeps the last selection that it can, and says so. Publishing activates nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from tuneplane.contract.layout import StorageRoot
from tuneplane.record.digest import is_digest

from hpc.errors.core import Refusal, Refusals
from hpc.registry.generations import Generation, require_whole
from hpc.registry.pointers import POLICY, make_admin_folder, policy_pointer
from hpc.registry.problems import INCOMPLETE, Problem, of_refusal
from hpc.registry.shelf import is_segment, parse_ref
from hpc.registry.switches import require_admin
from hpc.site.roll import require_active
from hpc.site.users import User
from hpc.store.faults import refusal

if TYPE_CHECKING:
    from hpc.site.sitefile import Site

T = TypeVar("T")


@dataclass(frozen=True)
class Active:
    """A selection. `id` "" : the built-in defaults. `generation`: what the next change must name; `of`: where this selection was made."""

    capability: str
    generation: int
    id: str = ""
    version: str = ""
    digest: str = ""
    of: int = 0
    actor: str = ""
    at: str = ""
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class Applied(Generic[T]):
    """What a reader ended up with. `value` None: the built-in defaults. `problems`: why it is not the newest selection."""

    selection: Active
    value: T | None
    problems: tuple[Problem, ...] = ()


def capabilities(root: StorageRoot) -> list[str]:
    """Capabilities for which something was ever selected."""
    folder = root.activation / POLICY
    try:
        return sorted(n for n in os.listdir(folder) if is_segment(n))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as exc:
        raise refusal(exc, folder, "list") from exc


def active(root: StorageRoot, capability: str, *, site: Site | None = None) -> Active:
    """The newest selection that can be believed. Raises Refusal E-REG-022 where there are some and none can, E-STORE-02x."""
    pointer = policy_pointer(root, _name(capability), site=site)
    state = pointer.believed()
    if state.good is None:
        return Active(capability, state.number)
    return _selection(capability, state.good, state.number, state.problems)


def _selection(capability: str, good: Generation, number: int, problems: tuple[Problem, ...]) -> Active:
    name, version, digest = (str(good.body.get(key, "")) for key in ("id", "version", "digest"))
    return Active(capability, number, name, version, digest, good.number, good.actor, good.at, problems)


def history(root: StorageRoot, capability: str, *, site: Site | None = None) -> list[Active]:
    """Every selection that can be believed, newest first."""
    pointer = policy_pointer(root, _name(capability), site=site)
    numbers = pointer.numbers()
    return [_selection(capability, good, numbers[-1], ()) for good in pointer.history()]


def applied(root: StorageRoot, capability: str, load: Callable[[Active], T], *, site: Site | None = None) -> Applied[T]:
    """The newest selection that `load` can load; `load` is not asked for the built-in defaults. Never raises a refusal.

    A selection that cannot be loaded leaves the one before in force, and at last the defaults; the problems say why.
    """
    problems: list[Problem] = []
    folder = str(root.activation / POLICY / capability)
    try:
        problems += active(root, capability, site=site).problems
        selections = history(root, capability, site=site)
    except Refusal as fault:
        return Applied(Active(capability, 0), None, (of_refusal(fault, folder, INCOMPLETE),))
    for selection in selections:
        try:
            return Applied(selection, load(selection) if selection.id else None, tuple(problems))
        except Refusal as fault:
            problems.append(_not_loaded(selection, fault, folder))
        except Refusals as faults:
            problems += [_not_loaded(selection, fault, folder) for fault in faults.items]
    return Applied(Active(capability, 0), None, tuple(problems))


def _not_loaded(selection: Active, fault: Refusal, folder: str) -> Problem:
    text = f"{selection.id}@{selection.version} (generation {selection.of}) cannot be loaded: {fault.message}"
    return Problem(INCOMPLETE, fault.code, folder, text)


def activate(
    root: StorageRoot,
    site: Site,
    user: User,
    capability: str,
    id: str,  # noqa: A002 - the field's word
    version: str,
    digest: str,
    expected_generation: int | None = None,
    *,
    now: str,
) -> Active:
    """Select one exact version; the selection as it stands now. That the version exists and may be used is the caller's to see.

    `expected_generation` None: the present one. Raises Refusal E-REG-007, E-REG-008, E-REG-020 … E-REG-022, E-SITE-032, E-STORE-02x.
    """
    ref = parse_ref(f"{id}@{version}", "id")
    if not is_digest(digest):
        raise ValueError(f"{digest!r} is no digest")
    body = {"id": ref.id, "version": ref.version, "digest": digest}
    return _select(root, site, user, capability, body, expected_generation, now)


def deactivate(
    root: StorageRoot, site: Site, user: User, capability: str, expected_generation: int | None = None, *, now: str
) -> Active:
    """Go back to the built-in defaults. Raises as `activate`."""
    body = {"id": "", "version": "", "digest": ""}
    return _select(root, site, user, capability, body, expected_generation, now)


def _select(
    root: StorageRoot, site: Site, user: User, capability: str, body: dict[str, str], expected: int | None, now: str
) -> Active:
    require_active(root, user, site=site)
    require_admin(user, site, f"select the {_name(capability)} of the whole platform")
    pointer = policy_pointer(root, capability, site=site)
    if expected is None:
        state = pointer.state()
        require_whole(pointer, state)
        expected = state.number
    make_admin_folder(pointer)
    number = pointer.advance(expected, body, by=user, now=now)
    return Active(capability, number, body["id"], body["version"], body["digest"], number, user.name, now)


def _name(capability: str) -> str:
    if not is_segment(capability):
        raise ValueError(f"{capability!r} is no capability")
    return capability
