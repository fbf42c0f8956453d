"""SHA-256 digests of bytes, files and folders, written `sha256:<64 hex>`.

A folder has two digests. **v1** is the documented compatibility form: it ignores modes and empty folders, follows links to files and has no
framing, so two different trees can share one. **v2** frames every entry (path, type, exec, size, SHA-256) and refuses links and special files.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tuneplane.record.canonical import canonical_bytes

PREFIX = "sha256:"
V1_SKIPPED_PARTS = frozenset({"__pycache__", ".git", ".venv", ".mypy_cache", ".ruff_cache"})
V1_SKIPPED_NAMES = frozenset({".DS_Store"})
V1_SKIPPED_SUFFIXES = (".pyc", ".pyo")
V2_DOMAIN = b"tuneplane/tree/v2\n"
MAX_DEPTH = 100
"""Folders in folders that a tree may have; deeper ones are made to exhaust whoever reads them."""
_CHUNK = 1 << 20


class TreeError(ValueError):
    """A folder holds something that has no place in a v2 manifest; the message names the path."""


@dataclass(frozen=True)
class FileEntry:
    """One regular file of a tree: POSIX path relative to the root, exec bit of the owner, size in bytes, SHA-256."""

    path: str
    exec: bool
    size: int
    sha256: str

    def as_json(self) -> dict[str, Any]:
        return {"path": self.path, "type": "file", "exec": self.exec, "size": self.size, "sha256": self.sha256}

    @classmethod
    def from_json(cls, value: Any) -> FileEntry:
        """Read one manifest entry; raises TreeError for any other shape, so that a manifest cannot smuggle a path."""
        if not isinstance(value, dict) or set(value) != {"path", "type", "exec", "size", "sha256"}:
            raise TreeError(f"not a manifest entry: {value!r}")
        path, size = value["path"], value["size"]
        if not isinstance(path, str) or not is_relative(path):
            raise TreeError(f"path {path!r} is not relative and normal")
        if value["type"] != "file" or not isinstance(value["exec"], bool) or type(size) is not int or size < 0:
            raise TreeError(f"{path}: not a regular file's entry")
        if not is_digest(value["sha256"]):
            raise TreeError(f"{path}: sha256 is not a digest")
        return cls(path, value["exec"], size, value["sha256"])


def is_relative(path: str) -> bool:
    """True for a normal relative POSIX path: no empty, `.` or `..` part, no control character, no backslash."""
    parts = path.split("/")
    return bool(path) and all(p not in ("", ".", "..") for p in parts) and "\\" not in path and path.isprintable()


def is_digest(text: Any) -> bool:
    """True for `sha256:` and 64 lower-case hexadecimal digits."""
    return (
        isinstance(text, str)
        and len(text) == 71
        and text.startswith(PREFIX)
        and all(c in "0123456789abcdef" for c in text[7:])
    )


def digest_bytes(data: bytes) -> str:
    return PREFIX + hashlib.sha256(data).hexdigest()


def digest_json(value: Any) -> str:
    """Digest of the canonical JSON of `value`."""
    return digest_bytes(canonical_bytes(value))


def digest_fd(fd: int) -> tuple[str, int]:
    """Digest and size of what can be read from `fd` from its present offset on."""
    sha, size = hashlib.sha256(), 0
    while chunk := os.read(fd, _CHUNK):
        sha.update(chunk)
        size += len(chunk)
    return PREFIX + sha.hexdigest(), size


def digest_file(path: str | os.PathLike[str], *, follow: bool = False) -> str:
    """Digest of a regular file. Raises OSError; a link is refused (ELOOP) unless `follow`."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW))
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(f"not a regular file: {os.fspath(path)}")
        return digest_fd(fd)[0]
    finally:
        os.close(fd)


