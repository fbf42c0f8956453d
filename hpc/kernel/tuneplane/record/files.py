"""Files that appear whole or not at all: temp file in the same folder, fsync, link or rename, fsync of the folder.

Does not promise that another NFS client sees a new name at once. After an error on the last step the target itself is looked at: our bytes
there mean success (a server's reply can be lost after the rename was done).
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from pathlib import Path
from typing import Any, BinaryIO

from tuneplane.record.canonical import parse_json, pretty_bytes

MAX_RECORD_BYTES = 64 << 20


def fsync_dir(path: str | os.PathLike[str]) -> None:
    """fsync a folder. EINVAL (some network mounts) is tolerated, EIO never."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as exc:
        if exc.errno != errno.EINVAL:
            raise
    finally:
        os.close(fd)


def _drop(path: Path) -> None:
    """Remove a temporary file. One that cannot be removed is litter, not a fault of what was written."""
    try:
        os.unlink(path)
    except OSError:
        pass


def _write_temp(path: Path, data: bytes, mode: int) -> Path:
    temp = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fchmod(fd, mode)
            os.fsync(fd)
        finally:
            os.close(fd)
    except BaseException:
        _drop(temp)
        raise
    return temp


def _holds(path: Path, data: bytes) -> bool:
    try:
        return path.read_bytes() == data
    except OSError:
        return False


def write_new(path: str | os.PathLike[str], data: bytes, *, mode: int = 0o644) -> None:
    """Create `path` with exactly `data`. Raises FileExistsError if anything has that name, and then changes nothing."""
    target = Path(path)
    temp = _write_temp(target, data, mode)
    try:
        os.link(temp, target)
    except FileExistsError:
        # link() may have been done by a retransmitted request: two links to our own temp prove it.
        if os.stat(temp).st_nlink != 2 or not _holds(target, data):
            raise
    except OSError as exc:
        if exc.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
            raise
        _reserve_and_rename(temp, target)
    finally:
        _drop(temp)
    fsync_dir(target.parent)


def _reserve_and_rename(temp: Path, target: Path) -> None:
    """The way on a mount without hard links: the name is taken exclusively, then the whole file is moved there.

    A crash between the two leaves an empty file, never a part of one.
    """
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    try:
        os.rename(temp, target)
    except OSError:
        _drop(target)
        raise


def replace(path: str | os.PathLike[str], data: bytes, *, mode: int = 0o644) -> None:
    """Set `path` to `data`: readers see the old bytes or the new ones, never a mixture. Raises OSError; then the old bytes stand."""
    target = Path(path)
    temp = _write_temp(target, data, mode)
    try:
        os.rename(temp, target)
    except OSError:
        # The reply of a rename that was done can be lost.
        moved = not os.path.lexists(temp) and _holds(target, data)
        _drop(temp)
        if not moved:
            raise
    fsync_dir(target.parent)


def publish_dir(temp: str | os.PathLike[str], final: str | os.PathLike[str]) -> None:
    """Rename a finished folder into place. Raises FileExistsError if `final` exists (an empty folder there counts, too)."""
    if os.path.lexists(final):
        raise FileExistsError(errno.EEXIST, "exists already", os.fspath(final))
    try:
        os.rename(temp, final)
    except OSError as exc:
        if exc.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise FileExistsError(errno.EEXIST, "exists already", os.fspath(final)) from exc
        if os.path.lexists(temp) or not os.path.isdir(final):
            raise
    fsync_dir(os.path.dirname(os.path.abspath(final)))


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading, following no link as its last part and waiting for no pipe. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.ENXIO, "not a regular file", os.fspath(path))
    return os.fdopen(fd, "rb")


def read_bytes(path: str | os.PathLike[str], *, limit: int = MAX_RECORD_BYTES) -> bytes:
    """Bytes of a regular file that is no link. Raises OSError, or ValueError past `limit` bytes. ESTALE is tried again by path, twice."""
    for attempt in (0, 1, 2):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            with os.fdopen(fd, "rb") as stream:
                data = stream.read(limit + 1)
            break
        except OSError as exc:
            if exc.errno != errno.ESTALE or attempt == 2:
                raise
    if len(data) > limit:
        raise ValueError(f"{os.fspath(path)}: larger than {limit} bytes")
    return data


def read_json(path: str | os.PathLike[str], *, limit: int = MAX_RECORD_BYTES) -> Any:
    """Strictly parsed JSON of a record. Raises OSError or ValueError (CanonicalError among them)."""
    return parse_json(read_bytes(path, limit=limit))


def read_object(path: str | os.PathLike[str], *, limit: int = MAX_RECORD_BYTES) -> dict[str, Any] | None:
    """The object of a record; None where there is none, or what is there is none that can be read. For who goes on without it, and says nothing."""
    try:
        value = read_json(path, limit=limit)
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def write_json_new(path: str | os.PathLike[str], value: Any, *, mode: int = 0o644) -> None:
    write_new(path, pretty_bytes(value), mode=mode)


def replace_json(path: str | os.PathLike[str], value: Any, *, mode: int = 0o644) -> None:
    replace(path, pretty_bytes(value), mode=mode)
