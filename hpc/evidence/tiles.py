"""Tiles and entry bundles as plain files (C2SP tlog-tiles, height 8): paths, encoding, and a tree read from them. Standard library only.

    checkpoint                       the signed head
    tile/<L>/<N>[.p/<W>]             up to 256 hashes of 32 bytes
    tile/entries/<N>[.p/<W>]         up to 256 entries, each after its length as big-endian uint16

N is written in groups of three digits, all but the last with an `x` before it. A file without `.p/<W>` is full and never changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tuneplane.record.files import read_bytes

from hpc.evidence.merkle import HASH_BYTES, full_root, leaf_hash

HEIGHT: Final = 8
WIDTH: Final = 1 << HEIGHT
MAX_ENTRY: Final = (1 << 16) - 1
MAX_SIZE: Final = 1 << 40
ENTRIES: Final = "entries"


class TileError(ValueError):
    """A tile or bundle is not what the tree needs; the message names the file and says why."""


def tile_path(level: int | str, index: int, width: int = WIDTH) -> str:
    """The path of a tile below the log's folder. `level` is a number or `entries`."""
    groups = [f"{index % 1000:03d}"]
    while index >= 1000:
        index //= 1000
        groups.append(f"x{index % 1000:03d}")
    partial = "" if width == WIDTH else f".p/{width}"
    return f"tile/{level}/{'/'.join(reversed(groups))}{partial}"


