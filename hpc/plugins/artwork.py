"""The package's icon as a PNG: its whole structure, every checksum, and the pixels' exact size. Decodes no pixel."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tuneplane.record.digest import digest_bytes

from hpc.errors import Refusal
from hpc.plugins.tree import Tree

MAX_BYTES: Final = 64 << 10
MAX_SIDE: Final = 512
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
_ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""x, y of the first pixel and the steps of each pass of an interlaced image."""


class NotPngError(ValueError):
    """The bytes are no sound PNG of the size that is taken; the message says what is wrong."""


@dataclass
class _Image:
    width: int = 0
    height: int = 0
    depth: int = 0
    colour: int = 0
    interlaced: bool = False
    palette: bool = False
    data: list[bytes] = field(default_factory=list)
    closed: bool = False
    """True once another chunk followed the image data."""


def check_icon(tree: Tree, path: str) -> tuple[str, list[Refusal]]:
    """(digest of the icon, faults): the PNG at `path` of the package. A fault's field is `icon`."""
    if path not in tree.files:
        message = "is a link" if path in tree.links else "is not in the package"
        return "", [Refusal("E-PLUGIN-030", message, field="icon", found=path, allowed="a regular file of the package")]
    if tree.files[path] > MAX_BYTES:
        return "", [_no(path, f"has {tree.files[path]} bytes")]
    try:
        data = tree.read(path, MAX_BYTES)
        check_png(data)
    except NotPngError as exc:
        return "", [_no(path, str(exc))]
    except Refusal as exc:
        return "", [exc]
    return digest_bytes(data), []


def _no(path: str, message: str) -> Refusal:
    allowed = f"a PNG of at most {MAX_SIDE} x {MAX_SIDE} pixels and {MAX_BYTES} bytes"
    return Refusal("E-PLUGIN-031", message, field="icon", found=path, allowed=allowed)


def check_png(data: bytes) -> tuple[int, int]:
    """(width, height) of a sound PNG. Raises NotPngError."""
    if not data.startswith(_SIGNATURE):
        raise NotPngError("does not start as a PNG")
    image, first = _Image(), True
    for kind, body in _chunks(data):
        if first != (kind == b"IHDR"):
            raise NotPngError("IHDR is not the first chunk" if first else "has a second IHDR")
        first = False
        if kind == b"IDAT":
            if image.closed:
                raise NotPngError("its image data are not in one piece")
            image.data.append(body)
            continue
        image.closed = bool(image.data)
        _chunk(image, kind, body)
    _check_pixels(image)
    return image.width, image.height


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(type, body) of each chunk up to IEND, which must be the last thing of the file."""
    at = len(_SIGNATURE)
    while True:
        if at + 12 > len(data):
            raise NotPngError("ends before IEND")
        length, kind = struct.unpack_from(">I4s", data, at)
        end = at + 12 + length
        if end > len(data):
            raise NotPngError(f"the chunk at byte {at} is cut short")
        if not (kind.isalpha() and kind.isascii()):
            raise NotPngError(f"the chunk at byte {at} has no type")
        body = data[at + 8 : end - 4]
        if zlib.crc32(body, zlib.crc32(kind)) != struct.unpack_from(">I", data, end - 4)[0]:
            raise NotPngError(f"the checksum of {kind.decode()} at byte {at} is wrong")
        yield kind, body
        at = end
        if kind == b"IEND":
            break
    if at != len(data):
        raise NotPngError(f"{len(data) - at} bytes follow IEND")


def _chunk(image: _Image, kind: bytes, body: bytes) -> None:
    if kind == b"IHDR":
        _header(image, body)
    elif kind == b"PLTE":
        if image.palette or image.data or image.colour in (0, 4) or len(body) % 3 or not 3 <= len(body) <= 768:
            raise NotPngError("its palette is wrong or misplaced")
        image.palette = True
    elif kind == b"IEND":
        if body:
            raise NotPngError("IEND is not empty")
    elif not kind[0] & 0x20:
        raise NotPngError(f"has a critical chunk {kind.decode()} that no viewer must know")


def _header(image: _Image, body: bytes) -> None:
    if len(body) != 13:
        raise NotPngError("IHDR has a wrong length")
    image.width, image.height, image.depth, image.colour, method, filters, interlace = struct.unpack(">IIBBBBB", body)
    if not (1 <= image.width <= MAX_SIDE and 1 <= image.height <= MAX_SIDE):
        raise NotPngError(f"is {image.width} x {image.height} pixels")
    if image.depth not in _DEPTHS.get(image.colour, ()) or method or filters or interlace > 1:
        raise NotPngError("IHDR describes no kind of PNG")
    image.interlaced = interlace == 1


def _check_pixels(image: _Image) -> None:
    if not image.data:
        raise NotPngError("has no image data")
    if image.colour == 3 and not image.palette:
        raise NotPngError("has no palette")
    rows = list(_rows(image))
    wanted = sum(rows)
    engine = zlib.decompressobj()
    try:
        pixels = engine.decompress(b"".join(image.data), wanted + 1)
    except zlib.error as exc:
        raise NotPngError(f"its image data are damaged: {exc}") from exc
    if len(pixels) != wanted or not engine.eof or engine.unused_data:
        raise NotPngError("its image data have another size than its header says")
    at = 0
    for length in rows:
        if pixels[at] > 4:
            raise NotPngError("a row has an unknown filter")
        at += length


def _rows(image: _Image) -> Iterator[int]:
    """Bytes of each row with its filter byte."""
    bits = _CHANNELS[image.colour] * image.depth
    for x, y, step_x, step_y in _ADAM7 if image.interlaced else ((0, 0, 1, 1),):
        width, height = -(-(image.width - x) // step_x), -(-(image.height - y) // step_y)
        if width > 0:
            for _ in range(height):
                yield 1 + (width * bits + 7) // 8
