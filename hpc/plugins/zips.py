"""A zip archive read with suspicion: its directory and its members must tell one story, from the first byte to the last.

The file is nothing but local headers with their data, one after the other without a gap, then the central directory in the same order, then the end
record without a comment. Refused: a name twice or folded to another's, links, encryption, Zip64, unknown compression, wrong checksums, and members
that hold more than they promise. Reads bytes only; extracts nothing.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from hpc.spec.text import visible
from hpc.store.names import path_fault, twins

MAX_UNPACKED: Final = 128 << 20
MAX_MEMBERS: Final = 10_000
MAX_RATIO: Final = 200
_FREE_BYTES: Final = 4 << 20
"""Below this the ratio does not matter: small texts of one letter compress well."""
_END, _CENTRAL, _LOCAL, _DESCRIPTOR = b"PK\5\6", b"PK\1\2", b"PK\3\4", b"PK\7\10"
_UTF8, _DESCRIBED = 1 << 11, 1 << 3
_HARMLESS_FLAGS: Final = _UTF8 | _DESCRIBED | 0b110  # 1 and 2: how hard the compressor tried
_FORBIDDEN_EXTRA: Final = {0x0001: "Zip64", 0x7075: "a second name"}


class NotZipError(ValueError):
    """The bytes are no zip that is taken; the message says why."""


class TooMuchError(NotZipError):
    """The archive unpacks to more than is taken, or to more than it promises."""


@dataclass(frozen=True)
class Member:
    """One file: its name, sizes packed and unpacked, checksum, and where its data begin."""

    name: str
    packed: int
    size: int
    crc: int
    method: int
    data_at: int


class Zip:
    """A sound archive. `members` by name, folders left out. Raises NotZipError on construction and on reading."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        entries, start = _directory(data)
        at, members = 0, list[Member]()
        for entry in entries:
            member, at = _local(data, entry, at, start)
            members.append(member)
        if at != start:
            raise NotZipError(f"{start - at} bytes between the members and the directory belong to nobody")
        _limits(members, len(data))
        _names(members)
        self.members = {m.name: m for m in members if not m.name.endswith("/")}

    def read(self, name: str) -> bytes:
        """The member's bytes, whole, as long and with the checksum as promised."""
        member = self.members[name]
        raw = self._data[member.data_at : member.data_at + member.packed]
        if member.method == 0:
            out, whole = raw, True
        else:
            engine = zlib.decompressobj(-zlib.MAX_WBITS)
            try:
                out = engine.decompress(raw, member.size + 1)
            except zlib.error as exc:
                raise NotZipError(f"{name}: damaged: {exc}") from exc
            whole = engine.eof and not engine.unused_data and not engine.unconsumed_tail
        if len(out) > member.size:
            raise TooMuchError(f"{name}: holds more than the {member.size} bytes it promises")
        if not whole or len(out) != member.size:
            raise NotZipError(f"{name}: is cut short or followed by other data")
        if zlib.crc32(out) != member.crc:
            raise NotZipError(f"{name}: the checksum is wrong")
        return out


@dataclass(frozen=True)
class _Entry:
    raw_name: bytes
    name: str
    flags: int
    method: int
    stamp: bytes
    crc: int
    packed: int
    size: int
    header_at: int


def _directory(data: bytes) -> tuple[list[_Entry], int]:
    """The central directory's entries, and where it starts."""
    end = len(data) - 22
    if end < 0 or data[end : end + 4] != _END:
        raise NotZipError("does not end as a zip without a comment")
    disk, first, here, count, size, start, comment = struct.unpack_from("<HHHHIIH", data, end + 4)
    if comment or disk or first or here != count or start + size != end or count == 0xFFFF:
        raise NotZipError("its end record does not fit the file")
    if count > MAX_MEMBERS:
        raise TooMuchError(f"has {count} members")
    at, found = start, list[_Entry]()
    for _ in range(count):
        if at + 46 > end or data[at : at + 4] != _CENTRAL:
            raise NotZipError("its directory is damaged")
        entry, at = _central(data, at, end)
        found.append(entry)
    if at != end:
        raise NotZipError("its directory holds more than it counts")
    return found, start


