"""Who someone is: what the machine's kernel and user database say, never what a variable or a client claims."""

from __future__ import annotations

import grp
import os
import pwd
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpc.errors.core import Refusal
from hpc.spec.text import SEGMENT, SEGMENT_ALLOWED, visible

if TYPE_CHECKING:
    from hpc.site.sitefile import Site


@dataclass(frozen=True)
class User:
    """One account: name (safe as a path segment), uid, primary gid."""

    name: str
    uid: int
    gid: int


def check_name(name: str, field: str = "") -> str:
    """`name` itself. Raises Refusal E-SITE-031 when it cannot be one part of a path."""
    if len(name) > 64 or not SEGMENT.fullmatch(name):
        raise Refusal(
            "E-SITE-031",
            f"{visible(name)!r} cannot be a folder name",
            field=field,
            found=visible(name),
            allowed=SEGMENT_ALLOWED,
        )
    return name


def real_user() -> User:
    """The caller by the kernel's real uid. Raises Refusal E-SITE-030 (no such account), E-SITE-031 (unsafe name)."""
    return user_of(os.getuid())


def user_of(uid: int) -> User:
    """The account with this uid. Raises Refusal E-SITE-030, E-SITE-031."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        raise Refusal("E-SITE-030", f"uid {uid} has no name on this machine", found=uid) from None
    return User(check_name(entry.pw_name), uid, entry.pw_gid)


def find_user(name: str) -> User:
    """The account with this name. Raises Refusal E-SITE-030, E-SITE-031."""
    try:
        entry = pwd.getpwnam(check_name(name))
    except KeyError:
        raise Refusal("E-SITE-030", f"there is no user {name}", found=name) from None
    return User(entry.pw_name, entry.pw_uid, entry.pw_gid)


def find_group(name: str, field: str = "") -> int:
    """The gid of a group. Raises Refusal E-SITE-043."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise Refusal("E-SITE-043", f"there is no group {visible(name)}", field=field, found=visible(name)) from None


def in_group(user: User, gid: int) -> bool:
    """True if the user database puts `user` into the group, as primary or further group."""
    try:
        return user.gid == gid or user.name in grp.getgrgid(gid).gr_mem
    except KeyError:
        return False


def is_admin(user: User, site: Site) -> bool:
    """True for root, the owner of site/, and members of the admin group. A group that does not exist has no members."""
    if user.uid in (0, site.owner_uid):
        return True
    try:
        return bool(site.admin_group) and in_group(user, grp.getgrnam(site.admin_group).gr_gid)
    except KeyError:
        return False
