"""What is found and refused at use: whose property a path is, and who else could have written it.

Admin property (site/, registry/recipes/, registry/activation/) counts only if every part of it up to the storage root
belongs to root, to the owner of site/, or to a member of the admin group, and nobody else can write it. An owner's
folder counts only if it belongs to the owner. Links count nowhere. All of it is a handful of lstat calls.

Does not promise anything about NFSv4 ACLs, nor about a client machine whose root is hostile (AUTH_SYS NFS).
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tuneplane.contract.layout import StorageRoot

from hpc.errors.core import Refusal
from hpc.site.acl import Writer, acl_writers
from hpc.site.users import User, find_group, in_group
from hpc.store.faults import refusal

if TYPE_CHECKING:
    from hpc.site.sitefile import Site

GROUP_OR_OTHER_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True)
class Doubt:
    """A path that is in order only if `gid` is the admin group's; `fault` is the refusal if it is not."""

    path: str
    gid: int
    fault: Refusal


def _lstat(path: str | os.PathLike[str]) -> os.stat_result:
    try:
        return os.lstat(path)
    except OSError as exc:
        raise refusal(exc, path, "look at") from exc


def writers(path: str | os.PathLike[str]) -> list[Writer]:
    """Everybody who may write `path` itself: its owner, group and everybody by mode, and whoever an ACL adds.

    Raises Refusal E-STORE-02x.
    """
    found = _lstat(path)
    out = [Writer("owner", found.st_uid, False)]
    if found.st_mode & stat.S_IWGRP:
        out.append(Writer("group", found.st_gid, False))
    if found.st_mode & stat.S_IWOTH:
        out.append(Writer("everybody", 0, False))
    try:
        return out + acl_writers(path)
    except OSError as exc:
        raise refusal(exc, path, "read the ACL of") from exc


def _is_member(uid: int, gid: int) -> bool:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return False
    return in_group(User(entry.pw_name, uid, entry.pw_gid), gid)


def judge_part(path: str, uids: frozenset[int], gid: int, *, lax_sticky: bool = False) -> Iterator[Doubt]:
    """Judge one part of an admin path. Raises Refusal for what no group could excuse; yields a Doubt for the rest.

    `uids`: who may own it. `gid`: the group whose members may. `lax_sticky`: a sticky folder may be open.
    """
    found = _lstat(path)
    mode = stat.S_IMODE(found.st_mode)
    if stat.S_ISLNK(found.st_mode):
        raise Refusal("E-SITE-013", "is a link", field=path, found=os.readlink(path))
    if found.st_uid not in uids:
        fault = Refusal(
            "E-SITE-010",
            f"belongs to uid {found.st_uid}, who is no admin",
            field=path,
            found=f"uid {found.st_uid}",
            allowed="root, the owner of site/, or a member of the admin group",
        )
        if not _is_member(found.st_uid, gid):
            raise fault
        yield Doubt(path, gid, fault)
    # In a sticky folder others may add names but cannot replace what an admin owns there.
    if lax_sticky and mode & stat.S_ISVTX:
        return
    # Before the mode, whose group bits only mirror the mask of a list.
    yield from _check_acl(path, uids)
    writable = Refusal(
        "E-SITE-011",
        f"has mode {mode:04o}",
        field=path,
        found=f"{mode:04o}, gid {found.st_gid}",
        allowed="no write permission for others than the admins",
    )
    if mode & stat.S_IWOTH:
        raise writable
    if mode & stat.S_IWGRP:
        yield Doubt(path, found.st_gid, writable)


def _check_acl(path: str, uids: frozenset[int]) -> Iterator[Doubt]:
    try:
        added = acl_writers(path)
    except OSError as exc:
        raise refusal(exc, path, "read the ACL of") from exc
    for writer in added:
        if writer.kind == "user" and writer.id in uids:
            continue
        fault = Refusal("E-SITE-012", f"an ACL lets {writer} write", field=path, found=str(writer))
        if writer.kind != "group":
            raise fault
        yield Doubt(path, writer.id, fault)


def _chain(path: Path, top: Path) -> list[str]:
    """`top`, …, `path`: every part from `top` down to `path`."""
    parts = path.relative_to(top).parts
    return [str(top.joinpath(*parts[:n])) for n in range(len(parts) + 1)]


