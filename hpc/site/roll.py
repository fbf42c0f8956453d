"""The admins' records of users, and whose uid an owner's folders must have. Loads no model and no YAML: every reader of the registry needs it."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from tuneplane.contract.layout import StorageRoot
from tuneplane.record.canonical import CanonicalError, parse_json

from hpc.errors.core import Refusal
from hpc.site.plan import user_record
from hpc.site.trust import require_admin_owned
from hpc.site.users import User, check_name, find_user
from hpc.store.faults import refusal
from hpc.store.folders import read_record

if TYPE_CHECKING:
    from hpc.site.sitefile import Site

SCHEMA: Final = "tuneplane-hpc/user/v1"
ACTIVE: Final = "active"
RETIRED: Final = "retired"
SHIPPED_OWNER: Final = "tuneplane"
"""Owner of what ships with the toolkit on every shelf; it is no account, and its folders belong to the owner of site/."""


@dataclass(frozen=True)
class Member:
    """What the admins wrote about one user. `transferred_to`: who has the folders now ("" = nobody else)."""

    name: str
    uid: int
    state: str
    changed_at: str
    transferred_to: str = ""

    def as_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self)}


def read_member(root: StorageRoot, name: str, *, site: Site | None = None) -> Member | None:
    """The admins' record of a user, None if there is none. Raises Refusal E-SITE-01x if others could have written it."""
    path = user_record(root, check_name(name))
    if not os.path.lexists(path):
        return None
    require_admin_owned(root, path, site=site)
    try:
        value = parse_json(read_record(path, anchor=root.path))
        if not isinstance(value, dict) or value.pop("schema", "") != SCHEMA:
            raise CanonicalError(f"schema is not {SCHEMA}")
        member = Member(**value)
    except (CanonicalError, TypeError) as exc:
        raise Refusal("E-SITE-001", str(exc), field=str(path)) from exc
    texts = (member.state, member.changed_at, member.transferred_to)
    if member.name != name or type(member.uid) is not int or not all(isinstance(t, str) for t in texts):
        raise Refusal("E-SITE-001", f"is not a record of {name}", field=str(path))
    if member.state not in (ACTIVE, RETIRED):
        raise Refusal("E-SITE-001", f"is not a record of {name}", field=str(path))
    return member


def require_active(root: StorageRoot, user: User, *, site: Site | None = None) -> None:
    """Return only if `user` may make new records. Raises Refusal E-SITE-032 (retired), E-SITE-035 (another uid)."""
    member = read_member(root, user.name, site=site)
    if member is None:
        return
    if member.state == RETIRED:
        raise Refusal("E-SITE-032", f"{user.name} is retired since {member.changed_at}", found=user.name)
    if member.uid != user.uid:
        raise Refusal(
            "E-SITE-035",
            f"{user.name} was added with uid {member.uid} and has uid {user.uid} now",
            found=user.uid,
            allowed=f"uid {member.uid}",
        )


def owner_uid(root: StorageRoot, name: str, *, site: Site | None = None) -> int:
    """The uid that the folders of owner `name` must have: the transferee's, else the recorded one, else the account's.

    So records of people whose account is gone stay checkable. Raises Refusal E-SITE-030 if nobody knows the name.
    """
    member = read_member(root, name, site=site)
    if member is None:
        return find_user(name).uid
    if member.transferred_to:
        return owner_uid(root, member.transferred_to, site=site)
    return member.uid


def shelf_uid(root: StorageRoot, owner: str, *, site: Site | None = None) -> int:
    """The uid that the folders of `owner` on a registry shelf must have. Raises Refusal E-SITE-030, E-STORE-02x."""
    if owner != SHIPPED_OWNER:
        return owner_uid(root, owner, site=site)
    try:
        return os.lstat(root.site).st_uid
    except OSError as exc:
        raise refusal(exc, root.site, "look at") from exc
