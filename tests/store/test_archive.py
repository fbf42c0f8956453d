"""An archive from outside: every attack of the list is refused by its own code and leaves nothing; what ordinary programs write is taken."""

from __future__ import annotations

import errno
import io
import os
import shutil
import stat
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc.errors import Refusal
from hpc.store import archive as room
from hpc.store.archive import Limits, judge, read_archive, unpacked
from hpc.store.packing import pack
from tests.store.attacks import BLOCK, CORPUS, END, GNU, GOOD, file, folder, gz, header, longname, padded, pax, tar


def content(root: Path) -> dict[str, tuple[int, bytes]]:
    """path → (mode, bytes) of each file, (mode, b"") of each folder."""
    return {
        str(p.relative_to(root)): (stat.S_IMODE(p.lstat().st_mode), p.read_bytes() if p.is_file() else b"")
        for p in sorted(root.rglob("*"))
    }


def refused(data: bytes, limits: Limits = room.LIMITS) -> str:
    with pytest.raises(Refusal) as caught:
        judge(data, limits)
    return caught.value.code


@pytest.mark.parametrize("name", CORPUS)
def test_every_attack_has_one_named_refusal_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    code, make = CORPUS[name]
    data = make()
    assert data == make()
    where = tmp_path / "inbox.tgz"
    where.write_bytes(data)
    (tmp_path / "scratch").mkdir(mode=0o700)
    with pytest.raises(Refusal) as caught, unpacked(read_archive(where), tmp_path / "scratch"):
        raise AssertionError("an attack was unpacked")
    assert caught.value.code == code
    assert list((tmp_path / "scratch").iterdir()) == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["inbox.tgz", "scratch"]


def test_the_corpus_covers_each_attack_on_a_tar() -> None:
    assert {name[:3] for name in CORPUS} == {
        "t01",
        "t02",
        "t03",
        "t04",
        "t05",
        "t07",
        "t08",
        "t09",
        "t10",
        "t12",
        "t15",
    }


@pytest.mark.parametrize("name", CORPUS)
def test_a_refusal_prints_no_control_character(name: str) -> None:
    with pytest.raises(Refusal) as caught:
        judge(CORPUS[name][1]())
    shown = f"{caught.value} {caught.value.found} {caught.value.allowed} {caught.value.hint}"
    assert shown.isprintable(), repr(shown)


