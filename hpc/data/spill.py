"""Keys of many rows in little memory: spread over 256 parts by their first byte, kept in one file on local disk, and read part by part.

Equal keys meet in one part, so that each part can be judged alone. What stays in memory is one part and the buffers, whatever the number of rows.
"""

from __future__ import annotations

import hashlib
import os
import struct
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from hpc.store.faults import refusal

PARTS: Final = 256
KEY: Final = 32
"""Bytes of a key: a whole SHA-256, so that equal keys are equal rows."""
BUFFER: Final = 16 << 20
BLOCK: Final = 1024
MANY: Final = 1 << 20
"""Keys that one part may have before it is split once more by the second byte."""


@contextmanager
def spilled(width: int = KEY) -> Iterator[Spill]:
    """A Spill on the local disk of temporary files ($TMPDIR); the file has no name and is gone with the context."""
    with tempfile.TemporaryFile(prefix="tp-rows-") as file:
        yield Spill(file.fileno(), width)


class Spill:
    """Collects keys of `width` bytes, whose first bytes must be evenly spread."""

    def __init__(self, fd: int, width: int) -> None:
        self.width, self.count = width, 0
        self._fd = fd
        self._parts = [bytearray() for _ in range(PARTS)]
        self._where: list[list[tuple[int, int]]] = [[] for _ in range(PARTS)]
        self._held = self._end = 0

    def add(self, keys: Iterable[bytes]) -> None:
        """Take keys in; each has `width` bytes. Raises Refusal E-STORE-020 where the local disk is full."""
        parts, taken = self._parts, keys if isinstance(keys, list) else list(keys)
        for key in taken:
            parts[key[0]] += key
        self._took(len(taken))

    def add_rows(self, lines: Sequence[bytes]) -> None:
        """Take in the SHA-256 of each row. Raises as `add`."""
        parts, sha = self._parts, hashlib.sha256
        for line in lines:
            key = sha(line).digest()
            parts[key[0]] += key
        self._took(len(lines))

    def _took(self, number: int) -> None:
        self.count += number
        self._held += number * self.width
        if self._held >= BUFFER:
            self._flush()

    def _flush(self) -> None:
        try:
            for number, part in enumerate(self._parts):
                if part:
                    os.pwrite(self._fd, part, self._end)
                    self._where[number].append((self._end, len(part)))
                    self._end += len(part)
                    part.clear()
        except OSError as exc:
            raise refusal(exc, tempfile.gettempdir(), "write temporary files to") from exc
        self._held = 0

    def part(self, number: int) -> bytes:
        """All keys of one part, in the order in which they came, back to back."""
        stored = [os.pread(self._fd, size, start) for start, size in self._where[number]]
        return b"".join([*stored, bytes(self._parts[number])])

    def parts(self) -> Iterator[list[bytes]]:
        """The keys of each part as a list; large parts come in 256 pieces, so that a piece stays small."""
        for number in range(PARTS):
            data = self.part(number)
            if len(data) // self.width <= MANY:
                yield split(data, self.width)
            else:
                for piece in finer(data, self.width):
                    yield split(piece, self.width)


def finer(data: bytes, width: int) -> list[bytearray]:
    """One part by the second byte of its keys."""
    out = [bytearray() for _ in range(PARTS)]
    for start in range(0, len(data), width):
        out[data[start + 1]] += data[start : start + width]
    return out


def split(data: bytes | bytearray, width: int) -> list[bytes]:
    """The keys one by one. A block at a time: the plan of an unpacking is as large as the block."""
    out: list[bytes] = []
    block = struct.Struct(f"{width}s" * BLOCK)
    whole = len(data) // block.size * block.size
    for keys in block.iter_unpack(memoryview(data)[:whole]):
        out += keys
    rest = (len(data) - whole) // width
    return out + [bytes(data[at : at + width]) for at in range(whole, whole + rest * width, width)]


def pairs(one: Spill, other: Spill) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """The same part, or piece of a part, of two spills of one width."""
    for number in range(PARTS):
        a, b = one.part(number), other.part(number)
        if max(len(a), len(b)) // one.width <= MANY:
            yield split(a, one.width), split(b, one.width)
        else:
            for x, y in zip(finer(a, one.width), finer(b, one.width), strict=True):
                yield split(x, one.width), split(y, one.width)
