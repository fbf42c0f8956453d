"""Planted duplicates, overlaps and leaks are found with the exact ratios; figures are the same in every process, and memory stays flat."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tuneplane.contract.layout import StorageRoot

from hpc.data import duplicates, overlap, spill
from hpc.data.duplicates import exact_duplicates, near_duplicates
from hpc.data.fingerprint import fingerprint, resemblance
from hpc.data.groups import group_leaks
from hpc.data.measure import Measures
from hpc.data.overlap import overlap as measure_overlap
from hpc.data.rows import Source, chunks, evaluation_files, find_sources, numbered
from hpc.data.shingles import grams, row_text, sampling_for
from hpc.errors import Refusal
from tests.datasets.conftest import codes, rows, write_rows


def text(draw: random.Random, words: int = 40) -> str:
    return " ".join(f"w{draw.randrange(5000)}" for _ in range(words))


def long_rows(count: int, seed: int, **more: Any) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    return [{"id": f"{seed}-{i}", "prompt": text(draw), "completion": text(draw, 20), **more} for i in range(count)]


def source(path: Path) -> list[Source]:
    return find_sources(str(path), root=None)


def changed(row: dict[str, Any], words: int) -> dict[str, Any]:
    """The row with other words at the start of its prompt: each spoils the 13-grams that it stands in."""
    parts = row["prompt"].split()
    parts[:words] = [f"new{i}" for i in range(words)]
    return {**row, "prompt": " ".join(parts)}


def test_exact_duplicates_have_the_planted_ratio_and_the_first_are_named(tmp_path: Path) -> None:
    base = rows(1000)
    path = write_rows(tmp_path / "t.jsonl", [*base, *base[:30], *base[:10]])
    found = exact_duplicates(source(path))
    assert (found["rows"], found["duplicates"], found["ratio"]) == (1040, 40, 40 / 1040)
    assert found["offenders"][0] == {"row": f"{path}:1001", "repeats": f"{path}:1"}
    assert found["offenders"][19] == {"row": f"{path}:1020", "repeats": f"{path}:20"}
    assert len(found["offenders"]) == 20


def test_line_ends_and_empty_lines_make_no_other_row(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'{"a":1}\r\n\n  {"a":1}  \n{"a":2}\n\t\n{"a":1}')
    found = exact_duplicates(source(path))
    assert (found["rows"], found["duplicates"]) == (4, 2)
    assert [o["row"].rpartition(":")[2] for o in found["offenders"]] == ["3", "6"]


def test_rows_are_cut_right_wherever_a_block_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'{"a": 1} \n\n{"b": 22}\n   \n{"c": 3}\r\n{"d": 4}')
    want = [line for _, line in numbered(source(path)[0])]
    assert want == [b'{"a": 1}', b'{"b": 22}', b'{"c": 3}', b'{"d": 4}']
    for size in range(1, 45):
        monkeypatch.setattr("hpc.data.rows.CHUNK", size)
        assert [line for chunk in chunks(source(path)[0]) for line in chunk] == want, size


@pytest.mark.parametrize("seed", range(2))
def test_the_counts_are_those_of_a_set_whatever_the_spill_does(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small buffers and small parts, so that every way through the spill is taken."""
    monkeypatch.setattr(spill, "BUFFER", 1000)
    monkeypatch.setattr(spill, "MANY", 9)
    draw = random.Random(seed)
    lines = [{"n": draw.randrange(800)} for _ in range(2000)]
    half = draw.randrange(1, 1999)
    one, two = write_rows(tmp_path / "a.jsonl", lines[:half]), write_rows(tmp_path / "b.jsonl", lines[half:])
    found = exact_duplicates(source(one) + source(two))
    distinct = len({line["n"] for line in lines})
    assert (found["rows"], found["duplicates"]) == (2000, 2000 - distinct)
    groups = group_leaks(source(one), source(two), "n")
    known = {line["n"] for line in lines[:half]}
    assert groups["leaking"] == sum(line["n"] in known for line in lines[half:])


def test_near_duplicates_are_rows_that_share_most_of_their_13_grams(tmp_path: Path) -> None:
    base = long_rows(300, 1)
    # 60 words have 48 13-grams; n new words at the start spoil n of them: 9 leave 39/48 > 0.8, 10 leave 38/48 < 0.8.
    near, far = [changed(r, 9) for r in base[:20]], [changed(r, 10) for r in base[20:50]]
    path = write_rows(tmp_path / "t.jsonl", [*base, *base[50:57], *near, *far])
    found = near_duplicates(source(path))
    assert (found["rows"], found["near_duplicates"], found["ratio"]) == (357, 27, 27 / 357)
    assert (found["sampling"], found["words"], found["threshold"]) == ("1/1", 13, 0.8)
    assert found["offenders"][0] == {"row": f"{path}:301"}


