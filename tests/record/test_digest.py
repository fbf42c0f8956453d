"""Digests of folders: the documented form, and the framed one."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from tuneplane.record.digest import (
    FileEntry,
    TreeError,
    digest_bytes,
    digest_file,
    directory_digest_v1,
    is_digest,
    is_relative,
    scan_tree,
    tree_digest_v2,
    v1_files,
)

CASES = json.loads((Path(__file__).parent.parent / "data/vectors/digest_cases.json").read_text())["cases"]


def lay_out(case: dict[str, Any], root: Path) -> Path:
    for path, content in case["files"].items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(base64.b64decode(content["b64"]) if isinstance(content, dict) else content.encode("utf-8"))
    for path in case.get("empty_dirs") or ():
        (root / path).mkdir(parents=True, exist_ok=True)
    for path, to in (case.get("symlinks") or {}).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).symlink_to(to)
    for path, mode in (case.get("modes") or {}).items():
        os.chmod(root / path, int(mode, 8) if isinstance(mode, str) else mode)
    return root


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["id"])
def test_the_documented_digest(case: dict[str, Any], tmp_path: Path) -> None:
    root = lay_out(case, tmp_path)
    assert directory_digest_v1(root) == case["digest"]
    if case.get("hashed_files") is not None:
        assert v1_files(root) == case["hashed_files"]


def test_v1_confuses_two_trees_and_v2_does_not(tmp_path: Path) -> None:
    """The documented form has no framing: a name and its content can trade places at the NUL."""
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    (one / "a").write_bytes(b"x\0b\0y")
    (other / "a").write_bytes(b"x")
    (other / "b").write_bytes(b"y")
    assert directory_digest_v1(one) == directory_digest_v1(other)
    assert tree_digest_v2(scan_tree(one)) != tree_digest_v2(scan_tree(other))


@pytest.mark.parametrize("change", ["content", "name", "exec", "extra", "less"])
def test_v2_sees_every_change(tmp_path: Path, change: str) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "a").write_text("1")
    (tmp_path / "d/b").write_text("2")
    before = tree_digest_v2(scan_tree(tmp_path))
    {
        "content": lambda: (tmp_path / "a").write_text("3"),
        "name": lambda: (tmp_path / "a").rename(tmp_path / "c"),
        "exec": lambda: (tmp_path / "a").chmod(0o755),
        "extra": lambda: (tmp_path / "d/.hidden").write_text(""),
        "less": lambda: (tmp_path / "d/b").unlink(),
    }[change]()
    assert tree_digest_v2(scan_tree(tmp_path)) != before


def test_v2_does_not_depend_on_order_or_other_modes(tmp_path: Path) -> None:
    for name in "cab":
        (tmp_path / name).write_text(name)
    entries = list(scan_tree(tmp_path))
    before = tree_digest_v2(entries)
    (tmp_path / "a").chmod(0o600)
    assert tree_digest_v2(reversed(entries)) == before == tree_digest_v2(scan_tree(tmp_path))


@pytest.mark.parametrize("kind", ["link", "linked folder", "fifo", "dangling", "newline", "backslash"])
def test_v2_refuses_what_is_no_plain_file(tmp_path: Path, kind: str) -> None:
    (tmp_path / "real").write_text("x")
    (tmp_path / "folder").mkdir()
    {
        "link": lambda: (tmp_path / "l").symlink_to("real"),
        "linked folder": lambda: (tmp_path / "l").symlink_to("folder"),
        "fifo": lambda: os.mkfifo(tmp_path / "l"),
        "dangling": lambda: (tmp_path / "l").symlink_to("nowhere"),
        "newline": lambda: (tmp_path / "a\nb").write_text("x"),
        "backslash": lambda: (tmp_path / "a\\b").write_text("x"),
    }[kind]()
    with pytest.raises(TreeError):
        list(scan_tree(tmp_path))


def test_a_path_that_stands_twice_is_refused() -> None:
    entry = FileEntry("a", False, 1, digest_bytes(b"x"))
    with pytest.raises(TreeError, match="twice"):
        tree_digest_v2([entry, entry])


GOOD = {"path": "a/b", "type": "file", "exec": False, "size": 1, "sha256": digest_bytes(b"x")}


@pytest.mark.parametrize(
    "change",
    [
        {"path": "../a"}, {"path": "/a"}, {"path": "a//b"}, {"path": ""}, {"path": "a/./b"}, {"path": "a\nb"}, {"path": 1}, {"type": "link"},
        {"exec": 1}, {"size": -1}, {"size": True}, {"size": 1.0}, {"sha256": "sha256:xyz"}, {"sha256": "0" * 64}, {"more": 1},
    ],
)  # fmt: skip
def test_a_manifest_entry_cannot_smuggle(change: dict[str, Any]) -> None:
    assert FileEntry.from_json(GOOD).as_json() == GOOD
    with pytest.raises(TreeError):
        FileEntry.from_json({**GOOD, **change})
    with pytest.raises(TreeError):
        FileEntry.from_json(None)


def test_small_predicates() -> None:
    assert is_digest(digest_bytes(b""))
    assert not is_digest(digest_bytes(b"").upper())
    assert not is_digest(None)
    assert is_relative("a/b.c")
    assert not is_relative("a\\b")


def test_a_file_digest_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * (3 << 20))
    (tmp_path / "l").symlink_to("a")
    wanted = "sha256:" + hashlib.sha256(b"x" * (3 << 20)).hexdigest()
    assert digest_file(tmp_path / "a") == wanted
    assert digest_file(tmp_path / "l", follow=True) == wanted
    with pytest.raises(OSError):
        digest_file(tmp_path / "l")
    with pytest.raises(OSError, match="not a regular file"):
        digest_file(tmp_path)


def test_a_tree_that_is_made_to_exhaust_its_reader_is_refused_without_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "holes").mkdir()
    with open(tmp_path / "holes/a", "wb") as stream:
        stream.truncate(1 << 42)
    (tmp_path / "holes/b").write_bytes(b"x")
    with pytest.raises(TreeError, match="a: more bytes than belong here"):
        list(scan_tree(tmp_path / "holes", max_bytes=1 << 20))
    (tmp_path / "holes/a").write_bytes(b"xy")
    assert [e.path for e in scan_tree(tmp_path / "holes", max_bytes=3)] == ["a", "b"]
    with pytest.raises(TreeError, match="b: more bytes"):
        list(scan_tree(tmp_path / "holes", max_bytes=2))
    monkeypatch.chdir(tmp_path)
    for _ in range(120):
        os.mkdir("deep")
        os.chdir("deep")
    with pytest.raises(TreeError, match="nested deeper than 100"):
        list(scan_tree(tmp_path / "deep"))
