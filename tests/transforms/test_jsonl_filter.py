"""jsonl-filter: which records pass, that their bytes are untouched, and that equal means equal."""

from __future__ import annotations

import hashlib
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


def write(path: Path, data: bytes) -> dict[str, Path]:
    path.write_bytes(data)
    return {"documents": path}


def stats(out: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((out / "stats.json").read_text())
    return value


def test_accepted_records_keep_their_bytes_and_their_order(filter_jsonl: Any, tmp_path: Path) -> None:
    lines = [
        b'{"text" : "z\\u00e4h", "n": 1.50}',
        ' {"b":2,\t"a": "ü"}'.encode(),
        b'{"a": 1}\r',
        b'{"last": "no newline"}',
    ]
    out = filter_jsonl(write(tmp_path / "in", b"\n".join(lines)))
    assert (out / "data.jsonl").read_bytes() == b"\n".join(lines) + b"\n"
    assert filter_jsonl.result.records == 4
    assert stats(out)["accepted"] == stats(out)["read"] == 4


INVALID = [
    (b"", "not_json", "Expecting value"),
    (b"   ", "not_json", "Expecting value"),
    (b"{'a': 1}", "not_json", "Expecting property name"),
    (b'{"a": 1} {"b": 2}', "not_json", "Extra data"),
    (b'{"a": NaN}', "not_json", "NaN"),
    (b'{"a": -Infinity}', "not_json", "Infinity"),
    (b'\xef\xbb\xbf{"a": 1}', "not_json", "Expecting value"),
    (b"[" * 200_000, "not_json", ""),
    (b'{"a": ' + b"1" * 10_000 + b"}", "not_json", "digits"),
    (b'{"a": "\xff"}', "not_utf8", "byte 7"),
    (b'{"a": "\xed\xa0\x80"}', "not_utf8", "byte 7"),
    (b"[1]", "not_an_object", "list"),
    (b'"text"', "not_an_object", "str"),
    (b"null", "not_an_object", "NoneType"),
    (b'{"a": 1, "a": 1}', "duplicate_key", "'a'"),
    (b'{"x": [{"deep": 1, "deep": 2}]}', "duplicate_key", "'deep'"),
    (b'{"a": "\\ud800"}', "lone_surrogate", ""),
    (b'{"\\udfff": 1}', "lone_surrogate", ""),
]


@pytest.mark.parametrize(("line", "reason", "word"), INVALID, ids=[f"{r}-{i}" for i, (_, r, _) in enumerate(INVALID)])
def test_an_invalid_record_fails_with_its_place_or_is_counted(
    filter_jsonl: Any, tmp_path: Path, line: bytes, reason: str, word: str
) -> None:
    inputs = write(tmp_path / "in", b'{"good": 1}\n' + line + b'\n{"good": 2}\n')
    with pytest.raises(ValueError) as caught:
        filter_jsonl(inputs)
    assert str(caught.value).startswith("documents, line 2: ")
    assert word in str(caught.value)
    out = filter_jsonl(inputs, on_invalid="skip")
    assert (out / "data.jsonl").read_bytes() == b'{"good": 1}\n{"good": 2}\n'
    assert stats(out)["invalid"] == {reason: 1}
    assert stats(out)["first_places"] == {reason: ["documents:2"]}


def test_a_pair_of_surrogate_escapes_is_one_good_character(filter_jsonl: Any, tmp_path: Path) -> None:
    line = b'{"text": "\\ud83d\\ude00"}\n'
    out = filter_jsonl(write(tmp_path / "in", line), min_length=1, max_length=1)
    assert (out / "data.jsonl").read_bytes() == line


def test_lengths_count_characters_with_both_bounds_included(filter_jsonl: Any, tmp_path: Path) -> None:
    texts = ["", "äö", "äöü", "äöü€", "äöü€😀", "äöü€😀x"]
    lines = [json.dumps({"body": t}, ensure_ascii=False).encode() for t in texts]
    out = filter_jsonl(write(tmp_path / "in", b"\n".join(lines)), text_field="body", min_length=3, max_length=5)
    assert (out / "data.jsonl").read_bytes().splitlines() == lines[2:5]
    assert stats(out)["rejected"] == {"too_long": 1, "too_short": 2}
    assert stats(out)["invalid"] == {}


def test_a_record_without_the_text_that_a_bound_needs_is_invalid(filter_jsonl: Any, tmp_path: Path) -> None:
    inputs = write(tmp_path / "in", b'{"text": 5}\n{"other": "x"}\n')
    filter_jsonl(inputs)
    for config in ({"min_length": 1}, {"max_length": 9}, {"deduplicate": "text"}):
        with pytest.raises(ValueError, match="documents, line 1: the text field is missing or no text: text"):
            filter_jsonl(inputs, **config)
    out = filter_jsonl(inputs, min_length=1, on_invalid="skip")
    assert stats(out)["invalid"] == {"text_not_a_string": 2}


def test_required_fields_are_there_and_not_null(filter_jsonl: Any, tmp_path: Path) -> None:
    inputs = write(tmp_path / "in", b'{"id": 0, "t": ""}\n{"id": null, "t": 1}\n{"t": 1}\n')
    out = filter_jsonl(inputs, required_fields=["id", "t"], on_invalid="skip")
    assert (out / "data.jsonl").read_bytes() == b'{"id": 0, "t": ""}\n'
    assert stats(out)["invalid"] == {"missing_field": 2}


def test_of_equal_records_the_first_stays(filter_jsonl: Any, tmp_path: Path) -> None:
    data = b'{"t": 1}\n{"t": 2}\n{"t": 1}\r\n{"t":1}\n{"t": 2}\n{"t": 1}'
    out = filter_jsonl(write(tmp_path / "in", data))
    assert (out / "data.jsonl").read_bytes() == b'{"t": 1}\n{"t": 2}\n{"t":1}\n'
    assert stats(out)["rejected"] == {"duplicate": 3}
    assert filter_jsonl.result.records == stats(out)["accepted"] == 3


def test_equality_can_be_the_texts_or_nobodys(filter_jsonl: Any, tmp_path: Path) -> None:
    lines = [b'{"id": 1, "text": "a\\u0062"}', b'{"id": 2, "text": "ab"}', b'{"id": 1, "text": "a\\u0062"}']
    inputs = write(tmp_path / "in", b"\n".join(lines))
    assert (filter_jsonl(inputs, deduplicate="text") / "data.jsonl").read_bytes().splitlines() == lines[:1]
    assert (filter_jsonl(inputs, deduplicate="record") / "data.jsonl").read_bytes().splitlines() == lines[:2]
    assert (filter_jsonl(inputs, deduplicate="off") / "data.jsonl").read_bytes().splitlines() == lines


def test_an_overlong_record_is_never_held_whole(filter_jsonl: Any, tmp_path: Path) -> None:
    good = b'{"text": "%s"}' % (b"x" * 87)
    assert len(good) == 99
    data = (
        good
        + b"\n"
        + good.replace(b"x", b"xx", 2)
        + b"\n"
        + b"y" * 5_000_000
        + b"\n"
        + b'{"a": 1}\n'
        + b"z" * 3_000_000
    )
    out = filter_jsonl(write(tmp_path / "in", data), max_record_bytes=99, on_invalid="skip")
    assert (out / "data.jsonl").read_bytes() == good + b'\n{"a": 1}\n'
    assert stats(out)["invalid"] == {"record_too_long": 3}
    assert stats(out)["first_places"]["record_too_long"] == ["documents:2", "documents:3", "documents:5"]


def test_inputs_and_files_are_read_in_the_order_of_their_names(filter_jsonl: Any, tmp_path: Path) -> None:
    folder = tmp_path / "many"
    (folder / "b").mkdir(parents=True)
    for name, text in (("b/2.jsonl", '{"n": 3}'), ("a.jsonl", '{"n": 2}'), ("c.txt", "no"), ("b/10.jsonl", '{"n": 2}')):
        (folder / name).write_text(text + "\n")
    (tmp_path / "one").write_text('{"n": 1}\n')
    out = filter_jsonl({"rest": folder, "first": tmp_path / "one"})
    assert (out / "data.jsonl").read_text() == '{"n": 1}\n{"n": 2}\n{"n": 3}\n'
    assert [row["input"] for row in stats(out)["inputs"]] == [
        "first",
        "rest/a.jsonl",
        "rest/b/10.jsonl",
        "rest/b/2.jsonl",
    ]


def test_a_folder_without_jsonl_is_an_error(filter_jsonl: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no file below"):
        filter_jsonl({"d": tmp_path / "empty"})


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"min_lenght": 2}, "unknown keys min_lenght"),
        ({"min_length": -1}, "config.min_length is -1"),
        ({"min_length": True}, "config.min_length is True"),
        ({"min_length": "2"}, "config.min_length is '2'"),
        ({"max_length": 1.5}, "config.max_length is 1.5"),
        ({"min_length": 3, "max_length": 2}, "config.max_length 2 is below min_length 3"),
        ({"text_field": ""}, "config.text_field is ''"),
        ({"required_fields": "id"}, "config.required_fields is 'id'"),
        ({"required_fields": ["id", 3]}, "config.required_fields[1] is 3"),
        ({"required_fields": ["id", "id"]}, "names a field twice"),
        ({"deduplicate": True}, "config.deduplicate is True"),
        ({"on_invalid": "ignore"}, "config.on_invalid is 'ignore'; allowed: fail, skip"),
        ({"max_record_bytes": 0}, "config.max_record_bytes is 0"),
    ],
)
def test_a_configuration_that_is_none_is_refused(filter_jsonl: Any, tmp_path: Path, config: Any, word: str) -> None:
    with pytest.raises(ValueError) as caught:
        filter_jsonl(write(tmp_path / "in", b""), **config)
    assert word in str(caught.value)