def check_above(root: StorageRoot) -> None:
    """The way to the root: no folder above it that everybody can write without a sticky bit. Raises Refusal E-SITE-014.

    Links above the root are followed (mounts are often reached through one) and judged where they lead.
    """
    seen: set[str] = set()
    for start in (root.path.parent, Path(os.path.realpath(root.path)).parent):
        for folder in [start, *start.parents]:
            if str(folder) in seen:
                continue
            seen.add(str(folder))
            try:
                mode = os.stat(folder).st_mode
            except OSError as exc:
                raise refusal(exc, folder, "look at") from exc
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                raise Refusal(
                    "E-SITE-014",
                    f"lies above the storage root and has mode {stat.S_IMODE(mode):04o}",
                    field=str(folder),
                    found=f"{stat.S_IMODE(mode):04o}",
                    allowed="not writable for everybody, or with the sticky bit",
                )


def admin_doubts(root: StorageRoot, path: Path) -> list[Doubt]:
    """Judge `path` and every part of the way to it as admin property; what depends on the admin group comes back.

    Raises Refusal E-SITE-010 … E-SITE-014, E-STORE-02x. For callers that read the site file itself; others use
    `require_admin_owned`.
    """
    anchor = _lstat(root.site)
    uids = frozenset({0, anchor.st_uid})
    out: list[Doubt] = []
    if path.is_relative_to(root.path):
        check_above(root)
        for part in _chain(path, root.path):
            out += judge_part(part, uids, anchor.st_gid)
    else:
        real = Path(os.path.realpath(path.parent)) / path.name
        *above, last = _chain(real, Path("/"))
        for part in above:
            out += judge_part(part, uids, anchor.st_gid, lax_sticky=True)
        out += judge_part(last, uids, anchor.st_gid)
    return out


def settle(doubts: list[Doubt], site: Site) -> None:
    """Raise the first doubt that the site's admin group does not excuse."""
    if not doubts:
        return
    gid = find_group(site.admin_group, "site.yaml: admin_group") if site.admin_group else -1
    for doubt in doubts:
        if doubt.gid != gid:
            raise doubt.fault


def require_admin_owned(root: StorageRoot, path: str | os.PathLike[str], *, site: Site | None = None) -> None:
    """Return only if `path` and the way to it are the admins' property and only theirs to write.

    Below the root every part is judged; elsewhere (an image under /apps) the whole way from `/` is. `site` saves
    reading the site file again. Raises Refusal E-SITE-010 (owner), 011 (mode), 012 (ACL), 013 (link), 014 (the way is
    open).
    """
    doubts = admin_doubts(root, Path(path))
    if doubts and site is None:
        from hpc.site.sitefile import load_site

        site = load_site(root)
    if site is not None:
        settle(doubts, site)


def require_owner_folder(path: str | os.PathLike[str], uid: int) -> None:
    """Return only if `path` is a real folder of `uid` that nobody else can write, in a parent where it stays in place.

    Raises Refusal E-SITE-013 (link), E-SITE-020 (squatted), E-SITE-021 (others can write), E-SITE-022 (not there),
    E-SITE-011 (the parent lets others replace it).
    """
    target = Path(path)
    try:
        found = os.lstat(target)
    except FileNotFoundError:
        raise Refusal("E-SITE-022", "is not there", field=str(target)) from None
    except OSError as exc:
        raise refusal(exc, target, "look at") from exc
    if not stat.S_ISDIR(found.st_mode):
        raise Refusal("E-SITE-013", "is not a real folder", field=str(target))
    if found.st_uid != uid:
        raise Refusal(
            "E-SITE-020",
            f"belongs to uid {found.st_uid}, not to its owner",
            field=str(target),
            found=f"uid {found.st_uid}",
            allowed=f"uid {uid}",
        )
    others = [w for w in writers(target) if w.kind != "owner" and (w.kind, w.id) != ("user", uid)]
    if others:
        raise Refusal(
            "E-SITE-021",
            f"can be written by {others[0]}",
            field=str(target),
            found=", ".join(map(str, others)),
        )
    around = _lstat(target.parent)
    if around.st_mode & GROUP_OR_OTHER_WRITE and not around.st_mode & stat.S_ISVTX and around.st_uid != uid:
        raise Refusal(
            "E-SITE-011",
            f"has mode {stat.S_IMODE(around.st_mode):04o}, so others can replace {target.name}",
            field=str(target.parent),
            found=f"{stat.S_IMODE(around.st_mode):04o}",
            allowed="the sticky bit",
        )
