"""What is enabled. An admin's word wins over the owner's, the owner's over how the version was published.

A family that is off is off in every version. Words are kept a family and a version: publishing another version changes none of them. Switching off
concerns new references only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hpc.errors.core import Refusal
from hpc.registry.generations import Generation, Pointer, State, require_whole
from hpc.registry.pointers import admin_switch, make_admin_folder, owner_switch
from hpc.registry.problems import Problem
from hpc.registry.shelf import Shelf
from hpc.site.roll import require_active
from hpc.site.users import User, is_admin

if TYPE_CHECKING:
    from hpc.site.sitefile import Site

ENABLED: Final = "enabled"
DISABLED: Final = "disabled"
WORDS: Final = (ENABLED, DISABLED, "")
ADMIN, OWNER = "admin", "owner"
Body = dict[str, Any]


@dataclass(frozen=True)
class Words:
    """One side's words. `generation` is what a writer must name; `problems` say why the newest is not in force."""

    generation: int = 0
    family: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    recommended: str = ""
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class Switch:
    """Both sides' words on one package."""

    admin: Words
    owner: Words

    @property
    def recommended(self) -> str:
        return self.admin.recommended

    @property
    def family(self) -> str:
        return self.admin.family or self.owner.family or ENABLED

    def word(self, version: str, starts: str) -> str:
        """What is said of the version alone."""
        return self.admin.versions.get(version, "") or self.owner.versions.get(version, "") or starts

    def enabled(self, version: str, starts: str) -> bool:
        return self.family == ENABLED and self.word(version, starts) == ENABLED

    def could_be_enabled(self, version: str) -> bool:
        """False if no record of the version could make it enabled, so that it need not be read."""
        return self.enabled(version, ENABLED)

    def decided_by(self, version: str, starts: str) -> str:
        """Whose word makes the version what it is, in words."""
        if self.family == DISABLED:
            return f"{'an admin' if self.admin.family else 'its owner'} (the whole family)"
        if self.admin.versions.get(version):
            return "an admin"
        return "its owner" if self.owner.versions.get(version) else f"how it was published ({starts})"

    @property
    def problems(self) -> tuple[Problem, ...]:
        return self.admin.problems + self.owner.problems


def read_switch(shelf: Shelf, owner: str, name: str, uid: int) -> Switch:
    """Both sides' words, each from its last good generation. Raises Refusal E-REG-022 where none is good, E-STORE-02x."""
    sides = (admin_switch(shelf.root, shelf.kind, owner, name, site=shelf.site), owner_switch(shelf, owner, name, uid))
    admin, own = (_words(pointer) for pointer in sides)
    return Switch(admin, own)


def _words(pointer: Pointer) -> Words:
    state = pointer.believed()
    if state.good is None:
        return Words()
    body = check_body(state.good)
    return Words(state.number, body["family"], body["versions"], body["recommended"], state.problems)


def check_body(generation: Generation) -> Body:
    """The words of a generation, whatever shape they have: what is no word counts as none said. Pure."""
    body = generation.body
    versions = body.get("versions")
    return {
        "family": body.get("family") if body.get("family") in WORDS else "",
        "versions": {k: v for k, v in versions.items() if v in WORDS} if isinstance(versions, dict) else {},
        "recommended": r if isinstance(r := body.get("recommended"), str) else "",
    }


def set_family(
    shelf: Shelf,
    owner: str,
    name: str,
    word: str,
    *,
    user: User,
    site: Site,
    now: str,
    side: str = "",
    expected: int | None = None,
) -> int:
    """Say `word` of the whole family ("" takes it back); the new generation.

    `side`: whose word it is; by default the owner's for one's own packages, else the admins'. `expected`: the generation that was read; by
    default the present one. Raises Refusal E-REG-002, E-REG-003, E-REG-007, E-REG-020 … E-REG-023, E-SITE-032 (retired), E-STORE-02x.
    """
    _check_word(word)

    def edit(body: Body) -> None:
        body["family"] = word

    if word == DISABLED:
        protect(shelf, owner, name, "", site=site)
    return _change(shelf, owner, name, edit, user=user, site=site, now=now, side=side, expected=expected)