def test_short_rows_are_near_only_where_their_text_is_equal(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "t.jsonl", [{"prompt": "2+2"}, {"prompt": "2-2"}, {"prompt": "2+2", "id": 7}])
    assert near_duplicates(source(path))["near_duplicates"] == 1


def test_overlap_is_a_share_of_the_evaluation_rows(tmp_path: Path) -> None:
    train, evaluation = long_rows(500, 1), long_rows(100, 2)
    taken = [{**r, "id": "x", "prompt": r["prompt"].upper()} for r in evaluation[20:27]]
    near, far = [changed(r, 9) for r in evaluation[40:45]], [changed(r, 12) for r in evaluation[60:70]]
    one = write_rows(tmp_path / "train.jsonl", [*train, *taken, *near, *far])
    two = write_rows(tmp_path / "eval.jsonl", evaluation)
    found = measure_overlap(source(one), source(two))
    assert (found["exact"], found["near"], found["overlapping"], found["ratio"]) == (7, 5, 12, 0.12)
    assert (found["train_rows"], found["eval_rows"]) == (522, 100)
    assert found["offenders"][0] == {"row": f"{two}:21", "in": f"{one}:501", "kind": "exact"}
    assert [o["kind"] for o in found["offenders"]] == ["exact"] * 7 + ["near"] * 5


def test_an_evaluation_set_in_blocks_gives_the_same_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, evaluation = long_rows(50, 1), long_rows(40, 2)
    one = write_rows(tmp_path / "train.jsonl", [*train, *evaluation[5:9]])
    two = write_rows(tmp_path / "eval.jsonl", evaluation)
    whole = measure_overlap(source(one), source(two))
    monkeypatch.setattr(overlap, "BLOCK_KEYS", 100)
    assert measure_overlap(source(one), source(two)) == whole
    assert whole["overlapping"] == 4


def test_the_systems_message_is_no_overlap(tmp_path: Path) -> None:
    """A long prompt that all rows share would make every row look known."""
    system = {"role": "system", "content": text(random.Random(3), 200)}

    def talk(question: str) -> dict[str, Any]:
        return {"messages": [system, {"role": "user", "content": question}, {"role": "assistant", "content": "yes"}]}

    one = write_rows(tmp_path / "train.jsonl", [talk(text(random.Random(i), 30)) for i in range(20)])
    two = write_rows(tmp_path / "eval.jsonl", [talk(text(random.Random(100 + i), 30)) for i in range(20)])
    assert measure_overlap(source(one), source(two))["overlapping"] == 0
    assert near_duplicates(source(one))["near_duplicates"] == 0
    assert row_text(talk("Is it   SO?")) == "is it so? yes"


def test_group_leaks_are_a_share_of_the_validation_rows(tmp_path: Path) -> None:
    train = [{**r, "meta": {"patient": f"p{i % 50}"}} for i, r in enumerate(rows(200))]
    validation = [{**r, "meta": {"patient": f"p{i}" if i < 13 else f"q{i}"}} for i, r in enumerate(rows(100, 500))]
    one, two = (
        write_rows(tmp_path / "train.jsonl", train),
        write_rows(tmp_path / "v.jsonl", [*validation, {"prompt": "none"}]),
    )
    found = group_leaks(source(one), source(two), "meta.patient")
    assert (found["leaking"], found["validation_rows"], found["ratio"]) == (13, 100, 0.13)
    assert found["without_group"] == {"train": 0, "validation": 1}
    assert found["offenders"][0] == {"row": f"{two}:1", "group": "p0"}
    with pytest.raises(Refusal) as caught:
        group_leaks(source(one), source(two), "doctor")
    assert (caught.value.code, caught.value.allowed) == ("E-DATA-005", "prompt, completion, meta")


def test_numbers_and_text_are_different_groups(tmp_path: Path) -> None:
    one, two = write_rows(tmp_path / "a.jsonl", [{"g": 1}]), write_rows(tmp_path / "b.jsonl", [{"g": "1"}, {"g": 1}])
    assert group_leaks(source(one), source(two), "g")["leaking"] == 1


def test_odd_text_is_judged_like_any_other(tmp_path: Path) -> None:
    deep = json.loads("[" * 900 + "]" * 900)
    lines = [{"prompt": "\ud800x", "g": deep}, {"prompt": "\ud800x", "g": deep}]
    one = write_rows(tmp_path / "a.jsonl", lines)
    assert (exact_duplicates(source(one))["duplicates"], near_duplicates(source(one))["near_duplicates"]) == (1, 1)
    assert measure_overlap(source(one), source(one))["exact"] == 2
    assert [group_leaks(source(one), source(one), key)["leaking"] for key in ("prompt", "g")] == [2, 2]


