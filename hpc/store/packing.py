"""Writes a package as a canonical tar.gz: the same files give the same bytes, on one version of zlib. What it writes, `hpc.store.archive` takes."""

from __future__ import annotations

import os
import stat
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path

from tuneplane.record.files import open_regular

from hpc.store.tarheaders import BLOCK, POSIX

_GZIP = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff"
"""No name, no time, best compression, no system."""
_RECORD = 20 * BLOCK


def pack(folder: str | os.PathLike[str], files: Iterable[str]) -> bytes:
    """A tar.gz of `files` (POSIX paths below `folder`), sorted, owned by nobody, without times; modes 0644, or 0755 with the owner's exec bit.

    Raises OSError; links are not followed. Holds the archive in memory.
    """
    body = bytearray()
    for path in sorted(files):
        with open_regular(Path(folder) / path) as stream:
            run = bool(os.fstat(stream.fileno()).st_mode & stat.S_IXUSR)
            data = stream.read()
        body += _member(path, data, 0o755 if run else 0o644)
    body += bytes(2 * BLOCK)
    body += bytes(-len(body) % _RECORD)
    engine = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = engine.compress(bytes(body)) + engine.flush()
    return _GZIP + packed + struct.pack("<II", zlib.crc32(body), len(body) & 0xFFFFFFFF)


def _member(path: str, data: bytes, mode: int) -> bytes:
    name = path.encode("utf-8")
    out = b""
    if len(name) > 100 or not name.isascii():
        out += _block(b"pax", _pax(name), 0o644, b"x")
        name = name[:100] if name.isascii() else b"long"
    return out + _block(name, data, mode, b"0")


def _pax(name: bytes) -> bytes:
    """One record `<length> path=<name>`, whose length counts itself."""
    body = b" path=" + name + b"\n"
    length = len(body)
    while len(str(length)) + len(body) != length:
        length = len(str(length)) + len(body)
    return str(length).encode() + body


def _block(name: bytes, data: bytes, mode: int, kind: bytes) -> bytes:
    head = struct.pack(
        "100s8s8s8s12s12s8s1s100s8s32s32s8s8s155s12x",
        name, b"%07o\0" % mode, b"%07o\0" % 0, b"%07o\0" % 0, b"%011o\0" % len(data), b"%011o\0" % 0, b" " * 8, kind, b"",
        POSIX, b"", b"", b"%07o\0" % 0, b"%07o\0" % 0, b"",
    )  # fmt: skip
    head = head[:148] + b"%06o\0 " % sum(head) + head[156:]
    return head + data + bytes(-len(data) % BLOCK)
