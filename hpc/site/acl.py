"""POSIX access lists, read from their extended attributes: who else may write.

The kernel keeps them as `system.posix_acl_access` and `system.posix_acl_default` in one fixed little-endian form.
Does not see NFSv4 ACLs (`system.nfs4_acl`): on such mounts the mode bits are what this toolkit can check.
"""

from __future__ import annotations

import errno
import os
import struct
from dataclasses import dataclass
from typing import Final

ACCESS: Final = "system.posix_acl_access"
DEFAULT: Final = "system.posix_acl_default"
VERSION: Final = 2
USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
READ, WRITE, EXECUTE = 4, 2, 1
NO_ID: Final = 0xFFFFFFFF
_HEADER = struct.Struct("<I")
_ENTRY = struct.Struct("<HHI")
_NONE = frozenset({errno.ENODATA, errno.EOPNOTSUPP, errno.ENOENT, errno.ELOOP})


@dataclass(frozen=True)
class Entry:
    """One line of an ACL: its tag (USER, GROUP, …), permission bits, and the uid or gid (NO_ID for the others)."""

    tag: int
    perm: int
    id: int = NO_ID


@dataclass(frozen=True)
class Writer:
    """Someone an ACL lets write: `user` or `group` and the number, in the access or the default list."""

    kind: str
    id: int
    default: bool

    def __str__(self) -> str:
        when = "in new files" if self.default else "now"
        return f"{self.kind} {self.id} ({when})"


def parse_acl(data: bytes) -> list[Entry]:
    """The entries of a raw attribute. Raises ValueError for another version or a length that does not fit."""
    if len(data) < _HEADER.size or _HEADER.unpack_from(data)[0] != VERSION or (len(data) - _HEADER.size) % _ENTRY.size:
        raise ValueError("not a POSIX ACL of version 2")
    return [Entry(*fields) for fields in _ENTRY.iter_unpack(data[_HEADER.size :])]


def format_acl(entries: list[Entry]) -> bytes:
    """The raw attribute of `entries`; the inverse of `parse_acl`."""
    return _HEADER.pack(VERSION) + b"".join(_ENTRY.pack(e.tag, e.perm, e.id) for e in entries)


def added_writers(entries: list[Entry], *, default: bool) -> list[Writer]:
    """Named users and groups that may write, after the mask. In a default list the group entry counts, too. Pure."""
    mask = next((e.perm for e in entries if e.tag == MASK), 7)
    named = {USER: "user", GROUP: "group"}
    out = [Writer(named[e.tag], e.id, default) for e in entries if e.tag in named and e.perm & mask & WRITE]
    if default:
        out += [Writer("owning group", 0, True) for e in entries if e.tag == GROUP_OBJ and e.perm & mask & WRITE]
        out += [Writer("everybody", 0, True) for e in entries if e.tag == OTHER and e.perm & WRITE]
    return out


def acl_writers(path: str | os.PathLike[str] | int) -> list[Writer]:
    """Everybody whom the ACLs of `path` (no link is followed) let write beside owner, group and mode. Raises OSError.

    An attribute that cannot be understood counts as a writer: doubt is not safety.
    """
    out: list[Writer] = []
    for name, default in ((ACCESS, False), (DEFAULT, True)):
        try:
            data = os.getxattr(path, name) if isinstance(path, int) else os.getxattr(path, name, follow_symlinks=False)
        except OSError as exc:
            if exc.errno not in _NONE:
                raise
            continue
        try:
            out += added_writers(parse_acl(data), default=default)
        except ValueError:
            out.append(Writer("an unreadable list", 0, default))
    return out


def let_read(fd: int, uid: int) -> bool:
    """Let one further user read and enter the folder behind `fd`, by its access list; False where there are no lists.

    The mode stays as it is seen: the list's mask is what its group bits say. Raises OSError.
    """
    mode = os.fstat(fd).st_mode
    owner, group, other = (mode >> 6) & 7, (mode >> 3) & 7, mode & 7
    named = Entry(USER, group & (READ | EXECUTE), uid)
    entries = [Entry(USER_OBJ, owner), named, Entry(GROUP_OBJ, group), Entry(MASK, group), Entry(OTHER, other)]
    try:
        os.setxattr(fd, ACCESS, format_acl(entries))
    except OSError as exc:
        if exc.errno != errno.EOPNOTSUPP:
            raise
        return False
    return True


def can_read(path: str | os.PathLike[str], uid: int) -> bool:
    """True if the access list of `path` names this user with read and enter. Raises OSError."""
    try:
        entries = parse_acl(os.getxattr(path, ACCESS, follow_symlinks=False))
    except OSError as exc:
        if exc.errno not in _NONE:
            raise
        return False
    except ValueError:
        return False
    mask = next((e.perm for e in entries if e.tag == MASK), 7)
    wanted = READ | EXECUTE
    return any(e.tag == USER and e.id == uid and e.perm & mask & wanted == wanted for e in entries)
