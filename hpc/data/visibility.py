"""Who may read a data set or volume: the mode of its name's folder, `registry/<shelf>/<owner>/<name>`.

Versions themselves are always 0555 and 0444, which the registry checks to the bit; whoever cannot enter the folder above them reaches none of
them. So visibility belongs to the name, never to one version. It protects from other accounts, not from the owner's own jobs or from root.
"""

from __future__ import annotations

import errno
import grp
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tuneplane.contract.layout import StorageRoot

from hpc.errors.core import Refusal
from hpc.site.acl import ACCESS, GROUP_OBJ, MASK, OTHER, USER, USER_OBJ, Entry, format_acl, parse_acl
from hpc.site.users import User, find_group, find_user, in_group
from hpc.store.faults import refusal
from hpc.store.folders import make_folder

if TYPE_CHECKING:
    from hpc.site.sitefile import Site

PUBLIC: Final = "public"
GROUP: Final = "group"
PRIVATE: Final = "private"
MODES: Final = {PUBLIC: 0o755, GROUP: 0o750, PRIVATE: 0o700}


@dataclass(frozen=True)
class Visibility:
    """`public`, `group` with the group's name, or `private`."""

    word: str
    group: str = ""

    def __str__(self) -> str:
        return f"{self.word} {self.group}" if self.group else self.word


def visibility_of(package: Path) -> Visibility:
    """What the folder's mode says. Raises Refusal E-STORE-02x."""
    try:
        found = os.lstat(package)
        shared = _group_bits(package, found)
    except OSError as exc:
        raise refusal(exc, package, "look at") from exc
    if found.st_mode & stat.S_IXOTH:
        return Visibility(PUBLIC)
    return Visibility(GROUP, group_name(found.st_gid)) if shared & 1 else Visibility(PRIVATE)


def _group_bits(package: Path, found: os.stat_result) -> int:
    """The group's own permission: with an access list the mode shows the list's mask in its place."""
    try:
        entries = parse_acl(os.getxattr(package, ACCESS, follow_symlinks=False))
    except (OSError, ValueError):
        return stat.S_IMODE(found.st_mode) >> 3 & 7
    return next((e.perm for e in entries if e.tag == GROUP_OBJ), 0)


def group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return f"gid {gid}"


def wanted(private: bool, group: str) -> Visibility | None:
    """What the flags of a command ask for; None where they say nothing. Raises Refusal E-DATA-021."""
    if private and group:
        raise Refusal("E-DATA-021", "private and for a group at once", field="--private", allowed="one of the two")
    return Visibility(PRIVATE) if private else Visibility(GROUP, group) if group else None


def make_package(package: Path, ask: Visibility, *, user: User, uid: int, root: StorageRoot, site: Site) -> bool:
    """Make the name's folder with the asked visibility, or set it on the one that is there; True if it is new.

    The service user can still read it where the site has one and the mount has access lists, so that audits see it. Raises Refusal E-DATA-021
    (not the owner, not one's group), E-STORE-01x, E-STORE-02x.
    """
    if user.uid not in (0, uid):
        raise Refusal("E-DATA-021", "only its owner says who may read it", field=str(package), found=user.name)
    gid = -1
    if ask.word == GROUP:
        gid = find_group(ask.group, "--group")
        if user.uid != 0 and not in_group(user, gid):
            raise Refusal("E-DATA-021", f"{user.name} is not in the group", field="--group", found=ask.group)
    _drop_list(package, MODES[ask.word])
    new = make_folder(package, MODES[ask.word], uid=uid, gid=gid, anchor=root.path)
    if ask.word != PUBLIC and site.service_user:
        _let_service_read(package, MODES[ask.word], find_user(site.service_user).uid)
    return new


def _drop_list(package: Path, mode: int) -> None:
    """Where there is an access list, put the mode in its place in one step: a changed mode alone would only move the list's mask."""
    entries = [Entry(USER_OBJ, mode >> 6), Entry(GROUP_OBJ, mode >> 3 & 7), Entry(OTHER, mode & 7)]
    try:
        os.getxattr(package, ACCESS, follow_symlinks=False)
        os.setxattr(package, ACCESS, format_acl(entries), follow_symlinks=False)
    except OSError as exc:
        if exc.errno not in (errno.ENODATA, errno.EOPNOTSUPP, errno.ENOENT):
            raise refusal(exc, package, "set the access list of") from exc


def _let_service_read(package: Path, mode: int, uid: int) -> None:
    """An access list that adds the service user to what the mode says. Where the mount has none, audits say that they could not look."""
    group = mode >> 3 & 7
    entries = [Entry(USER_OBJ, 7), Entry(USER, 5, uid), Entry(GROUP_OBJ, group), Entry(MASK, 5), Entry(OTHER, 0)]
    try:
        os.setxattr(package, ACCESS, format_acl(entries), follow_symlinks=False)
    except OSError as exc:
        if exc.errno != errno.EOPNOTSUPP:
            raise refusal(exc, package, "set the access list of") from exc
