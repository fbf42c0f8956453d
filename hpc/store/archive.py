"""Archives from outside, a tar.gz each: read with suspicion, unpacked into a fresh private folder, and written in one canonical form.

The whole archive is read and judged before the first file is made. Taken are regular files and folders; modes become 0644, 0755 for what its owner
may execute, and 0755 for folders; owners, times and attributes are not restored. Does not judge what the files are.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tuneplane.record.digest import digest_bytes

from hpc.errors import Refusal
from hpc.spec.text import visible
from hpc.store.faults import refusal
from hpc.store.folders import folder as opened_folder
from hpc.store.names import folded
from hpc.store.tarheaders import (
    BLOCK,
    GNU,
    MAX_EXTENSION,
    POSIX,
    ZERO,
    Header,
    long_name,
    no,
    normal_path,
    parse_header,
    pax_path,
)

_CHUNK: Final = 1 << 16
_FREE_BYTES: Final = 4 << 20
"""Below this the ratio does not matter."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class Limits:
    """Bounds on one archive: bytes as sent, bytes that come out, their ratio, entries, and folders in folders."""

    packed: int = 32 << 20
    unpacked: int = 64 << 20
    ratio: int = 200
    entries: int = 10_000
    depth: int = 32


LIMITS: Final = Limits()


@dataclass(frozen=True)
class Entry:
    """One file or folder: path relative to the package, size in bytes, exec bit, and where its data begin in the tar stream."""

    path: str
    kind: Literal["file", "folder"]
    size: int
    exec: bool
    data_at: int


@dataclass(frozen=True)
class Archive:
    """A judged archive: its own bytes, their SHA-256, and the entries in their order."""

    data: bytes
    digest: str
    entries: tuple[Entry, ...]
    limits: Limits = LIMITS

    @property
    def files(self) -> list[Entry]:
        return [e for e in self.entries if e.kind == "file"]


