"""The header of a safetensors file, read without opening a tensor: names, kinds, shapes, and whether they fit the file to the byte.

8 bytes: length n of the header, little endian · n bytes: JSON {name: {dtype, shape, data_offsets: [from, to]}} · the tensors, without gaps
"""

from __future__ import annotations

import json
import math
import os
import stat
import struct
from dataclasses import dataclass
from typing import Any, Final

MAX_HEADER: Final = 100_000_000
BITS: Final = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32,
    "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
METADATA: Final = "__metadata__"


class HeaderError(ValueError):
    """The file is no whole safetensors file; the message says why."""


@dataclass(frozen=True)
class Tensor:
    """One tensor; `start` and `end` are offsets in the file, in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def values(self) -> int:
        return math.prod(self.shape)


def read_header(path: str | os.PathLike[str]) -> list[Tensor]:
    """Every tensor in the order of the file. Raises HeaderError, OSError. The tensors' own bytes are not read."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as stream:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise HeaderError("is not a regular file")
        head = stream.read(8)
        if len(head) < 8:
            raise HeaderError("is too short for a header")
        (length,) = struct.unpack("<Q", head)
        if not 2 <= length <= min(MAX_HEADER, found.st_size - 8):
            raise HeaderError(f"states a header of {length} bytes in a file of {found.st_size}")
        data = stream.read(length)
    return _tensors(_parse(data), 8 + length, found.st_size)


def _parse(data: bytes) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        out = dict(pairs)
        if len(out) != len(pairs):
            raise HeaderError("names one thing twice")
        return out

    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=once)
    except (UnicodeDecodeError, RecursionError, json.JSONDecodeError) as exc:
        raise HeaderError(f"has a header that is no JSON: {exc}"[:200]) from exc
    if not isinstance(value, dict):
        raise HeaderError("has a header that is no object")
    return value


def _tensors(header: dict[str, Any], base: int, size: int) -> list[Tensor]:
    out = sorted((_tensor(n, row, base) for n, row in header.items() if n != METADATA), key=lambda t: (t.start, t.end))
    here = base
    for tensor in out:
        if tensor.start != here:
            raise HeaderError(f"has a gap or an overlap before {tensor.name}")
        here = tensor.end
    if here != size:
        raise HeaderError(f"has {size} bytes, and its header accounts for {here}")
    return out


def _tensor(name: str, row: Any, base: int) -> Tensor:
    try:
        dtype, shape, (start, end) = row["dtype"], row["shape"], row["data_offsets"]
        bits = BITS[dtype]
        if not all(type(n) is int and n >= 0 for n in (*shape, start, end)):
            raise ValueError
        values = math.prod(shape)
    except (KeyError, TypeError, ValueError):
        raise HeaderError(f"describes {name[:100]!r} in a way that is not understood") from None
    if end - start != (values * bits + 7) // 8:
        raise HeaderError(f"gives {name} {end - start} bytes for {values} values of {dtype}")
    return Tensor(name, dtype, tuple(shape), base + start, base + end)


def is_zero(path: str | os.PathLike[str], tensor: Tensor) -> bool:
    """True if every byte of the tensor is 0. Raises OSError."""
    with open(path, "rb") as stream:
        stream.seek(tensor.start)
        left = tensor.end - tensor.start
        while left > 0:
            chunk = stream.read(min(left, 1 << 20))
            if not chunk or chunk.strip(b"\0"):
                return False
            left -= len(chunk)
    return True
