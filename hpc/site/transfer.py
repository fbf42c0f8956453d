"""Gives a retired user's folders to somebody else: every file changes its owner, its name stays.

Only root can. The walk goes by descriptors and follows no link. Only what the retired user owns is touched, so a hard
link to somebody else's file gives nothing away; ACLs go, since they could keep a way in.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from tuneplane.contract.layout import StorageRoot
from tuneplane.record.times import utc_now

from hpc.errors.core import Refusal
from hpc.site.acl import ACCESS, DEFAULT
from hpc.site.members import RETIRED, Member, let_service_read, read_member, write_member
from hpc.site.plan import owner_folders
from hpc.site.sitefile import load_site
from hpc.site.users import User, find_user, real_user

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
MAX_DEPTH = 200
"""Folders in folders that are followed; each holds a descriptor open. Deeper ones are left, and said to be."""


@dataclass
class Transfer:
    """What was done: how many entries changed hands, and the paths that were left because somebody else owns them."""

    changed: int = 0
    left: list[str] = field(default_factory=list)


def transfer_user(root: StorageRoot, name: str, to: str, *, now: str = "") -> Transfer:
    """Give the folders of retired user `name` to user `to`.

    state/<name> stays: intents and caches are of no use to others.

    The folders keep the name, so that references to it stay good; site/users/<name>.json says who has them. Safe to
    run again after an interruption. Raises Refusal E-SITE-030, E-SITE-033 (needs root), E-SITE-034 (not retired, or
    `to` is).
    """
    site, caller, heir = load_site(root), real_user(), find_user(to)
    if caller.uid != 0:
        raise Refusal("E-SITE-033", "only root can give files to another user", found=caller.name, allowed="root")
    member = read_member(root, name, site=site)
    if member is None or member.state != RETIRED:
        raise Refusal("E-SITE-034", f"{name} is not retired", found=name, allowed="a retired user")
    theirs = read_member(root, to, site=site)
    if to == name or (theirs is not None and (theirs.state == RETIRED or theirs.uid != heir.uid)):
        raise Refusal("E-SITE-038", f"{to} cannot take the folders of {name}", found=to, allowed="an active user")
    if member.transferred_to not in ("", to):
        raise Refusal("E-SITE-038", f"{name}'s folders belong to {member.transferred_to}", found=member.transferred_to)
    # Written first: from here on the folders count as the heir's, and running again finishes what was interrupted.
    write_member(root, Member(name, member.uid, RETIRED, now or utc_now(), to))
    done = Transfer()
    for folder in owner_folders(root, name):
        if folder.path != root.user_state(name):
            _give_tree(folder.path, member.uid, heir, done)
            if folder.group and site.service_user and folder.path.is_dir():
                let_service_read(folder.path, root, heir, site)
    return done


def _give_tree(path: Path, old: int, heir: User, done: Transfer) -> None:
    try:
        fd = os.open(path, _FOLDER)
    except FileNotFoundError:
        return
    except OSError:
        done.left.append(str(path))
        return
    try:
        _give_folder(fd, str(path), old, heir, done, MAX_DEPTH)
        found = os.fstat(fd)
        if found.st_uid == heir.uid:
            # Retiring took the owner's write permission from the top folder; the heir gets it back.
            os.fchmod(fd, stat.S_IMODE(found.st_mode) | 0o200)
    finally:
        os.close(fd)


def _give_folder(fd: int, path: str, old: int, heir: User, done: Transfer, depth: int) -> None:
    if os.fstat(fd).st_uid not in (old, heir.uid) or depth == 0:
        done.left.append(path)
        return
    for name in sorted(os.listdir(fd)):
        _give_entry(fd, name, f"{path}/{name}", old, heir, done, depth)
    _give(fd, path, old, heir, done)


def _give_entry(dir_fd: int, name: str, path: str, old: int, heir: User, done: Transfer, depth: int) -> None:
    mode = os.lstat(name, dir_fd=dir_fd).st_mode
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        # A link, pipe or socket: the name itself changes hands, what a link points to is not touched.
        if os.lstat(name, dir_fd=dir_fd).st_uid == old:
            os.chown(name, heir.uid, -1, dir_fd=dir_fd, follow_symlinks=False)
            done.changed += 1
        return
    try:
        fd = os.open(name, _FOLDER if stat.S_ISDIR(mode) else _FILE, dir_fd=dir_fd)
    except OSError:
        done.left.append(path)  # it was exchanged under our hands
        return
    try:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            _give_folder(fd, path, old, heir, done, depth - 1)
        else:
            _give(fd, path, old, heir, done)
    finally:
        os.close(fd)


def _give(fd: int, path: str, old: int, heir: User, done: Transfer) -> None:
    found = os.fstat(fd)
    if found.st_uid == heir.uid:
        return
    if found.st_uid != old:
        done.left.append(path)
        return
    _drop_acl(fd, ACCESS)
    _drop_acl(fd, DEFAULT)
    os.fchown(fd, heir.uid, -1)
    # setuid must not come back: the program is the old owner's, the rights would be the heir's.
    kept = 0o2755 if stat.S_ISDIR(found.st_mode) else 0o755
    os.fchmod(fd, stat.S_IMODE(found.st_mode) & kept)
    done.changed += 1


def _drop_acl(fd: int, attribute: str) -> None:
    try:
        os.removexattr(fd, attribute)
    except OSError as exc:
        if exc.errno not in (errno.ENODATA, errno.EOPNOTSUPP):
            raise