def _central(data: bytes, at: int, end: int) -> tuple[_Entry, int]:
    fields = struct.unpack_from("<HHHH4sIIIHHHHHII", data, at + 4)
    (
        made_by,
        _,
        flags,
        method,
        stamp,
        crc,
        packed,
        size,
        name_len,
        extra_len,
        comment_len,
        disk,
        _,
        attributes,
        header,
    ) = fields
    after = at + 46 + name_len + extra_len + comment_len
    if after > end or disk or comment_len:
        raise NotZipError("an entry of its directory is damaged")
    raw = data[at + 46 : at + 46 + name_len]
    name = _name(raw, flags)
    _extra(data[at + 46 + name_len : at + 46 + name_len + extra_len], name)
    kind = (attributes >> 28) if made_by >> 8 == 3 else 0
    if kind not in (0, 0o10, 0o04):
        raise NotZipError(f"{name}: is a link or a special file")
    if (name.endswith("/") and (size or packed)) or (kind == 0o04 and not name.endswith("/")):
        raise NotZipError(f"{name}: is a folder and a file at once")
    if flags & ~_HARMLESS_FLAGS:
        raise NotZipError(f"{name}: is encrypted or packed in another way than plain deflate")
    if method not in (0, 8) or (method == 0 and packed != size):
        raise NotZipError(f"{name}: is compressed in a way that is not taken")
    return _Entry(raw, name, flags, method, stamp, crc, packed, size, header), after


def _name(raw: bytes, flags: int) -> str:
    try:
        name = raw.decode("utf-8" if flags & _UTF8 else "ascii")
    except UnicodeDecodeError:
        raise NotZipError(f"the name {raw[:80]!r} is neither ASCII nor marked as UTF-8") from None
    if fault := path_fault(name.removesuffix("/")):
        raise NotZipError(f"the name {visible(name)!r} {fault}")
    return name


def _extra(data: bytes, name: str) -> None:
    at = 0
    while at + 4 <= len(data):
        tag, length = struct.unpack_from("<HH", data, at)
        if tag in _FORBIDDEN_EXTRA:
            raise NotZipError(f"{name}: carries {_FORBIDDEN_EXTRA[tag]}")
        at += 4 + length
    if at != len(data):
        raise NotZipError(f"{name}: its extra fields are damaged")


def _local(data: bytes, entry: _Entry, at: int, limit: int) -> tuple[Member, int]:
    """The member behind an entry, whose local header must lie at `at` and say the same; and where the next one begins."""
    name = entry.name
    if entry.header_at != at:
        raise NotZipError(f"{name}: does not begin where the one before it ends")
    if at + 30 > limit or data[at : at + 4] != _LOCAL:
        raise NotZipError(f"{name}: has no header where the directory says")
    _, flags, method, stamp, crc, packed, size, name_len, extra_len = struct.unpack_from("<HHH4sIIIHH", data, at + 4)
    data_at = at + 30 + name_len + extra_len
    raw = data[at + 30 : at + 30 + name_len]
    sums = (0, 0, 0) if flags & _DESCRIBED and not (crc or packed or size) else (entry.crc, entry.packed, entry.size)
    if (raw, flags, method, stamp) != (entry.raw_name, entry.flags, entry.method, entry.stamp) or (
        crc,
        packed,
        size,
    ) != sums:
        raise NotZipError(f"{name}: its header and the directory differ")
    _extra(data[at + 30 + name_len : data_at], name)
    after = data_at + entry.packed
    if after > limit:
        raise NotZipError(f"{name}: reaches into the directory")
    if flags & _DESCRIBED:
        after = _descriptor(data, after, entry, limit)
    return Member(name, entry.packed, entry.size, entry.crc, entry.method, data_at), after


def _descriptor(data: bytes, at: int, entry: _Entry, limit: int) -> int:
    at += 4 if data[at : at + 4] == _DESCRIPTOR else 0
    if at + 12 > limit or struct.unpack_from("<III", data, at) != (entry.crc, entry.packed, entry.size):
        raise NotZipError(f"{entry.name}: what follows its data differs from the directory")
    return at + 12


def _limits(members: list[Member], packed: int) -> None:
    total = sum(m.size for m in members)
    if total > MAX_UNPACKED or (total > _FREE_BYTES and total > packed * MAX_RATIO):
        raise TooMuchError(f"unpacks to {total} bytes from {packed}")


def _names(members: list[Member]) -> None:
    seen: set[str] = set()
    files = [m.name for m in members if not m.name.endswith("/")]
    for member in members:
        name = member.name.removesuffix("/")
        if name in seen:
            raise NotZipError(f"{visible(name)}: stands twice")
        seen.add(name)
    for name in _above(files):
        if name in files:
            raise NotZipError(f"{visible(name)}: is a file and a folder at once")
    for one, other in twins(files):
        raise NotZipError(f"{visible(one)!r} and {visible(other)!r} are one name elsewhere")


def _above(files: list[str]) -> Iterator[str]:
    """Every folder that a file lies in, once."""
    seen: set[str] = set()
    for name in files:
        parts = name.split("/")[:-1]
        for end in range(len(parts), 0, -1):
            folder = "/".join(parts[:end])
            if folder in seen:
                break
            seen.add(folder)
            yield folder