def read_archive(path: str | os.PathLike[str], limits: Limits = LIMITS) -> Archive:
    """Read and judge the archive at `path`, a regular file. Raises Refusal E-ARCHIVE-0xx; writes nothing."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as exc:
        raise no("E-ARCHIVE-001", f"cannot be read: {exc.strerror}", found=os.fspath(path)) from exc
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise no("E-ARCHIVE-001", "is no regular file", found=os.fspath(path))
    with os.fdopen(fd, "rb") as stream:
        data = stream.read(limits.packed + 1)
    return judge(data, limits)


def judge(data: bytes, limits: Limits = LIMITS) -> Archive:
    """The archive in `data`, every entry checked to the last byte. Raises Refusal E-ARCHIVE-0xx. Pure."""
    if len(data) > limits.packed:
        raise no("E-ARCHIVE-002", f"has more than {limits.packed} bytes", allowed=f"{limits.packed} bytes")
    stream = _Gunzip(data, limits)
    entries = _Walk(stream, limits).entries()
    stream.finish()
    if not any(e.kind == "file" for e in entries):
        raise no("E-ARCHIVE-023", "holds no file")
    return Archive(data, digest_bytes(data), tuple(entries), limits)


class _Gunzip:
    """One gzip member, decompressed as it is asked for; counts what comes out."""

    def __init__(self, data: bytes, limits: Limits) -> None:
        self._data, self._limits = data, limits
        self._engine = zlib.decompressobj(16 + zlib.MAX_WBITS)
        self._fed, self._ready, self._used = 0, b"", 0
        self._out = 0
        self.at = 0

    def read(self, size: int) -> bytes:
        """The next `size` bytes; fewer only at the end of the stream."""
        parts, wanted = [], size
        while wanted and (chunk := self._next(wanted)):
            parts.append(chunk)
            wanted -= len(chunk)
        self.at += size - wanted
        return b"".join(parts)

    def _next(self, most: int) -> bytes:
        while self._used == len(self._ready) and not self._engine.eof:
            tail = self._engine.unconsumed_tail
            if not tail:
                tail = self._data[self._fed : self._fed + _CHUNK]
                self._fed += len(tail)
                if not tail:
                    raise no("E-ARCHIVE-003", "the gzip stream is cut short")
            try:
                self._ready, self._used = self._engine.decompress(tail, _CHUNK), 0
            except zlib.error as exc:
                raise no("E-ARCHIVE-003", f"the gzip stream is damaged: {exc}") from exc
            self._count()
        out = self._ready[self._used : self._used + most]
        self._used += len(out)
        return out

    def _count(self) -> None:
        self._out = out = self._out + len(self._ready)
        # Headers and padding come on top of the files' bytes.
        if out > self._limits.unpacked + (self._limits.entries + 2) * 2 * BLOCK:
            raise no("E-ARCHIVE-005", f"unpacks to more than {self._limits.unpacked} bytes")
        if out > _FREE_BYTES and out > self._limits.ratio * len(self._data):
            raise no("E-ARCHIVE-005", f"unpacks to more than {self._limits.ratio} times its size")

    def finish(self) -> None:
        """Nothing may follow the one member, whose checksum and length are right."""
        while self._next(_CHUNK):
            pass
        if rest := self._engine.unused_data + self._data[self._fed :]:
            what = "a second gzip member" if rest.startswith(b"\x1f\x8b") else f"{len(rest)} bytes"
            raise no("E-ARCHIVE-004", f"{what} after the gzip stream")


class _Walk:
    """The entries of a tar stream, and what all of them together must be."""

    def __init__(self, stream: _Gunzip, limits: Limits) -> None:
        self.stream, self.limits = stream, limits
        self.magic = b""
        self.total = 0
        self.found: dict[str, Entry] = {}
        self.implied: set[str] = set()
        self.folds: dict[str, str] = {}

    def entries(self) -> list[Entry]:
        seen = 0
        while (block := self._block()) != ZERO:
            seen += 1
            if seen > self.limits.entries:
                raise no("E-ARCHIVE-006", f"has more than {self.limits.entries} entries")
            self._entry(self._header(block))
        self._end()
        return [e for path, e in self.found.items() if path]

    def _block(self) -> bytes:
        block = self.stream.read(BLOCK)
        if len(block) < BLOCK:
            raise no("E-ARCHIVE-009", "ends without an end marker")
        return block

    def _header(self, block: bytes) -> Header:
        header = parse_header(block)
        if self.magic and header.magic != self.magic:
            raise no("E-ARCHIVE-008", "mixes POSIX and GNU headers", allowed="one format")
        self.magic = header.magic
        return header

    def _entry(self, header: Header) -> None:
        raw = header.raw_name
        if header.kind in ("pax", "longname"):
            extension = self._extension(header)
            follows = self._block()
            if follows == ZERO:
                raise no("E-ARCHIVE-020", "an extended header belongs to no entry")
            owner = self._header(follows)
            if owner.kind in ("pax", "longname"):
                raise no("E-ARCHIVE-020", "two extended headers stand before one entry")
            path = long_name(extension, owner) if header.kind == "longname" else pax_path(extension)
            raw = owner.raw_name if path is None else path
            header = owner
        kind: Literal["file", "folder"] = "folder" if header.kind == "folder" else "file"
        if kind == "folder" and header.size:
            raise no("E-ARCHIVE-007", "a folder has data", found=header.size)
        self._add(Entry(normal_path(raw, kind), kind, header.size, header.exec, self.stream.at))
        self._skip(header.size)

    def _extension(self, header: Header) -> bytes:
        if header.magic != (GNU if header.kind == "longname" else POSIX):
            raise no("E-ARCHIVE-008", "an extended header is of the other format")
        if header.size > MAX_EXTENSION:
            raise no("E-ARCHIVE-021", f"an extended header has {header.size} bytes", found=header.size)
        data = self.stream.read(header.size)
        self._padding(header.size)
        return data

    def _skip(self, size: int) -> None:
        self.total += size
        if self.total > self.limits.unpacked:
            raise no("E-ARCHIVE-005", f"unpacks to more than {self.limits.unpacked} bytes")
        left = size
        while left:
            chunk = self.stream.read(min(left, _CHUNK))
            if not chunk:
                raise no("E-ARCHIVE-009", "a member is cut short")
            left -= len(chunk)
        self._padding(size)

    def _padding(self, size: int) -> None:
        wanted = -size % BLOCK
        rest = self.stream.read(wanted)
        if len(rest) < wanted:
            raise no("E-ARCHIVE-009", "a member is cut short")
        if rest.strip(b"\0"):
            raise no("E-ARCHIVE-010", "bytes hide in the padding behind a member")

    def _end(self) -> None:
        """Two blocks of zeros, and then nothing but zeros up to the end of the record."""
        if (second := self.stream.read(BLOCK)) != ZERO:
            whole = len(second) == BLOCK
            raise no(
                "E-ARCHIVE-010" if whole else "E-ARCHIVE-009", "a lone end block" if whole else "half an end marker"
            )
        while chunk := self.stream.read(_CHUNK):
            if chunk.strip(b"\0"):
                raise no("E-ARCHIVE-010", "data stand after the end marker")

    def _add(self, entry: Entry) -> None:
        path = entry.path
        shown = visible(path) or "."
        if path in self.found:
            raise no("E-ARCHIVE-015", f"{shown} stands twice", found=shown)
        parts = path.split("/")
        if len(parts) > self.limits.depth + 1:
            raise no("E-ARCHIVE-006", f"{shown} lies deeper than {self.limits.depth} folders", found=shown)
        above = ["/".join(parts[:n]) for n in range(1, len(parts))]
        held = next((p for p in above if p in self.found and self.found[p].kind == "file"), "")
        if held or (entry.kind == "file" and path in self.implied):
            raise no("E-ARCHIVE-016", f"{visible(held) or shown} is a file and a folder at once", found=shown)
        for prefix in [*above, path] if path else []:
            other = self.folds.setdefault(folded(prefix), prefix)
            if other != prefix:
                raise no(
                    "E-ARCHIVE-017", f"{visible(other)!r} and {visible(prefix)!r} are one name elsewhere", found=shown
                )
        self.implied.update(above)
        self.found[path] = entry


@contextmanager
def unpacked(archive: Archive, parent: str | os.PathLike[str]) -> Iterator[Path]:
    """A fresh folder (0700) below `parent` with the archive's files, removed with all it holds when the context ends.

    `parent` is a private folder of the caller. Raises Refusal E-STORE-0xx; then nothing is left.
    """
    target = Path(parent) / f".unpacked.{secrets.token_hex(8)}"
    with opened_folder(parent) as parent_fd:
        try:
            os.mkdir(target.name, 0o700, dir_fd=parent_fd)
        except OSError as exc:
            raise refusal(exc, parent, "make a folder in") from exc
        try:
            _fill(archive, target, parent_fd)
            yield target
        finally:
            shutil.rmtree(target, ignore_errors=True)


def _fill(archive: Archive, target: Path, parent_fd: int) -> None:
    try:
        root = os.open(target.name, _FOLDER, dir_fd=parent_fd)
        try:
            if os.fstat(root).st_uid != os.geteuid():
                raise Refusal("E-STORE-012", "belongs to somebody else", field=str(target))
            os.fchmod(root, 0o700)  # a setgid parent hands its bit on
            _write_all(archive, root)
        finally:
            os.close(root)
    except OSError as exc:
        raise refusal(exc, target, "unpack into") from exc


def _write_all(archive: Archive, root: int) -> None:
    stream = _Gunzip(archive.data, archive.limits)
    for entry in archive.entries:
        above, _, name = entry.path.rpartition("/")
        folder = _enter(root, above.split("/") if above else [])
        try:
            if entry.kind == "folder":
                os.close(_enter(folder, [name]))
            else:
                stream.read(entry.data_at - stream.at)
                _write_file(folder, name, entry, stream)
        finally:
            os.close(folder)


def _enter(root: int, parts: Iterable[str]) -> int:
    """A descriptor of the folder below `root`, each missing part made with 0755; no part is followed through a link."""
    fd = os.dup(root)
    for part in parts:
        try:
            os.mkdir(part, 0o700, dir_fd=fd)
            new = True
        except FileExistsError:
            new = False
        try:
            below = os.open(part, _FOLDER, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
        if new:
            os.fchmod(fd, 0o755)
    return fd


def _write_file(folder: int, name: str, entry: Entry, stream: _Gunzip) -> None:
    fd = os.open(name, _NEW, 0o600, dir_fd=folder)
    try:
        left = entry.size
        while left:
            view = memoryview(stream.read(min(left, _CHUNK)))
            left -= len(view)
            while view:
                view = view[os.write(fd, view) :]
        os.fchmod(fd, 0o755 if entry.exec else 0o644)
    finally:
        os.close(fd)
