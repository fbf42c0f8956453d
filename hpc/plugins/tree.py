"""A package folder as it lies on disk: what it covers, what it leaves out, what does not belong. Nothing is reached through a link and nothing runs.

Covered are the files that the v1 digest covers; byte code, caches and version control are left out and never stored.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tuneplane.record.digest import (
    PREFIX,
    V1_SKIPPED_NAMES,
    V1_SKIPPED_PARTS,
    V1_SKIPPED_SUFFIXES,
    FileEntry,
    tree_digest_v2,
)

from hpc.errors import Refusal
from hpc.spec.text import visible
from hpc.store.names import path_fault, twins

MAX_BYTES: Final = 32 << 20
MAX_FILES: Final = 4096
MAX_DEPTH: Final = 32
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_CHUNK = 1 << 20


class _EnoughError(Exception):
    """The walk has met its limit."""


@dataclass
class Tree:
    """What was found below `folder`. `files`: size by path; `links`, `specials`: what is covered but is no file; `faults` of names and limits."""

    folder: Path
    files: dict[str, int] = field(default_factory=dict)
    links: list[str] = field(default_factory=list)
    specials: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    faults: list[Refusal] = field(default_factory=list)
    size: int = 0

    @property
    def whole(self) -> bool:
        """True where the digests have a meaning: only files, every name sound, within the limits."""
        return not (self.faults or self.links or self.specials)

    def tops(self) -> list[str]:
        """The names at the top of the package, sorted."""
        return sorted({path.partition("/")[0] for path in [*self.files, *self.links, *self.specials]})

    def read(self, path: str, limit: int = MAX_BYTES) -> bytes:
        """Bytes of a covered file. Raises Refusal E-PLUGIN-029 when it is not the file that was found."""
        fd = self._open(path)
        with os.fdopen(fd, "rb") as stream:
            data = stream.read(limit + 1)
        if len(data) > limit:
            raise Refusal("E-PLUGIN-029", f"is larger than {limit} bytes", field=path, allowed=f"{limit} bytes")
        return data

    def digests(self) -> tuple[str, str]:
        """(v1, v2) of the covered files, each read once. Raises Refusal E-PLUGIN-029. The tree must be `whole`."""
        v1, entries = hashlib.sha256(), []
        for path in sorted(self.files):
            v1.update(path.encode("utf-8") + b"\0")
            own, size = hashlib.sha256(), 0
            with os.fdopen(self._open(path), "rb") as stream:
                run = bool(os.fstat(stream.fileno()).st_mode & stat.S_IXUSR)
                while chunk := stream.read(_CHUNK):
                    v1.update(chunk)
                    own.update(chunk)
                    size += len(chunk)
            if size != self.files[path]:
                raise Refusal("E-PLUGIN-029", "changed while it was read", field=path)
            v1.update(b"\0")
            entries.append(FileEntry(path, run, size, PREFIX + own.hexdigest()))
        return PREFIX + v1.hexdigest(), tree_digest_v2(entries)

    def _open(self, path: str) -> int:
        *above, name = path.split("/")
        try:
            fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            for part in above:
                below = fd
                try:
                    fd = os.open(part, _FOLDER, dir_fd=below)
                finally:
                    os.close(below)
            try:
                found = os.open(name, _FILE, dir_fd=fd)
            finally:
                os.close(fd)
        except OSError as exc:
            raise Refusal("E-PLUGIN-029", f"cannot be read: {exc.strerror}", field=path) from exc
        if not stat.S_ISREG(os.fstat(found).st_mode):
            os.close(found)
            raise Refusal("E-PLUGIN-029", "is no regular file any more", field=path)
        return found


def survey(folder: Path) -> Tree:
    """Walk a package folder. Raises Refusal E-PLUGIN-001 where it is no folder that can be read; other faults are in the tree."""
    tree = Tree(folder)
    try:
        root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as exc:
        raise Refusal("E-PLUGIN-001", f"cannot open the folder: {exc.strerror}", field=os.fspath(folder)) from exc
    try:
        _walk(root, "", tree)
    except _EnoughError:
        pass
    finally:
        os.close(root)
    tree.faults += _name_faults([*tree.files, *tree.links, *tree.specials])
    return tree


def _walk(folder_fd: int, prefix: str, tree: Tree) -> None:
    for name in sorted(os.listdir(folder_fd)):
        path = prefix + name
        try:
            found = os.lstat(name, dir_fd=folder_fd)
        except OSError as exc:
            tree.faults.append(Refusal("E-PLUGIN-029", f"cannot be read: {exc.strerror}", field=visible(path)))
            continue
        mode = found.st_mode
        if _is_left_out(name, mode):
            tree.left_out.append(path)
        elif stat.S_ISDIR(mode):
            _enter(folder_fd, name, path, tree)
        elif stat.S_ISREG(mode):
            tree.files[path] = found.st_size
            tree.size += found.st_size
        elif stat.S_ISLNK(mode):
            tree.links.append(path)
        else:
            tree.specials.append(path)
        _limits(tree, path)


def _is_left_out(name: str, mode: int) -> bool:
    """The v1 digest's own rule: a folder by its name, a file by name or suffix."""
    if name in V1_SKIPPED_PARTS:
        return True
    return not stat.S_ISDIR(mode) and (name in V1_SKIPPED_NAMES or name.endswith(V1_SKIPPED_SUFFIXES))


def _enter(folder_fd: int, name: str, path: str, tree: Tree) -> None:
    if path.count("/") >= MAX_DEPTH:
        _too_large(tree, path, f"folders are nested deeper than {MAX_DEPTH}")
    try:
        below = os.open(name, _FOLDER, dir_fd=folder_fd)
    except OSError as exc:
        tree.faults.append(Refusal("E-PLUGIN-029", f"cannot be read: {exc.strerror}", field=visible(path)))
        return
    try:
        _walk(below, path + "/", tree)
    finally:
        os.close(below)


def _limits(tree: Tree, path: str) -> None:
    count = len(tree.files) + len(tree.links) + len(tree.specials)
    if count > MAX_FILES or len(tree.left_out) > 16 * MAX_FILES:
        _too_large(tree, path, f"more than {MAX_FILES} files")
    if path in tree.files and tree.size > MAX_BYTES:
        _too_large(tree, path, f"more than {MAX_BYTES >> 20} MiB in all")


def _too_large(tree: Tree, path: str, message: str) -> None:
    tree.faults.append(Refusal("E-PLUGIN-027", message, field="package", found=visible(path)))
    raise _EnoughError


def _name_faults(paths: Iterable[str]) -> Iterator[Refusal]:
    sound = []
    for path in paths:
        if fault := path_fault(path):
            shown = visible(path.encode("utf-8", "backslashreplace").decode())
            yield Refusal("E-PLUGIN-025", f"{shown} {fault}", field="package", found=shown)
        else:
            sound.append(path)
    for one, other in twins(sorted(sound)):
        message = f"{visible(one)!r} and {visible(other)!r} are one name elsewhere"
        yield Refusal("E-PLUGIN-026", message, field="package", found=visible(other))
