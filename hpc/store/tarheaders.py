"""The grammar of tar headers that are taken: POSIX ustar, pax and GNU long names, one of the two families in one archive. Pure.

This is the only parser of an archive; nothing else is asked what a header means. Owners, times, devices and extended attributes are not read at all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from hpc.errors import Refusal
from hpc.spec.text import escaped, visible
from hpc.store.names import fault_of

BLOCK: Final = 512
ZERO: Final = bytes(BLOCK)
POSIX: Final = b"ustar\x0000"
GNU: Final = b"ustar  \x00"
MAX_SIZE: Final = 1 << 32
MAX_EXTENSION: Final = 1 << 16
"""Bytes of an extended header."""
_OCTAL = re.compile(rb" *([0-7]+)[ \0]*")
_RECORD = re.compile(rb"([1-9][0-9]{0,5}) ")
_IGNORED = re.compile(r"(atime|ctime|mtime|uid|gid|uname|gname|comment|charset|(SCHILY|LIBARCHIVE|RHT)\.[\w.:+-]+)")
"""Records that say nothing about where the bytes go or how many there are."""
_UTF8 = "ISO-IR 10646 2000 UTF-8"
_PATH_CODES = {"form": "E-ARCHIVE-011", "length": "E-ARCHIVE-012", "characters": "E-ARCHIVE-022"}
_TYPES: dict[bytes, Literal["file", "folder", "pax", "longname"]] = {
    b"0": "file", b"\0": "file", b"5": "folder", b"x": "pax", b"L": "longname",
}  # fmt: skip
_LINKS = {b"1": "a hard link", b"2": "a symbolic link", b"K": "a link with a long name"}
_SPECIAL = {
    b"3": "a character device", b"4": "a block device", b"6": "a pipe", b"7": "a contiguous file", b"S": "a sparse file",
}  # fmt: skip


def no(code: str, message: str, *, found: object = None, allowed: str = "") -> Refusal:
    return Refusal(code, message, field="archive", found=found, allowed=allowed)


@dataclass(frozen=True)
class Header:
    """One header block as it stands: its own name in bytes, what it is, its size, whether it may be executed, and its family."""

    raw_name: bytes
    kind: Literal["file", "folder", "pax", "longname"]
    size: int
    exec: bool
    magic: bytes


def parse_header(block: bytes) -> Header:
    """Read one block that is not zero. Raises Refusal E-ARCHIVE-007, -008, -013, -014, -018, -021."""
    if _octal(block[148:156], "checksum") != sum(block) - sum(block[148:156]) + 8 * 32:
        raise no("E-ARCHIVE-007", "the checksum of a header is wrong")
    magic = block[257:265]
    if magic not in (POSIX, GNU):
        raise no(
            "E-ARCHIVE-008", "a header is of no format that is taken", found=repr(magic), allowed="ustar, pax or GNU"
        )
    name = _text(block[0:100])
    if magic == POSIX and (prefix := _text(block[345:500])):
        name = prefix + b"/" + name
    kind = block[156:157]
    if kind == b"g":
        raise no("E-ARCHIVE-018", "has a global header", found=_shown(name))
    if kind in _LINKS:
        raise no("E-ARCHIVE-013", f"{_shown(name)} is {_LINKS[kind]}", found=_shown(name))
    if kind not in _TYPES:
        what = _SPECIAL.get(kind, f"of type {kind!r}")
        raise no("E-ARCHIVE-014", f"{_shown(name)} is {what}", found=_shown(name), allowed="files and folders")
    return Header(name, _TYPES[kind], _size(block[124:136], name), bool(_octal(block[100:108], "mode") & 0o100), magic)


def _octal(field: bytes, what: str) -> int:
    match = _OCTAL.fullmatch(field)
    if not match:
        raise no("E-ARCHIVE-007", f"the {what} of a header is no octal number", found=repr(field))
    return int(match[1], 8)


def _size(field: bytes, name: bytes) -> int:
    if field[0] & 0x80 or b"-" in field:
        raise no("E-ARCHIVE-021", f"{_shown(name)} has a size that is negative or not octal", found=field.hex())
    size = _octal(field, "size")
    if size >= MAX_SIZE:
        raise no("E-ARCHIVE-021", f"{_shown(name)} promises {size} bytes", found=size)
    return size


def _text(field: bytes) -> bytes:
    """A field up to its first NUL; nothing may hide behind it."""
    text, _, rest = field.partition(b"\0")
    if rest.strip(b"\0"):
        raise no("E-ARCHIVE-007", "bytes hide behind the end of a name", found=repr(field[:60]))
    return text


def _shown(name: bytes) -> str:
    return escaped(visible(name.decode("utf-8", "backslashreplace")))


def pax_path(data: bytes) -> bytes | None:
    """The path that a pax header gives to the next entry, None if it gives none. Raises Refusal E-ARCHIVE-019."""
    at, seen = 0, dict[str, bytes]()
    while at < len(data):
        match = _RECORD.match(data, at)
        end = at + int(match[1]) if match else 0
        body = (
            data[match.end() : end - 1]
            if match and match.end() < end <= len(data) and data[end - 1 : end] == b"\n"
            else b""
        )
        key, equals, value = body.partition(b"=")
        try:
            name = key.decode("ascii")
        except UnicodeDecodeError:
            name = ""
        if not equals or not name:
            raise no("E-ARCHIVE-019", "a pax record is malformed", found=repr(data[at : at + 40]))
        if name in seen:
            raise no("E-ARCHIVE-019", f"the pax record {visible(name)!r} stands twice", found=visible(name))
        seen[name] = value
        at = end
    for name, value in seen.items():
        known = name == "path" or _IGNORED.fullmatch(name) or (name == "hdrcharset" and value == _UTF8.encode())
        if not known:
            raise no("E-ARCHIVE-019", f"the pax record {visible(name)!r} is not taken", found=visible(name))
    if b"\0" in (path := seen.get("path", b"")):
        raise no("E-ARCHIVE-019", "a pax path holds a NUL", found=repr(path[:60]))
    return seen.get("path")


def long_name(data: bytes, header: Header) -> bytes:
    """The GNU long name for an entry whose own header holds its start. Raises Refusal E-ARCHIVE-020."""
    name = data.removesuffix(b"\0")
    if name == data or b"\0" in name or not name:
        raise no("E-ARCHIVE-020", "a long name does not end where its data end", found=repr(data[:60]))
    if len(header.raw_name) < 99 or not name.startswith(header.raw_name):
        raise no("E-ARCHIVE-020", "a long name does not continue the name of its entry", found=_shown(header.raw_name))
    return name


def normal_path(raw: bytes, kind: str) -> str:
    """The entry's path relative to the package, "" for the package's own folder.

    `./` in front, which `tar -C FOLDER .` writes, and one `/` behind a folder's name are no part of it; the own folder is `.`, `./`, or the `/` of
    Python's arcname="". Raises Refusal E-ARCHIVE-011, -012, -022.
    """
    try:
        path = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise no("E-ARCHIVE-022", f"the name {_shown(raw)} is not UTF-8", found=_shown(raw)) from None
    if kind == "folder":
        if path in (".", "./", "/"):
            return ""
        path = path.removesuffix("/")
    path = path.removeprefix("./")
    reason, message = fault_of(path)
    if reason:
        raise no(_PATH_CODES[reason], f"the path {_shown(raw)!r} {message}", found=_shown(raw))
    return path