def test_an_empty_input_gives_an_empty_output(filter_jsonl: Any, tmp_path: Path) -> None:
    out = filter_jsonl(write(tmp_path / "in", b""))
    assert (out / "data.jsonl").read_bytes() == b""
    assert filter_jsonl.result.records == 0


def test_scratch_is_left_empty_after_success_and_failure(
    filter_jsonl: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    filter_jsonl(write(tmp_path / "in", b'{"a": 1}\n' * 3))
    with pytest.raises(ValueError):
        filter_jsonl(write(tmp_path / "in", b"{"))
    assert list(scratch.iterdir()) == []


def test_p70_digests_lie_in_plain_files_of_local_scratch_and_no_database_is_opened(
    filter_jsonl: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shared storage sees the two output files and nothing else while the filter works."""
    import tuneplane_jsonl_filter as module
    from tuneplane_jsonl_filter.dedup import Deduplicator

    scratch = tmp_path / "scratch"
    scratch.mkdir()
    seen: list[tuple[int, list[str]]] = []

    class Watched(Deduplicator):
        def __init__(self, folder: Path) -> None:
            super().__init__(folder, spill_bytes=40)

        def duplicates(self) -> bytearray:
            output = next(p for p in tmp_path.iterdir() if p.name.startswith("out-"))
            seen.append((len(list(scratch.rglob("*.part"))), [p.name for p in output.iterdir()]))
            return super().duplicates()

    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    monkeypatch.setattr(module, "Deduplicator", Watched)
    filter_jsonl(write(tmp_path / "in", b"".join(b'{"n": %d}\n' % (n % 900) for n in range(1000))))
    ((spilled, there),) = seen
    assert spilled > 200
    assert there == ["data.jsonl"]
    assert filter_jsonl.result.records == 900


def marks(digests: list[bytes], folder: Path, held: int, spill_bytes: int) -> list[bool]:
    from tuneplane_jsonl_filter.dedup import Deduplicator

    dedup = Deduplicator(folder, held=held, spill_bytes=spill_bytes)
    for digest in digests:
        dedup.add(digest)
    found = dedup.duplicates()
    assert list(folder.rglob("*.part")) == []
    return [bool(found[n >> 3] >> (n & 7) & 1) for n in range(len(digests))]


def repeats(digests: list[bytes]) -> list[bool]:
    seen: set[bytes] = set()
    out = []
    for digest in digests:
        out.append(digest in seen)
        seen.add(digest)
    return out


@pytest.mark.parametrize(("held", "spill_bytes"), [(1, 40), (3, 80), (50, 4000), (10**6, 1 << 20)])
def test_partitions_of_partitions_find_the_same_as_one_set(tmp_path: Path, held: int, spill_bytes: int) -> None:
    rng = random.Random(7)
    digests = [hashlib.sha256(str(rng.randrange(700)).encode()).digest() for _ in range(2000)]
    # Neighbours that differ in the last byte alone, and one digest many times: only full comparison tells them apart.
    digests += [b"\0" * 31 + bytes([n % 5]) for n in range(40)] + [b"\xff" * 32] * 300
    assert marks(digests, tmp_path / "parts", held, spill_bytes) == repeats(digests)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from([b'{"a":1}', b'{"a":2}', b'{"a": 1}', b'{"b":"\\n"}', b'{"c":[]}']), max_size=60))
def test_any_sequence_keeps_first_occurrences_in_order(filter_jsonl: Any, lines: list[bytes]) -> None:
    source = filter_jsonl.base / "in"
    source.write_bytes(b"".join(line + b"\n" for line in lines))
    out = filter_jsonl({"d": source})
    assert (out / "data.jsonl").read_bytes().splitlines() == list(dict.fromkeys(lines))


def test_compaction_across_buffers_leaves_the_rest_byte_for_byte(tmp_path: Path) -> None:
    from tuneplane_jsonl_filter.dedup import compact

    rng = random.Random(3)
    lines = [os.urandom(rng.randrange(1, 4000)).replace(b"\n", b" ") + b"\n" for _ in range(3000)]
    drop = {n for n in range(3000) if rng.random() < 0.4} | {0, 2999}
    path, found = tmp_path / "data", bytearray(375)
    path.write_bytes(b"".join(lines))
    for n in drop:
        found[n >> 3] |= 1 << (n & 7)
    assert compact(path, found) == len(drop)
    assert path.read_bytes() == b"".join(line for n, line in enumerate(lines) if n not in drop)
