"""Folders of arrays: whole or made again, this user's own or not believed, and no dearer to open when they are large."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import pytest
from tuneplane.training import arrays
from tuneplane.training.arrays import is_whole, kept, open_arrays, writing

KEY = "sha256:" + "a" * 64
SCHEMA = "test/v1"


def make(folder: Path) -> dict[str, Any]:
    with writing(folder, {"numbers": "q", "flags": "b", "none": "i"}) as writer:
        for n in range(200_000):
            writer.append("numbers", n)
        writer.extend("flags", [1, 0, 1])
        return {"schema": SCHEMA, "files": writer.finish()}


def never(folder: Path) -> dict[str, Any]:
    raise AssertionError("made again")


def test_what_was_written_comes_back_mapped(tmp_path: Path) -> None:
    found, meta = open_arrays(kept(tmp_path, KEY, make), SCHEMA)
    assert found["numbers"][-1] == 199_999
    assert found["flags"].tolist() == [1, 0, 1]
    assert len(found["none"]) == 0
    assert meta["files"]["numbers"]["size"] == 1_600_000
    assert kept(tmp_path, KEY, never) == kept(tmp_path, KEY, never)
    with pytest.raises(ValueError, match="not a folder of this release"):
        open_arrays(kept(tmp_path, KEY, never), "test/v2")


@pytest.mark.parametrize("full", [True, False], ids=["every byte", "samples"])
@pytest.mark.parametrize("damage", ["cut", "torn", "older", "meta", "gone", "link"])
def test_p65_a_damaged_folder_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool, damage: str
) -> None:
    monkeypatch.setattr(arrays, "FULL_CHECK", 1 << 30 if full else 0)
    folder = kept(tmp_path, KEY, make)
    path = folder / "numbers.bin"
    info, good = path.stat(), path.read_bytes()
    if damage == "cut":
        path.write_bytes(good[:-8])
    elif damage == "torn":
        path.write_bytes(good[:800_000] + bytes(100_000) + good[900_000:])
        os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
    elif damage == "older":
        path.write_bytes(good[:-1] + b"x")
    elif damage == "meta":
        text = (folder / "meta.json").read_text()
        (folder / "meta.json").write_text(text.replace('"schema": "test/v1"', '"schema": "test/v9"'))
    elif damage == "gone":
        path.unlink()
    else:
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    assert not is_whole(folder)
    assert kept(tmp_path, KEY, make) == folder
    assert is_whole(folder)
    assert path.read_bytes() == good


def test_p65_a_folder_of_somebody_else_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = kept(tmp_path / "theirs", KEY, make)
    assert is_whole(folder)
    folder.chmod(0o777)
    assert not is_whole(folder)
    folder.chmod(0o755)
    monkeypatch.setattr(os, "getuid", lambda: 4321)
    assert not is_whole(folder)
    with pytest.raises(AssertionError, match="made again"):
        kept(tmp_path / "mine", KEY, never, [tmp_path / "theirs"])


def test_p65_what_another_run_made_is_copied_and_a_damaged_copy_is_not(tmp_path: Path) -> None:
    there = kept(tmp_path / "run-1", KEY, make)
    here = kept(tmp_path / "run-2", KEY, never, [tmp_path / "none", tmp_path / "run-1"])
    assert {p.name: p.read_bytes() for p in here.iterdir()} == {p.name: p.read_bytes() for p in there.iterdir()}
    assert here.stat().st_ino != there.stat().st_ino
    (there / "numbers.bin").write_bytes(b"")
    assert is_whole(kept(tmp_path / "run-3", KEY, make, [tmp_path / "run-1"]))


def test_two_makers_at_once_end_with_one_whole_folder(tmp_path: Path) -> None:
    def slow(folder: Path) -> dict[str, Any]:
        kept(tmp_path, KEY, make)  # the other one is faster
        return make(folder)

    folder = kept(tmp_path, KEY, slow)
    assert is_whole(folder)
    assert [p.name for p in tmp_path.iterdir()] == [folder.name]


def test_memory_does_not_grow_with_what_is_written(tmp_path: Path) -> None:
    def large(folder: Path) -> dict[str, Any]:
        with writing(folder, {"numbers": "q"}) as writer:
            for start in range(0, 8_000_000, 50_000):
                writer.extend("numbers", range(start, start + 50_000))
            return {"schema": SCHEMA, "files": writer.finish()}

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    folder = kept(tmp_path, KEY, large)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert os.path.getsize(folder / "numbers.bin") == 64_000_000
    assert grown_kib < 16_000


def test_opening_reads_no_more_of_a_larger_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit only samples are read: their number and size are fixed."""
    folder = kept(tmp_path, KEY, make)
    monkeypatch.setattr(arrays, "FULL_CHECK", 0)

    def refuse(*_: Any, **__: Any) -> str:
        raise AssertionError("read from end to end")

    monkeypatch.setattr(arrays, "digest_file", refuse)
    assert is_whole(folder)
