"""Hash chains (H1, H2, H4 of the record rules)."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tuneplane.record.events import (
    Chain,
    EventWriter,
    check_chain,
    event_hash,
    merged,
    parse_lines,
    read_all,
    read_chain,
)

H1 = (
    "48ddc35a37e9a02d61f0991e1dcbcf2918e2d0239c0c1369433a5270c36b3abe",
    "8ca2d13874f7c963a99f57c67819f8b006adeb0ca9893ca17578ffd155bc9f3d",
)


def clock(*texts: str) -> Any:
    moments: Iterator[str] = iter(texts)
    return lambda: next(moments, "2026-01-01T01:00:00.000Z")


def writer(folder: Path, name: str = "w", *moments: str) -> EventWriter:
    return EventWriter(folder, name, run_id="r1", now=clock(*moments))


def two(folder: Path) -> Path:
    w = writer(folder, "w", "2026-01-01T00:00:00.000Z", "2026-01-01T00:00:05.000Z")
    w.append("queued", "queued", "q")
    w.append("training", "running", "t")
    return folder / "w.jsonl"


def many(folder: Path, count: int) -> list[dict[str, Any]]:
    w = writer(folder, "w")
    return [w.append("s", "running", f"m{n}") for n in range(count)]


def test_h1_two_events_have_the_documented_hashes(tmp_path: Path) -> None:
    chain = read_chain(two(tmp_path))
    assert tuple(e["hash"] for e in chain.events) == H1
    assert (chain.status, chain.head, chain.broken_at) == ("verified", H1[1], None)


def test_details_are_part_of_the_hash_and_absent_when_empty(tmp_path: Path) -> None:
    w = writer(tmp_path)
    plain, detailed = w.append("a", "b", "c"), w.append("a", "b", "c", x=1)
    assert "details" not in plain
    assert detailed["details"] == {"x": 1}
    assert event_hash(detailed) == detailed["hash"] != event_hash({**detailed, "details": {"x": 2}})


@pytest.mark.parametrize("at", range(5))
@pytest.mark.parametrize(
    ("damage", "shift"), [("edit", 0), ("delete", 0), ("rehash", 1), ("swap", 0), ("insert", 0), ("seq", 0)]
)
def test_h2_damage_is_found_at_the_right_index(tmp_path: Path, at: int, damage: str, shift: int) -> None:
    events = many(tmp_path, 6)
    if damage == "edit":
        events[at] = {**events[at], "message": "x"}
    elif damage == "delete":
        del events[at]
    elif damage == "rehash":
        event = {**events[at], "message": "x"}
        events[at] = {**event, "hash": event_hash(event)}
    elif damage == "swap":
        events[at], events[at + 1] = events[at + 1], events[at]
    elif damage == "insert":
        events.insert(at, dict(events[at]))
        shift = 1
    else:
        events[at] = {**events[at], "seq": 99}
    chain = check_chain("w", events)
    assert (chain.status, chain.broken_at) == ("broken", at + shift)
    assert chain.reason


def test_a_cut_end_alone_is_not_seen_which_is_why_heads_are_joined(tmp_path: Path) -> None:
    events = many(tmp_path, 4)
    assert check_chain("w", events[:2]).status == "verified"
    assert check_chain("w", events[:2]).head != events[-1]["hash"]


def test_h2_unhashed_events_before_and_after(tmp_path: Path) -> None:
    events = many(tmp_path, 2)
    bare = {"run_id": "r1", "message": "old"}
    assert check_chain("w", [bare, *events]).status == "legacy"
    assert check_chain("w", [bare]).status == "legacy"
    assert check_chain("w", [*events, bare]).status == "mixed"
    assert check_chain("w", [events[0], bare, events[1]]).status == "mixed"
    assert check_chain("w", []).status == "empty"


def test_h2_a_torn_last_line_is_counted_and_the_next_append_goes_on(tmp_path: Path) -> None:
    path = two(tmp_path)
    with open(path, "ab") as stream:
        stream.write(b'{"run_id": "r1", "sta')
    assert (read_chain(path).status, read_chain(path).unreadable) == ("verified", 1)
    writer(tmp_path).append("training", "running", "again")
    chain = read_chain(path)
    assert (chain.status, chain.unreadable, len(chain.events)) == ("verified", 1, 3)
    assert chain.events[2]["prev_hash"] == H1[1]


def test_a_whole_last_line_without_its_newline_counts(tmp_path: Path) -> None:
    path = two(tmp_path)
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    writer(tmp_path).append("training", "running", "again")
    assert (read_chain(path).status, read_chain(path).unreadable, len(read_chain(path).events)) == ("verified", 0, 3)


def test_h2_lines_that_are_no_objects_are_unreadable() -> None:
    assert parse_lines(b'null\n[]\n42\n\n{"a":1}\n') == ([{"a": 1}], 3)
    assert parse_lines(b'{"a":1,"a":2}\n\xff\n') == ([], 2)
    assert parse_lines(b"") == ([], 0)


def test_missing_and_linked_files(tmp_path: Path) -> None:
    assert read_chain(tmp_path / "none.jsonl") == Chain("none", "empty")
    two(tmp_path)
    (tmp_path / "l.jsonl").symlink_to("w.jsonl")
    with pytest.raises(OSError):
        read_chain(tmp_path / "l.jsonl")
    assert read_all(tmp_path / "nowhere") == []


@pytest.mark.parametrize("name", ["", "A", "a/b", ".x", "a b", "ü", "x" * 65])
def test_a_writers_name_is_plain(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="writer name"):
        writer(tmp_path, name)


def _append(folder: Path, name: str, barrier: Any) -> None:
    w = EventWriter(folder, name, run_id="r1", now=lambda: "2026-01-01T00:00:00.000Z")
    barrier.wait()
    for n in range(8):
        w.append("s", "running", f"{name} {n}")


def test_h4_three_processes_with_a_chain_each_lose_nothing(tmp_path: Path) -> None:
    two(tmp_path)
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(3)
    children = [context.Process(target=_append, args=(tmp_path, f"p{n}", barrier)) for n in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    chains = read_all(tmp_path)
    assert {c.writer: (c.status, len(c.events)) for c in chains} == {
        "p0": ("verified", 8), "p1": ("verified", 8), "p2": ("verified", 8), "w": ("verified", 2)
    }  # fmt: skip
    assert len(merged(chains)) == 26


def test_the_merged_view_is_by_time_and_keeps_each_writers_order(tmp_path: Path) -> None:
    a = writer(tmp_path, "a", "2026-01-01T00:00:09Z", "2026-01-01T00:00:01Z", "2026-01-01T00:00:10Z")
    b = writer(tmp_path, "b", "2026-01-01T00:00:05Z", "2026-01-01T00:00:09Z")
    for w, text in ((a, "a0"), (b, "b0"), (a, "a1 clock was set back"), (b, "b1"), (a, "a2")):
        w.append("s", "running", text)
    assert [(e["writer"], e["message"][:2]) for e in merged(read_all(tmp_path))] == [
        ("b", "b0"), ("a", "a0"), ("a", "a1"), ("b", "b1"), ("a", "a2")
    ]  # fmt: skip


class Failing:
    """Stands in for os in the events module and fails one call, after doing the work or before."""

    def __init__(self, name: str, at: int, *, after: bool, part: bool = False) -> None:
        self._name, self._at, self._after, self._part = name, at, after, part
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name != self._name:
            return real

        def call(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            if self.count != self._at:
                return real(*args, **kwargs)
            if self._part:
                real(args[0], args[1][: len(args[1]) // 2])
            elif self._after:
                real(*args, **kwargs)
            raise OSError(28, "No space left on device")

        return call


@pytest.mark.parametrize("name", ["open", "fstat", "pread", "write", "fsync", "close"])
@pytest.mark.parametrize("how", ["before", "after", "part"])
def test_an_append_that_fails_leaves_a_chain_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, how: str
) -> None:
    if how == "part" and name != "write":
        how = "before"
    path = two(tmp_path)
    w = writer(tmp_path)
    failing = Failing(name, 1, after=how == "after", part=how == "part")
    monkeypatch.setattr("tuneplane.record.events.os", failing)
    with pytest.raises(OSError):
        w.append("training", "running", "fails")
    w.append("training", "running", "goes on")
    monkeypatch.undo()
    chain = read_chain(path)
    assert chain.status == "verified"
    assert [e["message"] for e in chain.events if e["message"] != "fails"] == ["q", "t", "goes on"]
    assert json.loads(path.read_bytes().splitlines()[-1])["message"] == "goes on"


@pytest.mark.parametrize("umask", [0o000, 0o777])
def test_an_event_file_has_its_mode_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        EventWriter(tmp_path, "w", run_id="run-1", now=lambda: "2026-01-01T00:00:00Z").append("a", "b", "c")
    finally:
        os.umask(before)
    assert (tmp_path / "w.jsonl").stat().st_mode & 0o777 == 0o644
