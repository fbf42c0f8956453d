"""The archive of a bundle: plain ustar with nothing but regular files, every other field fixed, so that the same files give the same bytes.

The reader takes exactly what the writer writes: each header is encoded again from the name, size and mode that were read, and must come out the
same. So there are no links, devices, extended headers, second names or trailing bytes to misread. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

from tuneplane.record.digest import is_relative

BLOCK: Final = 512
MAX_FILES: Final = 200_000
_CHUNK: Final = 1 << 20


class ArchiveError(ValueError):
    """The bytes are not an archive of this form; the message says where."""


@dataclass(frozen=True)
class Member:
    """One file: path, size in bytes, whether it may be executed."""

    path: str
    size: int
    exec: bool


def header(member: Member) -> bytes:
    """The header block. Raises ArchiveError for a path that ustar has no room for, or a file of 8 GiB or more."""
    name, prefix = member.path.encode("utf-8"), b""
    if len(name) > 100:
        # The name takes as much as it can; the prefix ends at a slash.
        cut = name.find(b"/", len(name) - 101)
        prefix, name = (name[:cut], name[cut + 1 :]) if cut > 0 else (b"", name)
    if not is_relative(member.path) or len(name) > 100 or len(prefix) > 155 or not 0 <= member.size < 8 << 30:
        raise ArchiveError(f"{member.path:.300}: too long or too large for an archive")
    mode = b"0000755" if member.exec else b"0000644"
    fields = [
        name.ljust(100, b"\0"), mode + b"\0", b"0000000\0", b"0000000\0", b"%011o\0" % member.size, b"00000000000\0", b" " * 8, b"0",
        b"\0" * 100, b"ustar\0", b"00", b"\0" * 32, b"\0" * 32, b"0000000\0", b"0000000\0", prefix.ljust(155, b"\0"), b"\0" * 12,
    ]  # fmt: skip
    block = b"".join(fields)
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def write_archive(out: BinaryIO, members: Iterable[tuple[Member, Iterable[bytes]]]) -> None:
    """Write members and the end. Raises ArchiveError where a file's bytes are not as many as its member says."""
    for member, chunks in members:
        out.write(header(member))
        written = 0
        for chunk in chunks:
            written += out.write(chunk)
        if written != member.size:
            raise ArchiveError(f"{member.path}: has {written} bytes, not {member.size}")
        out.write(bytes(-written % BLOCK))
    out.write(bytes(2 * BLOCK))


def read_archive(stream: BinaryIO) -> Iterator[tuple[Member, Iterator[bytes]]]:
    """Each member with its bytes, which the caller must take before the next member. Raises ArchiveError."""
    seen: set[str] = set()
    while True:
        block = stream.read(BLOCK)
        if block == bytes(BLOCK):
            if stream.read(BLOCK + 1) != bytes(BLOCK):
                raise ArchiveError("the end of the archive is not its end")
            return
        member = _member(block)
        if member.path in seen or len(seen) >= MAX_FILES:
            raise ArchiveError(f"{member.path}: stands twice, or there are too many files")
        seen.add(member.path)
        yield member, _body(stream, member)


def _member(block: bytes) -> Member:
    try:
        name, prefix = (block[a:b].split(b"\0", 1)[0].decode("utf-8") for a, b in ((0, 100), (345, 500)))
        member = Member(f"{prefix}/{name}" if prefix else name, int(block[124:135], 8), block[100:107] == b"0000755")
        if len(block) == BLOCK and header(member) == block:
            return member
    except ValueError:
        pass
    raise ArchiveError("a header that is not one of this archive's form")


def _body(stream: BinaryIO, member: Member) -> Iterator[bytes]:
    left = member.size
    while left:
        chunk = stream.read(min(left, _CHUNK))
        if not chunk:
            raise ArchiveError(f"{member.path}: is cut")
        left -= len(chunk)
        yield chunk
    padding = -member.size % BLOCK
    if stream.read(padding) != bytes(padding):
        raise ArchiveError(f"{member.path}: is not followed by zeros")
