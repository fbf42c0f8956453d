"""Exact deduplication in bounded memory: which of the records, numbered as they came, repeat an earlier one.

Digests (all 256 bits) are spread over partitions by their first byte and spilled to plain files; afterwards each partition is looked at alone. A
partition with more distinct digests than may be held is spread again by the next byte. One bit a record stays in memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from struct import Struct

_ENTRY = Struct(">32sQ")
_PARTS = 256
SPILL_BYTES = 32 << 10
"""A partition's buffer before it is written: 8 MiB for all of them."""
HELD_DIGESTS = 200_000
"""Distinct digests of one partition in memory, about 25 MB."""


class Deduplicator:
    """`add` a digest a record, in the order of the output; then ask `duplicates` once. `scratch` is an empty folder for the spilled parts."""

    def __init__(self, scratch: Path, *, held: int = HELD_DIGESTS, spill_bytes: int = SPILL_BYTES) -> None:
        self._held, self._spill_bytes = held, spill_bytes
        self._parts = _Parts(scratch, 0, spill_bytes)
        self._count = 0

    def add(self, digest: bytes) -> None:
        self._parts.add(digest, self._count)
        self._count += 1

    def duplicates(self) -> bytearray:
        """One bit a record, least significant first: 1 where an earlier record has the same digest. Raises OSError."""
        marks = bytearray((self._count + 7) // 8)
        self._mark(self._parts, marks)
        return marks

    def _mark(self, parts: _Parts, marks: bytearray) -> None:
        for part in range(_PARTS):
            seen: set[bytes] = set()
            for digest, number in parts.entries(part):
                if digest in seen:
                    marks[number >> 3] |= 1 << (number & 7)
                else:
                    seen.add(digest)
                    if len(seen) > self._held:
                        break
            else:
                parts.drop(part)
                continue
            seen.clear()
            # Marks that were set on the way are right and are set again.
            finer = _Parts(parts.folder / f"{part:02x}", parts.depth + 1, self._spill_bytes)
            for digest, number in parts.entries(part):
                finer.add(digest, number)
            parts.drop(part)
            self._mark(finer, marks)


class _Parts:
    """Entries by one byte of their digest: buffered, and appended to a file a partition when the buffer is full."""

    def __init__(self, folder: Path, depth: int, spill_bytes: int) -> None:
        self.folder, self.depth = folder, depth
        self._spill_bytes = spill_bytes
        self._buffers = [bytearray() for _ in range(_PARTS)]
        folder.mkdir(exist_ok=True)

    def _path(self, part: int) -> Path:
        return self.folder / f"{part:02x}.part"

    def add(self, digest: bytes, number: int) -> None:
        part = digest[self.depth]
        buffer = self._buffers[part]
        buffer += _ENTRY.pack(digest, number)
        if len(buffer) >= self._spill_bytes:
            # Opened anew each time: 256 open files a level are more than some limits allow.
            with open(self._path(part), "ab", buffering=0) as out:
                _write_all(out.fileno(), buffer)
            buffer.clear()

    def entries(self, part: int) -> Iterator[tuple[bytes, int]]:
        """Entries of one partition in the order in which they were added."""
        path = self._path(part)
        if path.exists():
            with open(path, "rb") as source:
                while block := source.read(_ENTRY.size * 4096):
                    yield from _ENTRY.iter_unpack(block)
        yield from _ENTRY.iter_unpack(bytes(self._buffers[part]))

    def drop(self, part: int) -> None:
        self._path(part).unlink(missing_ok=True)
        self._buffers[part] = bytearray()


def _write_all(fd: int, data: bytearray) -> None:
    with memoryview(data) as view:
        done = 0
        while done < len(view):
            done += os.write(fd, view[done:])


def compact(path: Path, marks: bytearray) -> int:
    """Take the marked lines out of a file of newline-ended lines, in place; returns how many. A file without marks is not touched."""
    total = sum(byte.bit_count() for byte in marks)
    if not total:
        return 0
    with open(path, "rb", buffering=1 << 20) as source, open(path, "r+b", buffering=1 << 20) as target:
        # The writer is never ahead of the reader: what it writes is what was read, or less.
        for number, line in enumerate(source):
            if not marks[number >> 3] >> (number & 7) & 1:
                target.write(line)
        target.flush()
        target.truncate()
    return total
