"""Folders of bytes: walked by descriptors, measured with both digests in one reading, copied with fsync.

The order of a walk is that of the v1 digest: code points of the whole relative path.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tuneplane.record.digest import (
    MAX_DEPTH,
    PREFIX,
    V1_SKIPPED_NAMES,
    V1_SKIPPED_PARTS,
    V1_SKIPPED_SUFFIXES,
    FileEntry,
    is_relative,
    tree_digest_v2,
)

from hpc.errors.core import Refusal
from hpc.spec.text import escaped

FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
MAX_PART: Final = 240
MAX_PATH: Final = 1024
CHUNK: Final = 1 << 20
Tick = Callable[[int], None]
"""Is told of bytes that went by just now."""


@dataclass(frozen=True)
class Found:
    """One regular file of a walk; `dir_fd` is good only until the walk goes on."""

    path: str
    dir_fd: int
    name: str
    status: os.stat_result

    @property
    def exec(self) -> bool:
        return bool(self.status.st_mode & stat.S_IXUSR)


@dataclass(frozen=True)
class Tree:
    """What a folder holds: its files in the order of the v1 digest, both digests, bytes in all."""

    files: tuple[FileEntry, ...]
    v1: str
    v2: str
    size: int


def quiet(count: int) -> None:
    """Nobody wants to know."""


def skipped(name: str) -> bool:
    """True for what the documented digest leaves out, and the registry therefore never stores."""
    return name in V1_SKIPPED_PARTS or name in V1_SKIPPED_NAMES or name.endswith(V1_SKIPPED_SUFFIXES)


def walk(root_fd: int, *, lenient: bool) -> Iterator[Found]:
    """Every regular file. `lenient` leaves out byte code and caches; else they are refused like everything that is no file.

    Raises Refusal E-REG-004 that names the path; OSError.
    """
    yield from _walk(root_fd, "", lenient, 0)


def _walk(fd: int, prefix: str, lenient: bool, depth: int) -> Iterator[Found]:
    if depth > MAX_DEPTH:
        raise _no(prefix, f"folders are nested deeper than {MAX_DEPTH}")
    listed = []
    for name in os.listdir(fd):
        if lenient and skipped(name):
            continue
        status = os.lstat(name, dir_fd=fd)
        listed.append((name + "/" if stat.S_ISDIR(status.st_mode) else name, name, status))
    for key, name, status in sorted(listed, key=lambda item: item[0]):
        path = prefix + name
        _check_path(path, name)
        if key[-1] == "/":
            below = os.open(name, FOLDER, dir_fd=fd)
            try:
                yield from _walk(below, path + "/", lenient, depth + 1)
            finally:
                os.close(below)
        elif stat.S_ISREG(status.st_mode):
            if skipped(name):
                raise _no(path, "byte code and caches have no place on the shelf")
            yield Found(path, fd, name, status)
        else:
            raise _no(path, "is a link" if stat.S_ISLNK(status.st_mode) else "is not a regular file")


def _check_path(path: str, name: str) -> None:
    try:
        long = len(os.fsencode(name)) > MAX_PART or len(os.fsencode(path)) > MAX_PATH
        path.encode("utf-8")
    except UnicodeEncodeError:
        raise _no(path, "has a name that is not UTF-8") from None
    if not is_relative(path):
        raise _no(path, "has a name with a control character or a backslash")
    if long:
        raise _no(path, f"has a name of more than {MAX_PART} bytes or a path of more than {MAX_PATH}")


def _no(path: str, why: str, allowed: str = "") -> Refusal:
    return Refusal("E-REG-004", why, field=escaped(path), allowed=allowed or "regular files with plain names")


def survey(root_fd: int, *, max_bytes: int, max_files: int) -> None:
    """Raise the refusal of a folder that is too large before any of it is read. Raises Refusal E-REG-004."""
    count = size = 0
    for found in walk(root_fd, lenient=True):
        count, size = count + 1, size + found.status.st_size
        if count > max_files:
            raise _no(found.path, f"more than {max_files} files", f"at most {max_files} files")
        if size > max_bytes:
            raise _no(found.path, f"more than {max_bytes} bytes in all", f"at most {max_bytes} bytes")


def measure(root_fd: int, *, lenient: bool, tick: Tick = quiet) -> Tree:
    """Read every file once and give both digests; `tick` is told of bytes as they are read. Raises Refusal E-REG-004, OSError."""
    v1, files, total = hashlib.sha256(), [], 0
    buffer = memoryview(bytearray(CHUNK))
    for found in walk(root_fd, lenient=lenient):
        v1.update(found.path.encode("utf-8") + b"\0")
        sha, size = hashlib.sha256(), 0
        fd = os.open(found.name, FILE, dir_fd=found.dir_fd)
        try:
            while count := os.readv(fd, [buffer]):
                v1.update(buffer[:count])
                sha.update(buffer[:count])
                size += count
                tick(count)
        finally:
            os.close(fd)
        v1.update(b"\0")
        files.append(FileEntry(found.path, found.exec, size, PREFIX + sha.hexdigest()))
        total += size
    return Tree(tuple(files), PREFIX + v1.hexdigest(), tree_digest_v2(files), total)


def copy(source_fd: int, target_fd: int, tick: Tick = quiet) -> None:
    """Copy what `measure` would read into an empty folder, 0555 and 0444, every file and folder fsynced. Raises OSError, Refusal.

    Nothing is written through a name outside of `target_fd`. Does not promise that the copy is right: it is read back by `measure`.
    """
    made: set[str] = set()
    for found in walk(source_fd, lenient=True):
        folder = os.path.dirname(found.path)
        if folder and folder not in made:
            _make_parents(target_fd, folder, made)
        _copy_file(found, target_fd, tick)
    for folder in sorted(made, reverse=True):
        fd = os.open(folder, FOLDER, dir_fd=target_fd)
        try:
            close_folder(fd)
        finally:
            os.close(fd)
    close_folder(target_fd)


def _make_parents(target_fd: int, folder: str, made: set[str]) -> None:
    parts = folder.split("/")
    for end in range(1, len(parts) + 1):
        part = "/".join(parts[:end])
        if part not in made:
            os.mkdir(part, 0o700, dir_fd=target_fd)
            made.add(part)


def close_folder(fd: int) -> None:
    """Make an open folder read-only and durable."""
    os.fchmod(fd, 0o555)
    sync_folder(fd)


def _copy_file(found: Found, target_fd: int, tick: Tick) -> None:
    source = os.open(found.name, FILE, dir_fd=found.dir_fd)
    try:
        fd = os.open(found.path, NEW, 0o600, dir_fd=target_fd)
        try:
            while chunk := os.read(source, CHUNK):
                view = memoryview(chunk)
                while view:
                    view = view[os.write(fd, view) :]
                tick(len(chunk))
            os.fchmod(fd, 0o555 if found.exec else 0o444)
            os.fsync(fd)
        finally:
            os.close(fd)
    finally:
        os.close(source)


def sync_folder(fd: int) -> None:
    """fsync an open folder. EINVAL (some network mounts) is tolerated, EIO never."""
    try:
        os.fsync(fd)
    except OSError as exc:
        if exc.errno != errno.EINVAL:
            raise
