"""Archives that were made to harm: the list T1 … T16, each a few hundred bytes made the same way every time, with the one code that refuses it."""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from collections.abc import Callable

BLOCK = 512
POSIX, GNU = b"ustar\x0000", b"ustar  \x00"
END = bytes(2 * BLOCK)


def header(
    name: bytes, size: int = 0, kind: bytes = b"0", *, mode: bytes = b"0000644\0", magic: bytes = POSIX, link: bytes = b"",
    raw_size: bytes = b"", prefix: bytes = b"", checksum: int | None = None,
) -> bytes:  # fmt: skip
    """One header block, byte for byte as asked; the checksum is right unless given."""
    block = struct.pack(
        "100s8s8s8s12s12s8s1s100s8s32s32s8s8s155s12x",
        name, mode, b"0000000\0", b"0000000\0", raw_size or b"%011o\0" % size, b"00000000000\0", b" " * 8, kind, link, magic,
        b"root", b"root", b"0000000\0", b"0000000\0", prefix,
    )  # fmt: skip
    total = sum(block) if checksum is None else checksum
    return block[:148] + b"%06o\0 " % total + block[156:]


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % BLOCK)


def file(name: bytes, data: bytes = b"x\n", **kwargs: object) -> bytes:
    return header(name, len(data), **kwargs) + padded(data)  # type: ignore[arg-type]


def folder(name: bytes) -> bytes:
    return header(name, 0, b"5", mode=b"0000755\0")


def pax(*records: tuple[bytes, bytes], kind: bytes = b"x") -> bytes:
    body = b"".join(record(key, value) for key, value in records)
    return header(b"PaxHeaders/x", len(body), kind) + padded(body)


def record(key: bytes, value: bytes) -> bytes:
    rest = b" " + key + b"=" + value + b"\n"
    length = len(rest)
    while len(str(length)) + len(rest) != length:
        length = len(str(length)) + len(rest)
    return str(length).encode() + rest


def longname(name: bytes) -> bytes:
    return header(b"././@LongLink", len(name) + 1, b"L", magic=GNU) + padded(name + b"\0")


def gz(data: bytes, *, level: int = 9) -> bytes:
    out = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=out, mtime=0, compresslevel=level) as stream:
        stream.write(data)
    return out.getvalue()


def tar(*members: bytes, end: bytes = END) -> bytes:
    return gz(b"".join(members) + end)


GOOD = file(b"plugin.yaml", b"schema: tuneplane/plugin/v1\n")


def _truncated_gzip() -> bytes:
    return tar(GOOD)[:-20]


def _wrong_crc() -> bytes:
    whole = tar(GOOD)
    return whole[:-8] + struct.pack("<I", zlib.crc32(b"other")) + whole[-4:]


def _wrong_length() -> bytes:
    whole = tar(GOOD)
    return whole[:-4] + struct.pack("<I", 7)


def _flipped_bit() -> bytes:
    whole = bytearray(tar(GOOD))
    whole[40] ^= 0x10
    return bytes(whole)


def _deep(levels: int) -> bytes:
    return tar(GOOD, pax((b"path", b"/".join([b"d"] * levels) + b"/f")), file(b"f"))


