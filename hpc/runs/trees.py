"""A folder's files by path, exec bit and size, without reading one. Standard library only: it travels in evidence bundles."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

from tuneplane.record.digest import MAX_DEPTH, FileEntry, TreeError, is_relative


class Sized(NamedTuple):
    """What a look tells of a regular file. `size` in bytes."""

    path: str
    exec: bool
    size: int

    @classmethod
    def of(cls, entry: FileEntry) -> Sized:
        return cls(entry.path, entry.exec, entry.size)


def look_at(top: str | os.PathLike[str], prefix: str = "") -> Iterator[Sized]:
    """Every regular file below `top`; the same faults as of `scan_tree`, but no byte is read. Raises TreeError, OSError."""
    if prefix.count("/") > MAX_DEPTH:
        raise TreeError(f"{prefix[:80]}…: folders are nested deeper than {MAX_DEPTH}")
    with os.scandir(top) as entries:
        for entry in sorted(entries, key=lambda e: e.name):
            path = prefix + entry.name
            if not is_relative(path):
                raise TreeError(f"{path!r}: a name with a control character or backslash")
            found = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(found.st_mode):
                yield from look_at(entry.path, path + "/")
            elif stat.S_ISREG(found.st_mode):
                yield Sized(path, bool(found.st_mode & stat.S_IXUSR), found.st_size)
            else:
                raise TreeError(f"{path}: {'a link' if entry.is_symlink() else 'not a regular file'}")