def test_t06_modes_owners_and_attributes_are_not_restored(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        data = tar(
            GOOD,
            file(b"suid", mode=b"0006755\0"),
            file(b"open", mode=b"0000666\0"),
            file(b"none", mode=b"0000000\0"),
            header(b"d/", 0, b"5", mode=b"0007777\0"),
            pax((b"SCHILY.xattr.security.capability", b"\1\0\0\2"), (b"RHT.security.selinux", b"x")),
            file(b"d/f"),
        )
        with unpacked(judge(data), tmp_path) as root:
            assert stat.S_IMODE(root.stat().st_mode) == 0o700
            modes = {path: mode for path, (mode, _) in content(root).items()}
            assert modes == {
                "d": 0o755,
                "d/f": 0o644,
                "none": 0o644,
                "open": 0o644,
                "plugin.yaml": 0o644,
                "suid": 0o755,
            }
            assert {p.stat().st_uid for p in root.rglob("*")} == {os.geteuid()}
            assert [os.listxattr(p) for p in root.rglob("*") if os.listxattr(p)] == []
    finally:
        os.umask(before)


@pytest.mark.parametrize("stamp", [b"nan", b"inf", b"-1e400", b"253402300800", b"-1", b"\x1b[2J"])
def test_t13_times_are_not_read(tmp_path: Path, stamp: bytes) -> None:
    with unpacked(judge(tar(pax((b"mtime", stamp), (b"atime", stamp)), GOOD)), tmp_path) as root:
        assert list(content(root)) == ["plugin.yaml"]


def test_t14_a_folder_that_stands_in_the_way_is_never_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(room.secrets, "token_hex", lambda n: "guessed")
    (tmp_path / "scratch" / ".unpacked.guessed").symlink_to("../elsewhere")
    with pytest.raises(Refusal) as caught, unpacked(judge(tar(GOOD)), tmp_path / "scratch"):
        raise AssertionError
    assert caught.value.found == errno.errorcode[errno.EEXIST]
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_t14_a_link_as_scratch_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(Refusal) as caught, unpacked(judge(tar(GOOD)), tmp_path / "link"):
        raise AssertionError
    assert caught.value.code == "E-STORE-010"


def test_t14_a_swapped_folder_is_not_written_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who can write the scratch folder puts a link where a sub-folder was just made."""
    (tmp_path / "elsewhere").mkdir()
    real = os.mkdir

    def swap(path: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        real(path, mode, dir_fd=dir_fd)
        if path == "sub":
            os.rmdir(path, dir_fd=dir_fd)
            os.symlink(tmp_path / "elsewhere", path, dir_fd=dir_fd)

    monkeypatch.setattr(room.os, "mkdir", swap)
    with pytest.raises(Refusal) as caught, unpacked(judge(tar(GOOD, file(b"sub/evil"))), tmp_path):
        raise AssertionError
    assert caught.value.code == "E-STORE-010"
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_t16_reading_an_archive_loads_nothing_from_the_current_folder(tmp_path: Path) -> None:
    """`python -m tarfile` in a hostile folder runs a planted module; the toolkit's own program does not."""
    bomb = f"open({str(tmp_path / 'ran')!r}, 'w')\n"
    for name in (
        "tarfile",
        "zlib",
        "gzip",
        "struct",
        "shutil",
        "hashlib",
        "ast",
        "csv",
        "sitecustomize",
        "usercustomize",
    ):
        (tmp_path / f"{name}.py").write_text(bomb)
    (tmp_path / "a.tgz").write_bytes(tar(GOOD))
    entry = "from hpc.store.archive import read_archive; print(len(read_archive('a.tgz').files))"
    done = subprocess.run(
        [sys.executable, "-I", "-c", entry], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("1\n", "")
    assert not (tmp_path / "ran").exists()


def test_only_a_regular_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "real.tgz").write_bytes(tar(GOOD))
    (tmp_path / "link.tgz").symlink_to("real.tgz")
    os.mkfifo(tmp_path / "pipe.tgz")
    for name in ("link.tgz", "pipe.tgz", "missing.tgz", "."):
        with pytest.raises(Refusal) as caught:
            read_archive(tmp_path / name)
        assert caught.value.code == "E-ARCHIVE-001", name


def test_each_limit_is_exact() -> None:
    small = Limits(packed=1 << 16, unpacked=2048, ratio=1000, entries=3, depth=2)
    judge(tar(GOOD, file(b"a", b"x" * 1000)), small)
    assert refused(tar(GOOD, file(b"a", b"x" * 2048)), small) == "E-ARCHIVE-005"
    judge(tar(GOOD, file(b"a"), file(b"b")), small)
    assert refused(tar(GOOD, file(b"a"), file(b"b"), file(b"c")), small) == "E-ARCHIVE-006"
    judge(tar(GOOD, file(b"1/2/f")), small)
    assert refused(tar(GOOD, file(b"1/2/3/f")), small) == "E-ARCHIVE-006"
    assert refused(tar(GOOD, end=bytes(16 << 10)), small) == "E-ARCHIVE-005"
    noise = bytes((n * n * 31 + n // 7) % 251 for n in range(90_000))
    assert refused(gz(noise, level=0), small) == "E-ARCHIVE-002"
    assert len(judge(tar(GOOD, pax((b"path", b"n" * 240)), file(b"n"))).files) == 2


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder with what ordinary packages have: sub-folders, an empty file, a program, long and non-ASCII names."""
    root = tmp_path / "pkg"
    (root / "src" / ("d" * 90) / ("e" * 90)).mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "plugin.yaml").write_bytes(GOOD[BLOCK:].rstrip(b"\0"))
    (root / "src" / "__init__.py").write_text("")
    (root / "src" / ("d" * 90) / ("e" * 90) / "deep.txt").write_text("deep\n")
    (root / "src" / ("n" * 150 + ".txt")).write_text("long\n")
    (root / "src" / "日本語 é.txt").write_text("utf-8\n")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    for path in root.rglob("*"):
        if path.name != "run.sh" and path.is_file():
            path.chmod(0o644)
    for path in (root, *(p for p in root.rglob("*") if p.is_dir())):
        path.chmod(0o755)
    return root


@pytest.mark.parametrize("form", ["gnu", "posix", "oldgnu", "pax"])
@pytest.mark.parametrize(
    "more", [[], ["--numeric-owner", "--sort=name"], ["--xattrs"], ["--owner=0", "--group=0", "--mtime=@0"]]
)
def test_what_gnu_tar_writes_is_taken(tmp_path: Path, package: Path, form: str, more: list[str]) -> None:
    if not shutil.which("tar"):
        pytest.skip("no tar here")
    target = tmp_path / "x.tgz"
    subprocess.run(["tar", "czf", target, f"--format={form}", *more, "-C", package, "."], check=True)
    with unpacked(read_archive(target), tmp_path) as root:
        assert content(root) == content(package)


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("name", [".", ""])
def test_what_pythons_tarfile_writes_is_taken(tmp_path: Path, package: Path, form: int, name: str) -> None:
    target = tmp_path / "x.tgz"
    with tarfile.open(target, "w:gz", format=form) as out:
        out.add(package, arcname=name)
    with unpacked(read_archive(target), tmp_path) as root:
        assert content(root) == content(package)


def test_what_bsdtar_writes_is_taken(tmp_path: Path) -> None:
    """Its pax headers: times with fractions, its own keys, the path again for names that are not ASCII; modes with six digits."""
    data = tar(
        folder(b"./"),
        pax(
            (b"mtime", b"1700000000.123456789"),
            (b"LIBARCHIVE.creationtime", b"1700000000.5"),
            (b"SCHILY.dev", b"66"),
            (b"SCHILY.nlink", b"1"),
        ),
        file(b"./plugin.yaml", b"a: 1\n", mode=b"000644 \0"),
        pax(
            (b"hdrcharset", b"ISO-IR 10646 2000 UTF-8"),
            (b"path", "./é.txt".encode()),
            (b"uid", b"4294967294"),
            (b"uname", b"x"),
        ),
        file(b"./e.txt", mode=b"000755 \0"),
        end=END + bytes(8192),
    )
    with unpacked(judge(data), tmp_path) as root:
        assert content(root) == {"plugin.yaml": (0o644, b"a: 1\n"), "é.txt": (0o755, b"x\n")}


def test_a_gnu_long_name_is_taken_where_it_continues_its_entry() -> None:
    found = judge(tar(longname(b"./" + b"n" * 200), file(b"./" + b"n" * 98, magic=GNU)))
    assert [e.path for e in found.files] == ["n" * 200]


def test_times_of_gnu_tar_are_no_part_of_the_name() -> None:
    """What POSIX calls a prefix holds two times in GNU's format."""
    found = judge(tar(file(b"plugin.yaml", magic=GNU, prefix=b"14512345670\x0014512345670\0")))
    assert [e.path for e in found.files] == ["plugin.yaml"]


def test_the_archive_is_the_same_bytes_for_the_same_files(tmp_path: Path, package: Path) -> None:
    files = [str(p.relative_to(package)) for p in package.rglob("*") if p.is_file()]
    one = pack(package, files)
    os.utime(package / "plugin.yaml", (1, 1))
    (package / "plugin.yaml").chmod(0o600)
    assert pack(package, reversed(files)) == one
    with unpacked(judge(one), tmp_path) as root:
        (package / "plugin.yaml").chmod(0o644)
        assert content(root) == {p: v for p, v in content(package).items() if p != "empty"}


def test_what_we_write_other_programs_read(tmp_path: Path, package: Path) -> None:
    files = sorted(str(p.relative_to(package)) for p in package.rglob("*") if p.is_file())
    with tarfile.open(fileobj=io.BytesIO(pack(package, files))) as read:
        assert read.getnames() == files
        assert {m.mtime for m in read} == {0}


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = os.write, []

    def full(fd: int, data: bytes) -> int:
        calls.append(fd)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, "full")
        return real(fd, data)

    monkeypatch.setattr(room.os, "write", full)
    with pytest.raises(Refusal) as caught, unpacked(judge(tar(GOOD, *(file(b"f%d" % n) for n in range(9)))), tmp_path):
        raise AssertionError
    assert caught.value.code == "E-STORE-020"
    assert list(tmp_path.iterdir()) == []


def test_a_fault_of_the_user_of_the_folder_is_not_taken_for_ours(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), unpacked(judge(tar(GOOD)), tmp_path) as root:
        (root / "missing").read_bytes()
    assert list(tmp_path.iterdir()) == []


PARTS = st.sampled_from([
    GOOD, END, file(b"a"), file(b"../x"), folder(b"d/"), pax((b"path", b"q")), pax((b"size", b"1")), longname(b"n" * 120),
    header(b"l", 0, b"2", link=b"/"), bytes(BLOCK), b"\xff" * BLOCK, file(b"n" * 100, magic=GNU), padded(b"loose"),
])  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(PARTS, max_size=8), st.integers(0, 4096), st.integers(0, 255))
def test_any_sequence_of_blocks_is_taken_whole_or_refused_by_a_code(parts: list[bytes], at: int, value: int) -> None:
    raw = bytearray(b"".join(parts))
    if at < len(raw):
        raw[at] = value
    try:
        found = judge(gz(bytes(raw)))
    except Refusal as exc:
        code = exc.code
    else:
        code = "E-ARCHIVE-none"
        with tarfile.open(fileobj=io.BytesIO(bytes(raw))) as other:
            assert [(m.name, m.size) for m in other if m.isfile()] == [(e.path, e.size) for e in found.files]
    assert code.startswith("E-ARCHIVE-")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=600))
def test_any_bytes_are_refused_by_a_code(data: bytes) -> None:
    assert refused(data).startswith("E-ARCHIVE-")