def v1_files(root: str | os.PathLike[str]) -> list[str]:
    """The POSIX paths that the v1 digest covers, in its order (code points)."""
    base = os.fspath(root)
    found: list[str] = []
    for folder, subfolders, names in os.walk(base, followlinks=False):
        subfolders[:] = [
            d for d in subfolders if d not in V1_SKIPPED_PARTS and not os.path.islink(os.path.join(folder, d))
        ]
        for name in names:
            full = os.path.join(folder, name)
            if name in V1_SKIPPED_PARTS or name in V1_SKIPPED_NAMES or name.endswith(V1_SKIPPED_SUFFIXES):
                continue
            if os.path.isfile(full):
                found.append(os.path.relpath(full, base).replace(os.sep, "/"))
    return sorted(found)


def directory_digest_v1(root: str | os.PathLike[str], files: Iterable[str] | None = None) -> str:
    """The documented folder digest: SHA-256 over path, NUL, bytes, NUL of each file in code-point order of paths.

    `files` restricts the digest to a list made earlier (a wheel's build-time list). Does not cover modes, links as links, empty folders.
    """
    base, sha = os.fspath(root), hashlib.sha256()
    for path in v1_files(base) if files is None else sorted(files):
        sha.update(path.encode("utf-8") + b"\0")
        with open(os.path.join(base, path), "rb") as stream:
            while chunk := stream.read(_CHUNK):
                sha.update(chunk)
        sha.update(b"\0")
    return PREFIX + sha.hexdigest()


def scan_tree(root: str | os.PathLike[str], *, max_bytes: int | None = None) -> Iterator[FileEntry]:
    """Every regular file below `root`, opened relative to its folder without following links.

    Raises TreeError for anything else, for folders nested deeper than MAX_DEPTH, and before it would read more than `max_bytes` in all.
    """
    root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield from _scan(root_fd, "", _Budget(max_bytes))
    finally:
        os.close(root_fd)


@dataclass
class _Budget:
    """Bytes that may still be read; None: no limit."""

    left: int | None

    def take(self, size: int, path: str) -> None:
        if self.left is not None:
            self.left -= size
            if self.left < 0:
                raise TreeError(f"{path}: more bytes than belong here ({size})")


def _scan(folder_fd: int, prefix: str, budget: _Budget) -> Iterator[FileEntry]:
    if prefix.count("/") > MAX_DEPTH:
        raise TreeError(f"{prefix[:80]}…: folders are nested deeper than {MAX_DEPTH}")
    for name in sorted(os.listdir(folder_fd)):
        path = prefix + name
        if not is_relative(path):
            raise TreeError(f"{path!r}: a name with a control character or backslash")
        mode = os.lstat(name, dir_fd=folder_fd).st_mode
        if stat.S_ISDIR(mode):
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            sub = os.open(name, flags, dir_fd=folder_fd)
            try:
                yield from _scan(sub, path + "/", budget)
            finally:
                os.close(sub)
        elif stat.S_ISREG(mode):
            yield _scan_file(folder_fd, name, path, budget)
        else:
            raise TreeError(f"{path}: {'a link' if stat.S_ISLNK(mode) else 'not a regular file'}")


def _scan_file(folder_fd: int, name: str, path: str, budget: _Budget) -> FileEntry:
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder_fd)
    try:
        opened = os.fstat(fd)
        if not stat.S_ISREG(opened.st_mode):
            raise TreeError(f"{path}: not a regular file")
        budget.take(opened.st_size, path)
        sha, size = digest_fd(fd)
        return FileEntry(path, bool(opened.st_mode & stat.S_IXUSR), size, sha)
    finally:
        os.close(fd)


def tree_digest_v2(entries: Iterable[FileEntry]) -> str:
    """Digest of a framed manifest. Raises TreeError when a path stands twice."""
    listed = sorted(entries, key=lambda e: e.path)
    for one, other in pairwise(listed):
        if one.path == other.path:
            raise TreeError(f"{one.path}: stands twice")
    return digest_bytes(V2_DOMAIN + canonical_bytes([e.as_json() for e in listed]))