Attack = tuple[str, Callable[[], bytes]]
CORPUS: dict[str, Attack] = {
    # T1: paths whose normal form is not the given form
    "t01-parent": ("E-ARCHIVE-011", lambda: tar(GOOD, file(b"../evil"))),
    "t01-parent-inside": ("E-ARCHIVE-011", lambda: tar(GOOD, file(b"a/../../evil"))),
    "t01-parent-at-the-end": ("E-ARCHIVE-011", lambda: tar(GOOD, folder(b"a/.."))),
    "t01-absolute": ("E-ARCHIVE-011", lambda: tar(GOOD, file(b"/etc/passwd"))),
    "t01-absolute-folder": ("E-ARCHIVE-011", lambda: tar(GOOD, folder(b"/etc/"))),
    "t01-absolute-by-prefix": ("E-ARCHIVE-011", lambda: tar(GOOD, file(b"passwd", prefix=b"/etc"))),
    "t01-drive": ("E-ARCHIVE-011", lambda: tar(GOOD, file(b"C:evil"))),
    "t01-backslash": ("E-ARCHIVE-011", lambda: tar(GOOD, file(b"..\\evil"))),
    "t01-empty-name": ("E-ARCHIVE-011", lambda: tar(GOOD, file(b""))),
    "t01-empty-part": ("E-ARCHIVE-011", lambda: tar(GOOD, file(b"a//b"))),
    "t01-dot-part": ("E-ARCHIVE-011", lambda: tar(GOOD, file(b"a/./b"))),
    "t01-dot-twice": ("E-ARCHIVE-011", lambda: tar(GOOD, file(b"././b"))),
    "t01-file-named-dot": ("E-ARCHIVE-011", lambda: tar(GOOD, file(b"."))),
    "t01-file-with-a-slash": ("E-ARCHIVE-011", lambda: tar(GOOD, file(b"a/"))),
    "t01-dot-slash-absolute": ("E-ARCHIVE-011", lambda: tar(GOOD, file(b".//etc/passwd"))),
    "t01-parent-by-pax": ("E-ARCHIVE-011", lambda: tar(GOOD, pax((b"path", b"../evil")), file(b"harmless"))),
    # T2, T3, T4: links of every kind
    "t02-symlink": ("E-ARCHIVE-013", lambda: tar(GOOD, header(b"out", 0, b"2", link=b"/tmp"))),
    "t02-symlink-then-write-through": ("E-ARCHIVE-013", lambda: tar(header(b"out", 0, b"2", link=b"/tmp"), file(b"out/evil"), GOOD)),
    "t03-hardlink": ("E-ARCHIVE-013", lambda: tar(GOOD, header(b"pw", 0, b"1", link=b"/etc/passwd"))),
    "t03-hardlink-to-a-symlink": ("E-ARCHIVE-013", lambda: tar(GOOD, header(b"a", 0, b"1", link=b"b"), header(b"b", 0, b"2", link=b"/etc"))),
    "t04-long-link-chain": ("E-ARCHIVE-013", lambda: tar(GOOD, *(header(b"d" * 60 + b"%d" % n, 0, b"2", link=b"d" * 60) for n in range(20)))),
    "t04-gnu-long-link": ("E-ARCHIVE-013", lambda: tar(header(b"././@LongLink", 6, b"K", magic=GNU), padded(b"/etc/\0"), GOOD)),
    "t04-part-too-long": ("E-ARCHIVE-012", lambda: tar(GOOD, pax((b"path", b"n" * 241)), file(b"n"))),
    "t04-path-too-long": ("E-ARCHIVE-012", lambda: tar(GOOD, pax((b"path", b"/".join([b"n" * 100] * 11))), file(b"n"))),
    "t04-linkpath-by-pax": ("E-ARCHIVE-019", lambda: tar(GOOD, pax((b"linkpath", b"/etc/passwd")), file(b"n"))),
    # T5: everything that is neither file nor folder
    "t05-character-device": ("E-ARCHIVE-014", lambda: tar(GOOD, header(b"null", 0, b"3"))),
    "t05-block-device": ("E-ARCHIVE-014", lambda: tar(GOOD, header(b"sda", 0, b"4"))),
    "t05-pipe": ("E-ARCHIVE-014", lambda: tar(GOOD, header(b"pipe", 0, b"6"))),
    "t05-contiguous": ("E-ARCHIVE-014", lambda: tar(GOOD, file(b"c", kind=b"7"))),
    "t05-sparse": ("E-ARCHIVE-014", lambda: tar(header(b"s", 0, b"S", magic=GNU))),
    "t05-sparse-by-pax": ("E-ARCHIVE-019", lambda: tar(GOOD, pax((b"GNU.sparse.major", b"1"), (b"GNU.sparse.name", b"evil")), file(b"s"))),
    "t05-volume-label": ("E-ARCHIVE-014", lambda: tar(header(b"label", 0, b"V", magic=GNU))),
    "t05-multi-volume": ("E-ARCHIVE-014", lambda: tar(header(b"more", 0, b"M", magic=GNU))),
    "t05-unknown-type": ("E-ARCHIVE-014", lambda: tar(GOOD, header(b"q", 0, b"Q"))),
    # T7: bombs
    "t07-ratio": ("E-ARCHIVE-005", lambda: tar(GOOD, file(b"zeros", bytes(8 << 20)))),
    "t07-zeros-behind-the-end": ("E-ARCHIVE-005", lambda: tar(GOOD, end=bytes(8 << 20))),
    "t07-many-empty-files": ("E-ARCHIVE-006", lambda: tar(*(file(b"f%d" % n, b"") for n in range(10_001)))),
    "t07-deep": ("E-ARCHIVE-006", lambda: _deep(33)),
    # T8: two entries for one name
    "t08-file-twice": ("E-ARCHIVE-015", lambda: tar(GOOD, file(b"a"), file(b"a", b"other\n"))),
    "t08-twice-with-and-without-dot": ("E-ARCHIVE-015", lambda: tar(GOOD, file(b"a"), file(b"./a", b"other\n"))),
    "t08-file-then-folder": ("E-ARCHIVE-015", lambda: tar(GOOD, file(b"a"), folder(b"a/"))),
    "t08-folder-then-file": ("E-ARCHIVE-015", lambda: tar(GOOD, folder(b"a/"), file(b"a"))),
    "t08-file-then-below": ("E-ARCHIVE-016", lambda: tar(GOOD, file(b"a"), file(b"a/b"))),
    "t08-below-then-file": ("E-ARCHIVE-016", lambda: tar(GOOD, file(b"a/b"), file(b"a"))),
    # T9: names that show or sort as others
    "t09-case-twins": ("E-ARCHIVE-017", lambda: tar(GOOD, file(b"Plugin.yaml"))),
    "t09-case-twins-of-folders": ("E-ARCHIVE-017", lambda: tar(GOOD, file(b"src/a.py"), file(b"SRC/b.py"))),
    "t09-accent-twins": ("E-ARCHIVE-017", lambda: tar(GOOD, file("caf\u00e9".encode()), file("cafe\u0301".encode()))),
    "t09-bidi": ("E-ARCHIVE-022", lambda: tar(GOOD, file("a\u202etxt.py".encode()))),
    "t09-escape": ("E-ARCHIVE-022", lambda: tar(GOOD, file(b"a\x1b[2Jb"))),
    "t09-newline": ("E-ARCHIVE-022", lambda: tar(GOOD, file(b"a\nb"))),
    "t09-nul-by-pax": ("E-ARCHIVE-019", lambda: tar(GOOD, pax((b"path", b"a.py\0.txt")), file(b"a"))),
    "t09-hidden-behind-nul": ("E-ARCHIVE-007", lambda: tar(GOOD, file(b"a.txt\0/../evil"))),
    "t09-trailing-dot": ("E-ARCHIVE-022", lambda: tar(GOOD, file(b"a."))),
    "t09-trailing-space": ("E-ARCHIVE-022", lambda: tar(GOOD, file(b"a /b"))),
    "t09-device-name": ("E-ARCHIVE-022", lambda: tar(GOOD, file(b"aux.py"))),
    "t09-not-utf-8": ("E-ARCHIVE-022", lambda: tar(GOOD, file(b"caf\xe9"))),
    # T10: what two parsers would read differently
    "t10-pax-size": ("E-ARCHIVE-019", lambda: tar(GOOD, pax((b"size", b"0")), file(b"a"))),
    "t10-pax-path-twice": ("E-ARCHIVE-019", lambda: tar(GOOD, pax((b"path", b"a"), (b"path", b"b")), file(b"c"))),
    "t10-pax-record-too-long": ("E-ARCHIVE-019", lambda: tar(GOOD, header(b"p", 12, b"x"), padded(b"99 path=evil"), file(b"c"))),
    "t10-pax-record-no-length": ("E-ARCHIVE-019", lambda: tar(GOOD, header(b"p", 10, b"x"), padded(b"path=evil\n"), file(b"c"))),
    "t10-pax-length-zero": ("E-ARCHIVE-019", lambda: tar(GOOD, header(b"p", 10, b"x"), padded(b"0 path=ab\n"), file(b"c"))),
    "t10-pax-unknown-key": ("E-ARCHIVE-019", lambda: tar(GOOD, pax((b"realtime.any", b"1")), file(b"c"))),
    "t10-pax-charset": ("E-ARCHIVE-019", lambda: tar(GOOD, pax((b"hdrcharset", b"BINARY"), (b"path", b"a")), file(b"c"))),
    "t10-pax-twice": ("E-ARCHIVE-020", lambda: tar(GOOD, pax((b"path", b"a")), pax((b"path", b"b")), file(b"c"))),
    "t10-pax-of-no-entry": ("E-ARCHIVE-020", lambda: tar(GOOD, pax((b"path", b"a")))),
    "t10-pax-huge": ("E-ARCHIVE-021", lambda: tar(GOOD, header(b"p", 1 << 17, b"x"), bytes(1 << 17))),
    "t10-pax-and-gnu": ("E-ARCHIVE-008", lambda: tar(GOOD, longname(b"n" * 120), file(b"n" * 100))),
    "t10-pax-magic-of-gnu": ("E-ARCHIVE-008", lambda: tar(header(b"p", 0, b"x", magic=GNU), file(b"n", magic=GNU))),
    "t10-mixed-formats": ("E-ARCHIVE-008", lambda: tar(GOOD, file(b"n", magic=GNU))),
    "t10-gnu-name-differs": ("E-ARCHIVE-020", lambda: tar(longname(b"n" * 120), file(b"harmless", magic=GNU))),
    "t10-gnu-name-of-a-short-entry": ("E-ARCHIVE-020", lambda: tar(longname(b"n" * 120), file(b"n" * 50, magic=GNU))),
    "t10-gnu-name-of-another-entry": ("E-ARCHIVE-020", lambda: tar(longname(b"n" * 120), file(b"m" * 100, magic=GNU))),
    "t10-gnu-name-without-end": ("E-ARCHIVE-020", lambda: tar(header(b"././@LongLink", 120, b"L", magic=GNU), padded(b"n" * 120),
                                                              file(b"n" * 100, magic=GNU))),
    "t10-gnu-name-empty": ("E-ARCHIVE-020", lambda: tar(longname(b""), file(b"n" * 100, magic=GNU))),
    "t10-gnu-name-with-nul": ("E-ARCHIVE-020", lambda: tar(longname(b"n" * 110 + b"\0evil"), file(b"n" * 100, magic=GNU))),
    "t10-gnu-name-twice": ("E-ARCHIVE-020", lambda: tar(longname(b"n" * 120), longname(b"n" * 130), file(b"n" * 100, magic=GNU))),
    "t10-old-format": ("E-ARCHIVE-008", lambda: tar(file(b"n", magic=bytes(8)))),
    "t10-negative-size": ("E-ARCHIVE-021", lambda: tar(GOOD, header(b"n", raw_size=b"\xff" * 12))),
    "t10-negative-octal-size": ("E-ARCHIVE-021", lambda: tar(GOOD, header(b"n", raw_size=b"-0000000001\0"))),
    "t10-binary-size": ("E-ARCHIVE-021", lambda: tar(GOOD, header(b"n", raw_size=b"\x80" + bytes(10) + b"\x02"), padded(b"x\n"))),
    "t10-huge-size": ("E-ARCHIVE-021", lambda: tar(GOOD, header(b"n", raw_size=b"77777777777\0"))),
    "t10-large-size": ("E-ARCHIVE-005", lambda: tar(GOOD, header(b"n", raw_size=b"07777777777\0"))),
    "t10-folder-with-data": ("E-ARCHIVE-007", lambda: tar(GOOD, header(b"d/", 2, b"5"), padded(b"x\n"))),
    "t10-wrong-checksum": ("E-ARCHIVE-007", lambda: tar(GOOD, header(b"n", checksum=1))),
    "t10-size-not-octal": ("E-ARCHIVE-007", lambda: tar(GOOD, header(b"n", raw_size=b"0000000009\0\0"))),
    "t10-mode-not-octal": ("E-ARCHIVE-007", lambda: tar(GOOD, header(b"n", mode=b"rwxr-xr-"))),
    "t10-lone-end-block": ("E-ARCHIVE-010", lambda: tar(GOOD, bytes(BLOCK), file(b"hidden"))),
    "t10-two-end-markers": ("E-ARCHIVE-010", lambda: tar(GOOD, END, file(b"hidden"))),
    "t10-data-behind-the-end": ("E-ARCHIVE-010", lambda: tar(GOOD, end=END + b"hidden")),
    "t10-data-in-the-padding": ("E-ARCHIVE-010", lambda: tar(header(b"plugin.yaml", 1), b"x" + b"hidden" + bytes(505))),
    # T12: cut short, damaged, several members
    "t12-truncated-gzip": ("E-ARCHIVE-003", _truncated_gzip),
    "t12-wrong-crc": ("E-ARCHIVE-003", _wrong_crc),
    "t12-wrong-length": ("E-ARCHIVE-003", _wrong_length),
    "t12-flipped-bit": ("E-ARCHIVE-003", _flipped_bit),
    "t12-not-gzip": ("E-ARCHIVE-003", lambda: b"PK\3\4 this is a zip"),
    "t12-empty-file": ("E-ARCHIVE-003", lambda: b""),
    "t12-plain-tar": ("E-ARCHIVE-003", lambda: GOOD + END),
    "t12-two-members": ("E-ARCHIVE-004", lambda: tar(GOOD) + tar(file(b"second"))),
    "t12-member-split-in-two": ("E-ARCHIVE-009", lambda: gz(GOOD) + gz(END)),
    "t12-bytes-behind-the-member": ("E-ARCHIVE-004", lambda: tar(GOOD) + b"\0\0\0\0"),
    "t12-member-cut-short": ("E-ARCHIVE-009", lambda: gz(GOOD + header(b"n", 4096) + b"x" * 100)),
    "t12-header-cut-short": ("E-ARCHIVE-009", lambda: gz(GOOD + header(b"n")[:300])),
    "t12-no-end-marker": ("E-ARCHIVE-009", lambda: gz(GOOD)),
    "t12-half-an-end-marker": ("E-ARCHIVE-009", lambda: gz(GOOD + bytes(BLOCK))),
    "t12-nothing-in-it": ("E-ARCHIVE-023", lambda: gz(END)),
    "t12-folders-only": ("E-ARCHIVE-023", lambda: tar(folder(b"a/"), folder(b"b/"))),
    # T15: global headers
    "t15-global-comment": ("E-ARCHIVE-018", lambda: tar(pax((b"comment", b"\x1b]0;evil\x07"), kind=b"g"), GOOD)),
    "t15-global-path": ("E-ARCHIVE-018", lambda: tar(pax((b"path", b"/etc/passwd"), kind=b"g"), GOOD)),
}  # fmt: skip
"""name → (code, how it is made). T6 (modes), T11 (zip), T13 (times), T14 (the place) and T16 (the command line) have tests of their own."""