def set_version(
    shelf: Shelf,
    owner: str,
    name: str,
    version: str,
    word: str,
    *,
    user: User,
    site: Site,
    now: str,
    side: str = "",
    expected: int | None = None,
) -> int:
    """Say `word` of one version; otherwise as `set_family`."""
    _check_word(word)
    _require_version(shelf, owner, name, version)

    def edit(body: Body) -> None:
        body["versions"] = {k: v for k, v in {**body["versions"], version: word}.items() if v}

    if word == DISABLED:
        protect(shelf, owner, name, version, site=site)
    return _change(shelf, owner, name, edit, user=user, site=site, now=now, side=side, expected=expected)


def recommend(
    shelf: Shelf, owner: str, name: str, version: str, *, user: User, site: Site, now: str, expected: int | None = None
) -> int:
    """Make `version` what an unpinned reference means ("" : the newest enabled again). Admins only. Raises as `set_family`."""
    if version:
        _require_version(shelf, owner, name, version)

    def edit(body: Body) -> None:
        body["recommended"] = version

    return _change(shelf, owner, name, edit, user=user, site=site, now=now, side=ADMIN, expected=expected)


def _check_word(word: str) -> None:
    if word not in WORDS:
        raise ValueError(f"{word!r} is none of {WORDS}")


def _require_version(shelf: Shelf, owner: str, name: str, version: str) -> None:
    have = shelf.versions(owner, name)
    if version not in have:
        allowed = ", ".join(have[:20]) or "the package has no versions"
        raise Refusal("E-REG-002", f"{owner}/{name} has no version {version}", found=version, allowed=allowed)


def choose_side(owner: str, user: User, uid: int, side: str) -> str:
    """Whose word a caller's word is. The owner's only where name and uid are theirs."""
    if side:
        return side
    return OWNER if (owner, uid) == (user.name, user.uid) else ADMIN


def _change(
    shelf: Shelf,
    owner: str,
    name: str,
    edit: Callable[[Body], None],
    *,
    user: User,
    site: Site,
    now: str,
    side: str,
    expected: int | None,
) -> int:
    require_active(shelf.root, user, site=site)
    uid = shelf.require(owner, name)
    side = choose_side(owner, user, uid, side)
    if side == OWNER:
        if user.uid != uid:
            raise Refusal("E-REG-003", f"{owner}/{name} is not {user.name}'s", found=user.name, allowed=owner)
        pointer = owner_switch(shelf, owner, name, uid)
    else:
        require_admin(user, site, f"switch {owner}/{name} for the whole platform")
        pointer = admin_switch(shelf.root, shelf.kind, owner, name, site=site)
    state = pointer.state()
    if expected is None:
        require_whole(pointer, state)
    body = _fresh(state, side)
    edit(body)
    if side == OWNER:
        pointer.make(shelf.package(owner, name), 0o755)
    else:
        make_admin_folder(pointer)
    return pointer.advance(state.number if expected is None else expected, body, by=user, now=now)


def _fresh(state: State, side: str) -> Body:
    body = check_body(state.good) if state.good else {"family": "", "versions": {}, "recommended": ""}
    if side == OWNER:
        del body["recommended"]
    return body


def require_admin(user: User, site: Site, action: str) -> None:
    """Raises Refusal E-REG-007 unless `user` is an admin of the site. The file system refuses the others as well."""
    if not is_admin(user, site):
        group = f", members of {site.admin_group}" if site.admin_group else ""
        allowed = f"root, the owner of site/{group}"
        raise Refusal("E-REG-007", f"{user.name} may not {action}", found=user.name, allowed=allowed)


def protect(shelf: Shelf, owner: str, name: str, version: str, *, site: Site | None) -> None:
    """Return unless the package ("" : any version of it) is a policy in force. Raises Refusal E-REG-023, E-REG-022, E-STORE-02x."""
    from hpc.registry.activation import active, capabilities

    for capability in capabilities(shelf.root):
        now = active(shelf.root, capability, site=site)
        if now.id == f"{owner}/{name}" and version in ("", now.version):
            raise Refusal(
                "E-REG-023",
                f"{now.id}@{now.version} is the active {capability}",
                found=f"{now.id}@{now.version}",
                hint=f"first `tp plugin deactivate {capability}` (built-in defaults) or activate another version",
            )
