"""Folders with exact modes, whatever the umask; nothing is reached through a link.

A new folder is made 0700, opened without following links, given its owner and group, and only then its mode, on the
descriptor. So no moment exists in which it is more open than meant. Parents are taken as given: who may write them is
`hpc.site.trust`'s question.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tuneplane.record.files import fsync_dir

from hpc.errors.core import Refusal
from hpc.store.faults import refusal

PathLike = str | os.PathLike[str]
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_folder(path: PathLike, *, anchor: PathLike | None = None) -> int:
    """A descriptor of a real folder; the caller closes it.

    With `anchor`, every component below it is opened relative to its parent without following links; the anchor itself
    is trusted. Without, only the last component is guarded. Raises Refusal E-STORE-010 for a link or a file, else as
    `hpc.store.faults`.
    """
    target = Path(path)
    parts = target.relative_to(anchor).parts if anchor is not None else (target.name,)
    start = Path(anchor) if anchor is not None else target.parent
    if ".." in parts:
        raise Refusal("E-STORE-010", "`..` has no place below a storage root", field=str(target))
    try:
        fd = os.open(start, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for part in parts:
            try:
                below = os.open(part, _FOLDER, dir_fd=fd)
            finally:
                os.close(fd)
            fd = below
    except OSError as exc:
        raise refusal(exc, target, "open the folder") from exc
    return fd


@contextmanager
def folder(path: PathLike, *, anchor: PathLike | None = None) -> Iterator[int]:
    """`open_folder` as a context that closes the descriptor."""
    fd = open_folder(path, anchor=anchor)
    try:
        yield fd
    finally:
        os.close(fd)


def open_record(name: str, *, dir_fd: int, where: PathLike = "") -> int:
    """A descriptor of a regular file with exactly one name; the caller closes it.

    Raises Refusal E-STORE-011, E-STORE-02x.
    """
    label = os.path.join(os.fspath(where), name)
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=dir_fd)
    except OSError as exc:
        fault = refusal(exc, label, "read")
        if fault.code == "E-STORE-010":
            raise Refusal("E-STORE-011", "is a link", field=label) from exc
        raise fault from exc
    found = os.fstat(fd)
    if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
        return fd
    os.close(fd)
    what = f"has {found.st_nlink} names" if stat.S_ISREG(found.st_mode) else "is not a regular file"
    raise Refusal("E-STORE-011", what, field=label, allowed="a regular file with one name")


def read_record(path: PathLike, *, anchor: PathLike | None = None, limit: int = 1 << 20) -> bytes:
    """Bytes of a small regular file that has one name and is reached through no link below `anchor`.

    Raises Refusal (E-STORE-010, E-STORE-011, E-STORE-02x), also past `limit` bytes.
    """
    target = Path(path)
    with folder(target.parent, anchor=anchor) as dir_fd:
        fd = open_record(target.name, dir_fd=dir_fd, where=target.parent)
    with os.fdopen(fd, "rb") as stream:
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise Refusal("E-STORE-011", f"is larger than {limit} bytes", field=str(target), allowed=f"{limit} bytes")
    return data


def make_folder(path: PathLike, mode: int, *, uid: int = -1, gid: int = -1, anchor: PathLike | None = None) -> bool:
    """Make sure that `path` is a folder with exactly this mode, owner and group; True if it is new.

    Its parent must exist.

    `uid`, `gid` -1: the caller's uid, and the group that the parent's setgid or the caller gives. An existing folder
    is taken over only if it has the wanted owner already; then its mode and group are set right. Raises Refusal
    E-STORE-010 (a link or file stands there), E-STORE-012 (another owner), E-STORE-013 (the mode did not stick),
    E-STORE-02x.
    """
    target = Path(path)
    owner = os.geteuid() if uid == -1 else uid
    with folder(target.parent, anchor=anchor) as parent:
        try:
            os.mkdir(target.name, 0o700, dir_fd=parent)
            new = True
        except FileExistsError:
            new = False
        except OSError as exc:
            raise refusal(exc, target, "create the folder") from exc
        try:
            fd = os.open(target.name, _FOLDER, dir_fd=parent)
        except FileNotFoundError as exc:
            # The server has the name and this node's cache has not: NFS keeps the names of a folder for up to a minute.
            text = "was made on another node and is not seen on this one yet"
            raise Refusal("E-STORE-023", text, field=str(target), hint="run it again in a minute") from exc
        except OSError as exc:
            raise refusal(exc, target, "open the folder") from exc
        try:
            _settle(fd, target, mode, owner, gid, new)
        finally:
            os.close(fd)
    if new:
        try:
            fsync_dir(target.parent)
        except OSError as exc:
            raise refusal(exc, target, "make durable") from exc
    return new


def _settle(fd: int, target: Path, mode: int, owner: int, gid: int, new: bool) -> None:
    found = os.fstat(fd)
    if found.st_uid != (os.geteuid() if new else owner):
        raise Refusal(
            "E-STORE-012",
            f"belongs to uid {found.st_uid}, not {owner}",
            field=str(target),
            found=found.st_uid,
            allowed=f"uid {owner}",
        )
    try:
        if found.st_uid != owner or gid not in (-1, found.st_gid):
            os.fchown(fd, owner, gid)
        # Last, since chown drops setgid; also on an existing folder, so that running again mends it.
        if stat.S_IMODE(os.fstat(fd).st_mode) != mode:
            os.fchmod(fd, mode)
    except OSError as exc:
        raise Refusal(
            "E-STORE-013",
            exc.strerror or str(exc),
            field=str(target),
            allowed=f"mode {mode:04o}, uid {owner}, gid {gid}",
        ) from exc
    kept = os.fstat(fd)
    if stat.S_IMODE(kept.st_mode) != mode or kept.st_uid != owner or gid not in (-1, kept.st_gid):
        raise Refusal(
            "E-STORE-013",
            f"has mode {stat.S_IMODE(kept.st_mode):04o} after it was set to {mode:04o}",
            field=str(target),
            found=f"{stat.S_IMODE(kept.st_mode):04o}",
            allowed=f"{mode:04o}",
        )


def make_private(path: PathLike, *, uid: int = -1, gid: int = -1, anchor: PathLike | None = None) -> bool:
    """`make_folder` with mode 0700."""
    return make_folder(path, 0o700, uid=uid, gid=gid, anchor=anchor)
