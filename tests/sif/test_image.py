from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest

from hpc.errors import Refusal
from hpc.sif.glibc import (
    driver_libraries,
    driver_needs,
    glibc_advice,
    glibc_of_library,
    host_driver_libraries,
    image_glibc,
    needed_glibc,
    parse_version,
)
from hpc.sif.image import DESCRIPTOR, HEADER, architecture, check_sif, labels, sif_digest
from tests.sif.sifs import small_sif


def test_a_sif_is_known_by_its_header(tmp_path: Path) -> None:
    sif = check_sif(small_sif(tmp_path / "a.sif"), machine="x86_64")
    assert (sif.architecture, sif.size) == ("amd64", (tmp_path / "a.sif").stat().st_size)
    assert sif.root_offset == 8192
    assert [o.name for o in sif.objects] == ["inspect-metadata.json", "root"]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "nothing"),
        (b"hsqs" + bytes(200), "a squashfs image"),
        (b"\x7fELF" + bytes(200), "a program"),
        (b"#!/bin/sh\n" + bytes(200), "a script"),
        (b"x" * 40, "other bytes"),
    ],
)
def test_what_is_no_sif_is_named(tmp_path: Path, content: bytes, found: str) -> None:
    (tmp_path / "a.sif").write_bytes(content)
    with pytest.raises(Refusal) as caught:
        check_sif(tmp_path / "a.sif")
    assert (caught.value.code, caught.value.found) == ("E-SIF-004", found)


