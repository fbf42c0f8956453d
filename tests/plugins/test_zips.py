"""A zip whose directory and members tell two stories, or that hides, doubles or blows up something, is refused (T7, T11, T12)."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc.plugins import zips
from hpc.plugins.zips import NotZipError, TooMuchError, Zip
from tests.plugins.making import central, end_record, local, zipped

GOOD = [("a.py", b"x = 1\n" * 9), ("b/c.txt", b""), ("b/d.txt", bytes(range(256)))]


def one(
    body: bytes, directory: bytes, *, count: int = 1, before: bytes = b"", between: bytes = b"", after: bytes = b""
) -> bytes:
    at = len(before) + len(body) + len(between)
    return before + body + between + directory + end_record(count, len(directory), at) + after


def content(data: bytes) -> dict[str, bytes]:
    archive = Zip(data)
    return {name: archive.read(name) for name in archive.members}


def test_a_sound_archive_is_read_whole() -> None:
    for deflate in (True, False):
        archive = Zip(zipped(GOOD, deflate=deflate))
        assert [(name, archive.read(name)) for name in archive.members] == GOOD


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_what_pythons_zipfile_writes_is_taken(compression: int) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as target:
        target.writestr(zipfile.ZipInfo("dir/"), b"")
        for name, data in GOOD:
            target.writestr(name, data)
        target.writestr("é.txt", b"utf-8")
    archive = Zip(out.getvalue())
    assert {name: archive.read(name) for name in archive.members} == dict(GOOD) | {"é.txt": b"utf-8"}


def test_what_is_written_to_a_pipe_is_taken() -> None:
    """With data descriptors behind the members, since the sizes were not known before."""

    class Pipe(io.RawIOBase):
        def __init__(self) -> None:
            self.data = b""

        def writable(self) -> bool:
            return True

        def write(self, data: bytes) -> int:  # type: ignore[override]
            self.data += bytes(data)
            return len(data)

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as target:  # type: ignore[arg-type]
        for name, data in GOOD:
            target.writestr(name, data)
    archive = Zip(pipe.data)
    assert {name: archive.read(name) for name in archive.members} == dict(GOOD)


NAME, DATA = b"a.py", b"x = 1\n"
PACKED = zlib.compressobj(9, zlib.DEFLATED, -15)
DEFLATED = PACKED.compress(DATA) + PACKED.flush()
WRONG = DEFLATED + b"hid"


def both(**kwargs: object) -> bytes:
    """One member whose two headers agree, whatever they say."""
    return one(local(NAME, DATA, **kwargs), central(NAME, DATA, 0, **kwargs))  # type: ignore[arg-type]


L, C = local(NAME, DATA), central(NAME, DATA, 0)
REFUSED = {
    # T11: the directory and the member differ
    "another name": one(local(b"b.py", DATA), C),
    "another size": one(local(NAME, DATA, size=7), C),
    "another checksum": one(local(NAME, DATA, crc=1), C),
    "another method": one(local(NAME, DATA, method=8), C),
    "other flags": one(local(NAME, DATA, flags=2), C),
    "a descriptor that differs": one(local(NAME, DATA, flags=8, crc=0, size=0).replace(struct.pack("<I", len(DATA)), bytes(4), 1)
                                     + struct.pack("<III", 1, len(DATA), len(DATA)), central(NAME, DATA, 0, flags=8)),
    "a wrong checksum on both sides": one(local(NAME, DATA, crc=1), central(NAME, DATA, 0, crc=1)),
    "a size on both sides that is too small": both(method=8, packed=DEFLATED, size=2),
    "a size on both sides that is too large": both(method=8, packed=DEFLATED, size=9),
    "bytes behind the deflated data": both(method=8, packed=WRONG),
    "data that are no deflate": one(local(NAME, DATA, method=8, packed=b"\xff\xff"), central(NAME, DATA, 0, method=8, packed=b"\xff\xff")),
    # the file as a whole
    "bytes before the first member": one(L, central(NAME, DATA, 3), before=b"MZ\0"),
    "bytes before the first member, offsets moved": b"MZ\0" + one(L, C),
    "bytes between members and directory": one(L, C, between=b"hidden"),
    "bytes behind the end": one(L, C, after=b"\n"),
    "a comment": L + C + end_record(1, len(C), len(L), comment=b"hello"),
    "an end record in a comment": L + C + end_record(1, len(C), len(L), comment=end_record(0, 0, 0)),
    "a member that the directory leaves out": one(L + local(b"evil.py", DATA), C),
    "more members than counted": one(L, C, count=0),
    "fewer members than counted": one(L, C, count=2),
    "counts that differ": L + C + b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 0, 1, len(C), len(L), 0),
    "an offset that points elsewhere": one(L, central(NAME, DATA, 7)),
    "bytes in the directory that no entry owns": one(L, C + b"hidden"),
    "a member without its signature": one(b"PK\3\5" + L[4:], C),
    "an end without its signature": one(L, C)[:-22] + b"PK\5\7" + one(L, C)[-18:],
    "another disk": L + C + b"PK\5\6" + struct.pack("<HHHHIIH", 1, 1, 1, 1, len(C), len(L), 0),
    "overlapping members": one(L, C + central(NAME, DATA, 0), count=2),
    "an empty file": b"",
    "no zip": b"nope" * 20,
    "the end alone, moved": end_record(1, 0, 0),
    # members
    "encrypted": one(local(NAME, DATA, flags=1), central(NAME, DATA, 0, flags=1)),
    "strongly encrypted": one(local(NAME, DATA, flags=65), central(NAME, DATA, 0, flags=65)),
    "masked headers": one(local(NAME, DATA, flags=1 << 13), central(NAME, DATA, 0, flags=1 << 13)),
    "bzip2": one(local(NAME, DATA, method=12), central(NAME, DATA, 0, method=12)),
    "stored with two sizes": one(local(NAME, DATA, size=9), central(NAME, DATA, 0, size=9)),
    "a link": one(L, central(NAME, DATA, 0, mode=0o120777)),
    "a pipe": one(L, central(NAME, DATA, 0, mode=0o010644)),
    "a folder without a slash": one(L, central(NAME, DATA, 0, mode=0o040755)),
    "a folder with data": one(local(b"d/", DATA), central(b"d/", DATA, 0)),
    "zip64": one(local(NAME, DATA, extra=b"\1\0\0\0"), C),
    "a second name": one(L, central(NAME, DATA, 0, extra=b"\x75\x70\2\0xy")),
    "extra fields cut short": one(L, central(NAME, DATA, 0, extra=b"\7\0\xff\0x")),
    "a comment of a member": one(L, central(NAME, DATA, 0, comment=b"hi")),
    # T1, T9: names
    **{f"the name {name!r}": one(local(name, DATA, flags=flags), central(name, DATA, 0, flags=flags)) for name, flags in (
        (b"../evil.py", 0), (b"/abs.py", 0), (b"a\\b.py", 0), (b"", 0), (b"a//b", 0), (b"./a", 0), (b"c:a", 0), (b"a\x1b.py", 0), (b"caf\xe9.py", 0),
        ("é.py".encode(), 0), (b"\xff.py", 1 << 11), ("a\u202eb".encode(), 1 << 11), (b"n" * 241, 0), (b"aux", 0))},
    # T8: two for one
    "a name twice": zipped([("a.py", b"1"), ("a.py", b"2")]),
    "twins": zipped([("a.py", b"1"), ("A.py", b"2")]),
    "a file and a folder": zipped([("a", b"1"), ("a/b", b"2")]),
    "a file and an empty folder": zipped([("a", b"1"), ("a/", b"")], deflate=False),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_other_archives_are_refused(what: str) -> None:
    with pytest.raises(NotZipError):
        content(REFUSED[what])


def test_bombs_are_refused_by_what_they_promise() -> None:
    with pytest.raises(TooMuchError):
        Zip(zipped([("zeros", bytes(8 << 20))]))
    many = [(f"f{n}", b"") for n in range(10_001)]
    with pytest.raises(TooMuchError):
        Zip(zipped(many, deflate=False))


def test_the_sum_of_many_members_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zips, "MAX_UNPACKED", 9 * 6 + 256)
    assert len(content(SOUND)) == 3
    monkeypatch.setattr(zips, "MAX_UNPACKED", 9 * 6 + 255)
    with pytest.raises(TooMuchError):
        Zip(SOUND)


def test_a_bomb_that_promises_little_is_not_unpacked() -> None:
    engine = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = engine.compress(bytes(50 << 20)) + engine.flush()
    bomb = one(
        local(b"z", b"", method=8, packed=packed, size=10), central(b"z", b"", 0, method=8, packed=packed, size=10)
    )
    with pytest.raises(TooMuchError):
        Zip(bomb).read("z")


SOUND = zipped(GOOD)


@settings(max_examples=400, deadline=None)
@given(st.integers(0, len(SOUND) - 1), st.integers(1, 255))
def test_a_changed_byte_never_changes_what_is_read(at: int, change: int) -> None:
    data = bytearray(SOUND)
    data[at] ^= change
    try:
        found = content(bytes(data))
    except NotZipError:
        return
    # Only what nobody reads may differ: versions, attributes that stay a file's, disk fields.
    assert found == dict(GOOD)


@given(st.binary(max_size=300))
def test_any_bytes_end_in_an_answer(data: bytes) -> None:
    with pytest.raises(NotZipError):
        Zip(data + end_record(1, 46, len(data)))