@pytest.mark.two_users
def test_a_full_temporary_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_rows(tmp_path / "t.jsonl", rows(40_000))
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", place], check=True)
    try:
        monkeypatch.setattr(spill, "BUFFER", 1 << 16)
        monkeypatch.setattr("tempfile.tempdir", str(place))
        assert codes(lambda: exact_duplicates(source(path))) == ["E-STORE-020"]
        assert list(place.iterdir()) == []
    finally:
        subprocess.run(["umount", place], check=True)


def test_figures_are_the_same_in_every_process(tmp_path: Path) -> None:
    base = long_rows(60, 1)
    path = write_rows(tmp_path / "t.jsonl", [*base, *[changed(r, 3) for r in base[:9]], *base[:4]])
    program = (
        "import json, sys; from hpc.data.rows import find_sources; from hpc.data.duplicates import *; from hpc.data.fingerprint import fingerprint;"
        "s = find_sources(sys.argv[1], root=None); print(json.dumps([exact_duplicates(s), near_duplicates(s), fingerprint(s)]))"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", program, str(path)],
            env={"PYTHONHASHSEED": seed, "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1
    exact, near, _ = json.loads(said.pop())
    assert (exact["duplicates"], near["near_duplicates"]) == (4, 13)


def test_large_sets_are_sampled_and_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (sampling_for(1 << 20), sampling_for(24 << 20), sampling_for(25 << 20)) == (1, 2, 2)
    base = long_rows(200, 1)
    path = write_rows(tmp_path / "t.jsonl", [*base, *base[:25]])
    monkeypatch.setattr(duplicates, "sampling_for", lambda size: 8)
    found = near_duplicates(source(path))
    assert (found["near_duplicates"], found["sampling"]) == (25, "1/8")


def test_a_gram_is_a_run_of_13_words() -> None:
    words = [f"w{i}" for i in range(30)]
    assert len(grams(" ".join(words))) == 18
    assert grams(" ".join(words[:12])) == []
    assert set(grams(" ".join(words[5:18]))) < set(grams(" ".join(words)))
    assert len(set(grams(" ".join(words)))) == 18


def test_a_fingerprint_knows_no_order_and_tells_how_much_two_sets_share(tmp_path: Path) -> None:
    one = write_rows(tmp_path / "a.jsonl", rows(400))
    turned = write_rows(tmp_path / "b.jsonl", rows(400)[::-1])
    other = write_rows(tmp_path / "c.jsonl", rows(400, 300))
    a, b, c = (fingerprint(source(p)) for p in (one, turned, other))
    assert a == b
    assert a["digest"] != c["digest"]
    assert (resemblance(a, b), resemblance(a, c)) == (1.0, 100 / 700)
    assert fingerprint(source(one) + source(turned))["digest"] != a["digest"]


def test_a_measure_is_taken_once_by_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_rows(tmp_path / "t.jsonl", [*rows(10), *rows(2)])
    measures = Measures(tmp_path / "cache")
    first = measures.duplicates(source(path))
    monkeypatch.setattr("hpc.data.measure.exact_duplicates", lambda *a, **k: pytest.fail("read again"))
    moved = path.rename(tmp_path / "moved.jsonl")
    assert measures.duplicates(source(moved)) == first
    with open(moved, "a") as stream:
        stream.write("{}\n")
    small = Measures(tmp_path / "cache", limit=10, command="tp dataset quality t.jsonl")
    with pytest.raises(Refusal) as caught:
        small.duplicates(source(moved))
    assert caught.value.code == "E-DATA-053"
    assert "srun tp dataset quality t.jsonl" in caught.value.hint


def test_targets_are_files_folders_and_references(put: Callable, folder: Path, root: StorageRoot, me: Any) -> None:
    put(folder)
    ref = f"{me.name}/sums@1.0"
    assert [s.name for s in find_sources(ref, root=root)] == [f"{ref}:train.jsonl"]
    assert [s.name for s in find_sources(ref, "validation", root=root)] == [f"{ref}:validation.jsonl"]
    assert [s.name for s in evaluation_files(ref, root=root)] == [f"{ref}:validation.jsonl"]
    assert [s.path.name for s in find_sources(str(folder), root=None)] == ["train.jsonl"]
    assert [s.path.name for s in find_sources(str(folder), "validation", root=None)] == ["validation.jsonl"]
    assert codes(lambda: find_sources(str(folder), "test", root=None)) == ["E-DATA-010"]
    assert codes(lambda: find_sources("a/b", root=None)) == ["E-DATA-006"]