def test_folders_missing_files_and_pipes_are_no_sif(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("missing", ".", "pipe"):
        with pytest.raises(Refusal) as caught:
            check_sif(tmp_path / name)
        assert caught.value.code == "E-SIF-004"


@pytest.mark.parametrize("keep", [8192 + 1, 8192 + 4095])
def test_a_copy_that_was_cut_short_is_refused(tmp_path: Path, keep: int) -> None:
    whole = small_sif(tmp_path / "a.sif").read_bytes()
    (tmp_path / "b.sif").write_bytes(whole[:keep])
    with pytest.raises(Refusal) as caught:
        check_sif(tmp_path / "b.sif", machine="x86_64")
    assert (caught.value.code, caught.value.found) == ("E-SIF-005", f"{keep} bytes")


def test_another_architecture_or_version_is_refused_with_both_names(tmp_path: Path) -> None:
    with pytest.raises(Refusal) as caught:
        check_sif(small_sif(tmp_path / "a.sif"), machine="aarch64")
    assert (caught.value.code, caught.value.found, caught.value.allowed) == ("E-SIF-006", "amd64", "arm64")
    with pytest.raises(Refusal) as caught:
        check_sif(small_sif(tmp_path / "b.sif", version=b"02\0"), machine="x86_64")
    assert (caught.value.code, caught.value.found) == ("E-SIF-006", "02")


def test_the_words_for_machines_are_those_of_sif() -> None:
    assert [architecture(m) for m in ("x86_64", "aarch64", "ppc64le")] == ["amd64", "arm64", "ppc64le"]


def test_a_header_with_absurd_numbers_is_no_traceback(tmp_path: Path) -> None:
    head = HEADER.pack(b"#!", b"SIF_MAGIC\0", b"01\0", b"02\0", bytes(16), 0, 0, 0, 1 << 40, 100, 0, 100, 0)
    (tmp_path / "a.sif").write_bytes(head)
    assert check_sif(tmp_path / "a.sif", machine="x86_64").objects == ()


def test_labels_are_read_from_the_file_itself(tmp_path: Path) -> None:
    assert labels(small_sif(tmp_path / "a.sif", labels={"python.version": "3.13.5"})) == {"python.version": "3.13.5"}
    assert labels(small_sif(tmp_path / "b.sif", metadata=b"{not json")) == {}
    assert labels(small_sif(tmp_path / "c.sif", metadata=json.dumps({"data": []}).encode())) == {}


def test_the_digest_covers_every_byte(tmp_path: Path) -> None:
    path = small_sif(tmp_path / "a.sif")
    before = sif_digest(path)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    assert sif_digest(path) != before
    assert before.startswith("sha256:")


def test_the_structs_have_the_sizes_of_the_format() -> None:
    assert (HEADER.size, DESCRIPTOR.size) == (128, 585)
    assert struct.calcsize("<32s10s3s3s16s") == 64


LIBC = b"\0GNU C Library (Debian GLIBC 2.41-12) stable release version 2.41.\nCopyright\0"


def test_p56_the_librarys_own_words_tell_its_release() -> None:
    assert glibc_of_library(LIBC) == (2, 41)
    assert glibc_of_library(b"musl libc (x86_64)") is None


def test_p56_the_newest_symbol_is_what_a_library_needs() -> None:
    assert needed_glibc(b"\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.4\0GLIBC_PRIVATE\0") == (2, 34)
    assert needed_glibc(b"nothing") is None


def test_p56_driver_libraries_come_from_the_loaders_cache(tmp_path: Path) -> None:
    cache = """2 libs found in cache `/etc/ld.so.cache'
\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1
\tlibnvidia-ml.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1
\tlibcudart.so.12 (libc6,x86-64) => /usr/local/cuda/lib64/libcudart.so.12
\tlibc.so.6 (libc6,x86-64) => /lib/x86_64-linux-gnu/libc.so.6
"""
    assert driver_libraries(cache) == [
        "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
        "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
    ]
    (tmp_path / "libcuda.so.1").write_bytes(b"\0GLIBC_2.38\0")
    (tmp_path / "odd.so").write_bytes(b"")
    found = driver_needs([tmp_path / "libcuda.so.1", tmp_path / "odd.so", tmp_path / "gone.so"])
    assert found == {str(tmp_path / "libcuda.so.1"): (2, 38)}


def test_p56_the_host_is_asked_through_its_loader(tmp_path: Path) -> None:
    ldconfig = tmp_path / "ldconfig"
    ldconfig.write_text("#!/bin/sh\necho '\tlibcuda.so.1 (libc6,x86-64) => /lib/libcuda.so.1'\n", "utf-8")
    ldconfig.chmod(0o755)
    assert host_driver_libraries(str(ldconfig)) == ["/lib/libcuda.so.1"]
    assert host_driver_libraries(str(tmp_path / "none")) == []


@pytest.mark.parametrize(
    ("text", "version"), [("2.41", (2, 41)), ("", None), ("2", None), ("2.x", None), ("2.4.1", None)]
)
def test_p56_a_recorded_version_is_numbers_or_nothing(text: str, version: tuple[int, int] | None) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize(
    ("image", "needs", "words"),
    [
        ((2, 36), {}, ""),
        ((2, 36), {"/lib/libcuda.so.1": (2, 34)}, ""),
        ((2, 36), {"/lib/libcuda.so.1": (2, 36)}, ""),
        ((2, 9), {"/lib/libcuda.so.1": (2, 34)}, "/lib/libcuda.so.1 needs glibc 2.34, the image has 2.9"),
        ((2, 36), {"/lib/a.so": (2, 34), "/lib/b.so": (2, 38)}, "/lib/b.so needs glibc 2.38, the image has 2.36"),
        (None, {"/lib/libcuda.so.1": (2, 34)}, "could not be read"),
    ],
)
def test_p56_advice_names_the_library_and_the_way_out(
    image: tuple[int, int] | None, needs: dict[str, tuple[int, int]], words: str
) -> None:
    advice = glibc_advice(image, needs)
    assert words in advice
    assert bool(advice) == bool(words)
    assert ("--nvccli" in advice) == ("the image has" in advice)


def unsquashfs(tmp_path: Path, body: str) -> str:
    program = tmp_path / "unsquashfs"
    program.write_text(f"#!/bin/sh\n{body}\n", "utf-8")
    program.chmod(0o755)
    return str(program)


def test_p56_the_images_glibc_is_read_without_starting_it(tmp_path: Path) -> None:
    sif = small_sif(tmp_path / "a.sif")
    (tmp_path / "libc").write_bytes(LIBC)
    script = (
        f'echo "$*" >>{tmp_path}/calls; for last; do :; done; [ "$last" = usr/lib64/libc.so.6 ] && cat {tmp_path}/libc'
    )
    assert image_glibc(sif, unsquashfs=unsquashfs(tmp_path, script)) == (2, 41)
    calls = (tmp_path / "calls").read_text("utf-8").splitlines()
    assert calls[-1] == f"-no-progress -o 8192 -cat {sif} usr/lib64/libc.so.6"
    assert len(calls) == 3


def test_p56_an_image_that_does_not_tell_its_glibc_is_no_error(tmp_path: Path) -> None:
    sif = small_sif(tmp_path / "a.sif")
    assert image_glibc(sif, unsquashfs=unsquashfs(tmp_path, "exit 2")) is None
    assert image_glibc(sif, unsquashfs=str(tmp_path / "none")) is None