def widths(size: int, level: int) -> Iterator[tuple[int, int]]:
    """(index, width) of every tile of a level in a tree of `size` leaves; the last may be partial, none is empty."""
    nodes = size >> (HEIGHT * level)
    for index in range(nodes // WIDTH):
        yield index, WIDTH
    if nodes % WIDTH:
        yield nodes // WIDTH, nodes % WIDTH


def levels(size: int) -> int:
    """How many levels of tiles a tree has."""
    count = 0
    while size >> (HEIGHT * count):
        count += 1
    return count


def encode_bundle(entries: Sequence[bytes]) -> bytes:
    """Raises ValueError for an entry of more than 65535 bytes."""
    for entry in entries:
        if len(entry) > MAX_ENTRY:
            raise ValueError(f"an entry of {len(entry)} bytes; {MAX_ENTRY} are the most")
    return b"".join(len(e).to_bytes(2, "big") + e for e in entries)


def decode_bundle(data: bytes) -> list[bytes]:
    """Raises TileError for what is cut."""
    out: list[bytes] = []
    at = 0
    while at < len(data):
        end = at + 2 + int.from_bytes(data[at : at + 2], "big")
        if at + 2 > len(data) or end > len(data):
            raise TileError(f"entry {len(out)} of the bundle is cut")
        out.append(data[at + 2 : end])
        at = end
    return out


class Tiles:
    """The tree of `size` leaves in a log's folder. Each file is read once; lengths are checked, hashes are the caller's to check."""

    def __init__(self, folder: Path, size: int) -> None:
        if size > MAX_SIZE:
            raise TileError(f"a tree of {size} leaves is larger than any log")
        self.folder, self.size = folder, size
        self._tiles: dict[tuple[int, int], list[bytes]] = {}

    def _width(self, level: int, index: int) -> int:
        return min((self.size >> (HEIGHT * level)) - index * WIDTH, WIDTH)

    def _read(self, level: int | str, index: int, width: int, limit: int) -> tuple[str, bytes]:
        """A partial tile may have been removed once the full one was there, of which it is the beginning."""
        name = tile_path(level, index, width)
        for candidate in dict.fromkeys((name, tile_path(level, index))):
            try:
                return candidate, read_bytes(self.folder / candidate, limit=limit)
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as exc:
                raise TileError(f"{candidate}: cannot be read: {exc}") from exc
        raise TileError(f"{name}: is missing")

    def tile(self, level: int, index: int) -> list[bytes]:
        """The hashes of one tile, as many as this tree has there. Raises TileError."""
        if (level, index) not in self._tiles:
            width = self._width(level, index)
            if width <= 0:
                raise TileError(f"{tile_path(level, index)}: lies beyond a tree of {self.size}")
            name, data = self._read(level, index, width, WIDTH * HASH_BYTES)
            full = name == tile_path(level, index)
            if len(data) != (WIDTH if full else width) * HASH_BYTES:
                raise TileError(f"{name}: has {len(data)} bytes")
            cut = data[: width * HASH_BYTES]
            self._tiles[level, index] = [cut[i : i + HASH_BYTES] for i in range(0, len(cut), HASH_BYTES)]
        return self._tiles[level, index]

    def node(self, level: int, index: int) -> bytes:
        """`hpc.evidence.merkle.Node` of this tree. Raises TileError."""
        tile, inner = divmod(level, HEIGHT)
        first = index << inner
        hashes = self.tile(tile, first // WIDTH)[first % WIDTH : first % WIDTH + (1 << inner)]
        if len(hashes) != 1 << inner:
            raise TileError(f"{tile_path(tile, first // WIDTH)}: has too few hashes")
        return full_root(hashes)

    def bundle(self, index: int) -> list[bytes]:
        """The entries of one bundle, as many as this tree has there. Raises TileError."""
        width = self._width(0, index)
        name, data = self._read(ENTRIES, index, width, WIDTH * (MAX_ENTRY + 2))
        try:
            found = decode_bundle(data)
        except TileError as exc:
            raise TileError(f"{name}: {exc}") from exc
        if len(found) != (WIDTH if name == tile_path(ENTRIES, index) else width):
            raise TileError(f"{name}: has {len(found)} entries")
        return found[:width]

    def entries(self, start: int = 0) -> Iterator[tuple[int, bytes]]:
        """(index, entry) from `start` on. Raises TileError."""
        for number in range(start // WIDTH, -(-self.size // WIDTH)):
            for offset, entry in enumerate(self.bundle(number)):
                if number * WIDTH + offset >= start:
                    yield number * WIDTH + offset, entry

    def check(self) -> list[str]:
        """Every tile against the one below it, level 0 against the entries: what disagrees, from the first leaf on."""
        out: list[str] = []
        for index, width in widths(self.size, 0):
            try:
                wanted = [leaf_hash(e) for e in self.bundle(index)]
                found = self.tile(0, index)
            except TileError as exc:
                out.append(str(exc))
                continue
            if wanted != found:
                place = next(i for i, (a, b) in enumerate(zip(wanted, found, strict=True)) if a != b)
                names = f"{tile_path(ENTRIES, index, width)} and {tile_path(0, index, width)}"
                out.append(f"entry {index * WIDTH + place}: {names} disagree")
        for level in range(1, levels(self.size)):
            out += self._check_level(level)
        return out

    def _check_level(self, level: int) -> list[str]:
        out = []
        for index, width in widths(self.size, level):
            name = tile_path(level, index, width)
            try:
                for place, found in enumerate(self.tile(level, index)):
                    below = index * WIDTH + place
                    if found != full_root(self.tile(level - 1, below)):
                        out.append(f"{name}: hash {place} is not that of {tile_path(level - 1, below)}")
            except TileError as exc:
                out.append(str(exc))
        return list(dict.fromkeys(out))


def grown(tiles: Tiles, new: Sequence[bytes]) -> list[tuple[str, bytes]]:
    """The files that a tree gains with `new` entries, in the order in which to write them. Raises TileError where the old tree is damaged.

    A full tile of the old tree is never among them, nor a partial one.
    """
    size = tiles.size + len(new)
    first = tiles.size // WIDTH
    kept = tiles.bundle(first) if tiles.size % WIDTH else []
    entries = [*kept, *new]
    out = [
        (tile_path(ENTRIES, first + n, len(part)), encode_bundle(part))
        for n, part in enumerate(entries[i : i + WIDTH] for i in range(0, len(entries), WIDTH))
    ]
    hashes = [leaf_hash(e) for e in new]
    for level in range(levels(size)):
        nodes = tiles.size >> (HEIGHT * level)
        first = nodes // WIDTH
        row = [*(tiles.tile(level, first) if nodes % WIDTH else []), *hashes]
        parts = [row[i : i + WIDTH] for i in range(0, len(row), WIDTH)]
        if hashes:
            out += [(tile_path(level, first + n, len(part)), b"".join(part)) for n, part in enumerate(parts)]
        hashes = [full_root(p) for p in parts if len(p) == WIDTH]
    return out
