"""The icon: a whole PNG, no larger than said, with nothing hidden in it."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc.plugins.artwork import MAX_BYTES, NotPngError, check_png
from hpc.plugins.validate import validate
from tests.plugins.making import IEND, SIGNATURE, algorithm, chunk, ihdr, png

PIXELS = chunk(b"IDAT", zlib.compress(bytes(20), 9))
GREY = ihdr(4, 4)


def test_sound_images_are_taken_and_measured() -> None:
    assert check_png(png(512, 512)) == (512, 512)
    assert check_png(png(1, 1)) == (1, 1)
    assert check_png(png(extra=chunk(b"tEXt", b"Comment\0x") + chunk(b"gAMA", b"\0\0\xb1\x8f"))) == (4, 4)
    halves = zlib.compress(bytes(20), 9)
    assert check_png(SIGNATURE + GREY + chunk(b"IDAT", halves[:4]) + chunk(b"IDAT", halves[4:]) + IEND) == (4, 4)
    palette = SIGNATURE + ihdr(4, 4, 2, 3) + chunk(b"PLTE", bytes(12)) + chunk(b"IDAT", zlib.compress(bytes(8))) + IEND
    assert check_png(palette) == (4, 4)
    rgba = SIGNATURE + ihdr(3, 2, 8, 6) + chunk(b"IDAT", zlib.compress(bytes(2 * 13))) + IEND
    assert check_png(rgba) == (3, 2)


@pytest.mark.parametrize(
    ("width", "height", "size"), [(8, 8, 4 + 2 + 2 * 2 + 3 + 2 * 5 + 5 * 4 + 9 * 4 - 2), (1, 1, 2), (3, 2, 0)]
)
def test_interlaced_images_have_the_size_of_their_passes(width: int, height: int, size: int) -> None:
    passes = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
    total = 0
    for x, y, dx, dy in passes:
        columns, rows = len(range(x, width, dx)), len(range(y, height, dy))
        total += rows * (columns + 1) if columns else 0
    data = SIGNATURE + ihdr(width, height, tail=b"\0\0\1") + chunk(b"IDAT", zlib.compress(bytes(total))) + IEND
    assert check_png(data) == (width, height)
    with pytest.raises(NotPngError):
        check_png(
            SIGNATURE + ihdr(width, height, tail=b"\0\0\1") + chunk(b"IDAT", zlib.compress(bytes(total + 1))) + IEND
        )
    assert size == 0 or total > 0


BROKEN = {
    "no signature": b"GIF89a",
    "empty": b"",
    "signature alone": SIGNATURE,
    "cut short": png()[:-5],
    "513 wide": png(513, 1),
    "513 high": png(1, 513),
    "no width": SIGNATURE + ihdr(0, 4) + PIXELS + IEND,
    "huge": SIGNATURE + ihdr(1 << 31, 4) + PIXELS + IEND,
    "bytes behind IEND": png() + b"x",
    "a second image behind IEND": png() + png(),
    "IEND with data": SIGNATURE + GREY + PIXELS + chunk(b"IEND", b"x"),
    "no IHDR": SIGNATURE + PIXELS + IEND,
    "two IHDR": SIGNATURE + GREY + GREY + PIXELS + IEND,
    "short IHDR": SIGNATURE + chunk(b"IHDR", b"\0\0\0\4\0\0\0\4\x08\0\0\0") + PIXELS + IEND,
    "no pixels": SIGNATURE + GREY + IEND,
    "wrong checksum": SIGNATURE + GREY + chunk(b"IDAT", zlib.compress(bytes(20)), crc=1) + IEND,
    "length past the end": SIGNATURE + struct.pack(">I", 1 << 30) + b"IHDR" + bytes(30),
    "unknown critical chunk": png(extra=chunk(b"EVIL", b"x")),
    "type that is no word": png(extra=chunk(b"t3xt", b"x")),
    "split pixels": SIGNATURE + GREY + chunk(b"IDAT", zlib.compress(bytes(20))[:4]) + chunk(b"tEXt", b"a\0b")
    + chunk(b"IDAT", zlib.compress(bytes(20))[4:]) + IEND,
    "too few pixels": png(pixels=bytes(19)),
    "too many pixels": png(pixels=bytes(21)),
    "a bomb": png(pixels=bytes(50 << 20)),
    "pixels that are no zlib": SIGNATURE + GREY + chunk(b"IDAT", b"not zlib") + IEND,
    "bytes behind the pixels": SIGNATURE + GREY + chunk(b"IDAT", zlib.compress(bytes(20)) + b"hidden") + IEND,
    "unknown filter": png(pixels=b"\x05" + bytes(19)),
    "depth of another colour": SIGNATURE + ihdr(4, 4, 4, 2) + PIXELS + IEND,
    "unknown colour": SIGNATURE + ihdr(4, 4, 8, 5) + PIXELS + IEND,
    "unknown interlacing": SIGNATURE + ihdr(4, 4, tail=b"\0\0\2") + PIXELS + IEND,
    "palette missing": SIGNATURE + ihdr(4, 4, 8, 3) + PIXELS + IEND,
    "palette of a grey image": png(extra=chunk(b"PLTE", bytes(3))),
    "palette of half a colour": SIGNATURE + ihdr(4, 4, 8, 3) + chunk(b"PLTE", bytes(4)) + PIXELS + IEND,
    "palette behind the pixels": SIGNATURE + ihdr(4, 4, 8, 3) + PIXELS + chunk(b"PLTE", bytes(3)) + IEND,
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_broken_images_are_refused(what: str) -> None:
    with pytest.raises(NotPngError):
        check_png(BROKEN[what])


@given(st.integers(0, len(png(9, 9)) - 1), st.integers(1, 255))
def test_no_changed_byte_passes(at: int, change: int) -> None:
    data = bytearray(png(9, 9))
    data[at] ^= change
    with pytest.raises(NotPngError):
        check_png(bytes(data))


@given(st.binary(max_size=200))
def test_any_bytes_end_in_an_answer(data: bytes) -> None:
    with pytest.raises(NotPngError):
        check_png(SIGNATURE + data)


def test_the_icon_of_a_package(tmp_path: Path) -> None:
    manifest = "icon: icons/logo.png\n"
    missing = validate(algorithm(tmp_path / "a", manifest=manifest))
    assert [(e.code, e.field) for e in missing.errors] == [("E-PLUGIN-030", "icon")]
    folder = algorithm(tmp_path / "b", manifest=manifest)
    (folder / "icons").mkdir()
    (folder / "icons" / "logo.png").write_bytes(png())
    assert validate(folder).publishable is True
    large = chunk(b"tEXt", b"a\0" + bytes(MAX_BYTES))
    (folder / "icons" / "logo.png").write_bytes(png(extra=large))
    assert [(e.code, e.field) for e in validate(folder).errors] == [("E-PLUGIN-031", "icon")]


def test_an_icon_in_a_linked_folder_is_not_in_the_package(tmp_path: Path) -> None:
    folder = algorithm(tmp_path / "pkg", manifest="icon: icons/logo.png\n")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "logo.png").write_bytes(png())
    (folder / "icons").symlink_to("../elsewhere")
    assert [(e.code, e.field) for e in validate(folder).errors] == [
        ("E-PLUGIN-024", "package"),
        ("E-PLUGIN-030", "icon"),
    ]
