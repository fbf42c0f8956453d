"""The layer shows what a second node's cache of names would show, and lets the server decide what changes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from stalenames import LAG_S, StaleNames


def names(folder: Path) -> list[list[str]]:
    """The same listing in every way in which code may ask for it."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    walked = next(iter(os.walk(folder)))
    try:
        seen = [
            os.listdir(folder),
            os.listdir(fd),
            [e.name for e in os.scandir(folder)],
            [p.name for p in folder.iterdir()],
            walked[1] + walked[2],
        ]
    finally:
        os.close(fd)
    return [sorted(s) for s in seen]


def test_a_name_that_another_node_made_is_not_there_until_the_cache_is_old(tmp_path: Path) -> None:
    with StaleNames(tmp_path) as lag:
        with lag.elsewhere():
            (tmp_path / "new").write_text("x")
        assert (
            (tmp_path / "new").exists()
            is os.path.lexists(tmp_path / "new")
            is os.access(tmp_path / "new", os.R_OK)
            is False
        )
        assert names(tmp_path) == [[]] * 5
        for look in (open, os.stat, os.lstat, os.readlink, lambda p: os.open(p, os.O_RDONLY)):
            with pytest.raises(FileNotFoundError):
                look(tmp_path / "new")
        lag.sleep(LAG_S - 1)
        assert not (tmp_path / "new").exists()
        lag.sleep(1)
        assert (tmp_path / "new").read_text() == "x"
        assert lag.hidden > 5


def test_a_name_that_another_node_removed_or_replaced_is_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "gone").write_text("old")
    (tmp_path / "other").write_text("old")
    with StaleNames(tmp_path) as lag:
        with lag.elsewhere():
            (tmp_path / "gone").unlink()
            (tmp_path / "temp").write_text("newer")
            (tmp_path / "temp").rename(tmp_path / "other")
        assert names(tmp_path) == [["gone", "other"]] * 5
        assert [(tmp_path / n).read_text() for n in ("gone", "other")] == ["old", "old"]
        assert (tmp_path / "other").stat().st_size == 3
        lag.sleep(LAG_S)
        assert (tmp_path / "other").read_text() == "newer"
    with StaleNames(tmp_path, gone="stale") as lag:
        with lag.elsewhere():
            (tmp_path / "other").unlink()
        with pytest.raises(OSError, match="Stale") as caught:
            (tmp_path / "other").read_text()
        assert caught.value.errno == errno.ESTALE


def test_the_server_decides_and_ones_own_changes_are_seen_at_once(tmp_path: Path) -> None:
    with StaleNames(tmp_path) as lag:
        with lag.elsewhere():
            (tmp_path / "theirs").mkdir()
            (tmp_path / "file").write_text("theirs")
        with pytest.raises(FileExistsError):
            (tmp_path / "theirs").mkdir()
        with pytest.raises(FileExistsError):
            os.open(tmp_path / "file", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "x").write_text("1")
        (tmp_path / "mine").rename(tmp_path / "ours")
        assert names(tmp_path) == [["ours"]] * 5
        assert (tmp_path / "ours" / "x").read_text() == "1"
        os.unlink(tmp_path / "ours" / "x")
        assert names(tmp_path / "ours") == [[]] * 5
    assert sorted(os.listdir(tmp_path)) == ["file", "ours", "theirs"]
