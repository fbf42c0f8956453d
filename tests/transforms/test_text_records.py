"""text-records: every chunk is where it says, the ids are stable, and nothing is lost between chunks."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


def rows(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "records.jsonl").read_bytes().splitlines()]


def cut(cut_text: Any, text: str, **config: Any) -> list[tuple[int, int, str]]:
    path = cut_text.base / "in.txt"
    path.write_bytes(text.encode())
    found = rows(cut_text({"d": path}, **config))
    assert cut_text.result.records == len(found)
    return [(row["start"], row["end"], row["text"]) for row in found]


@pytest.mark.parametrize(
    ("text", "chunks"),
    [
        ("", []),
        ("a", [(0, 1, "a")]),
        ("abcd", [(0, 4, "abcd")]),
        ("abcde", [(0, 4, "abcd"), (3, 5, "de")]),
        ("abcdefg", [(0, 4, "abcd"), (3, 7, "defg")]),
        ("abcdefgh", [(0, 4, "abcd"), (3, 7, "defg"), (6, 8, "gh")]),
        ("aü€😀\r\n\n", [(0, 4, "aü€😀"), (3, 7, "😀\r\n\n")]),
        ("\ufeffabcde", [(1, 5, "abcd"), (4, 6, "de")]),
        ("\ufeff", []),
    ],
)
def test_chunks_overlap_and_end_with_the_file(cut_text: Any, text: str, chunks: Any) -> None:
    assert cut(cut_text, text, chunk_chars=4, overlap_chars=1) == chunks


def test_the_id_is_a_digest_of_path_place_and_text(cut_text: Any, tmp_path: Path) -> None:
    (tmp_path / "docs/sub").mkdir(parents=True)
    (tmp_path / "docs/sub/x.md").write_text("ä\n")
    (row,) = rows(cut_text({"handbook": tmp_path / "docs"}))
    assert row == {
        "id": sha256('["handbook/sub/x.md",0,2,"ä\\n"]'.encode()).hexdigest(),
        "source": "handbook/sub/x.md", "start": 0, "end": 2, "text": "ä\n",
    }  # fmt: skip


def test_the_same_inputs_elsewhere_give_the_same_bytes(cut_text: Any, tmp_path: Path) -> None:
    made = []
    for name in ("one", "other"):
        folder = tmp_path / name / "docs"
        folder.mkdir(parents=True)
        for file in ("b.md", "a.txt") if name == "one" else ("a.txt", "b.md"):
            (folder / file).write_text(f"{file} " * 900)
        out = cut_text({"d": folder}, chunk_chars=100, overlap_chars=10)
        made.append([(out / file).read_bytes() for file in ("records.jsonl", "stats.json")])
    assert made[0] == made[1]
    sources = [row["source"] for row in rows(out)]
    assert sources == sorted(sources)


def test_a_folder_gives_its_text_files_and_no_hidden_ones(cut_text: Any, tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    for name in ("a.TXT", "b.markdown", "c.py", ".hidden.md", ".git/x.md", "sub/d.md"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    assert [row["source"] for row in rows(cut_text({"d": folder}))] == ["d/a.TXT", "d/b.markdown", "d/sub/d.md"]
    assert [row["source"] for row in rows(cut_text({"d": folder}, suffixes=[".PY"]))] == ["d/c.py"]
    assert [row["source"] for row in rows(cut_text({"d": folder / "c.py"}))] == ["d/c.py"]


def test_a_folder_without_text_is_an_error(cut_text: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"d: no file below .* ends in \.txt, \.md, \.markdown"):
        cut_text({"d": tmp_path / "empty"})


@pytest.mark.parametrize("before", [0, 1, 999, (1 << 20) - 1, 1 << 20, (1 << 20) + 1])
@pytest.mark.parametrize("bad", [b"\xff", b"\xe4\xb8", b"\xf0\x9f\x98 ", b"\xed\xa0\x80"])
def test_bad_utf8_fails_with_file_and_offset(cut_text: Any, tmp_path: Path, before: int, bad: bytes) -> None:
    path = tmp_path / "bad.txt"
    path.write_bytes(b"x" * before + bad)
    with pytest.raises(ValueError) as caught:
        cut_text({"d": path})
    assert str(caught.value).startswith(f"d/bad.txt: not UTF-8 at byte {before}: ")


def test_skipped_files_leave_no_record_and_are_named(cut_text: Any, tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "a.txt").write_text("good a")
    (folder / "b.txt").write_bytes(b"x" * (3 << 20) + b"\xff")
    (folder / "c.txt").write_text("good c")
    out = cut_text({"d": folder}, on_invalid="skip")
    assert [row["text"] for row in rows(out)] == ["good a", "good c"]
    stats = json.loads((out / "stats.json").read_text())
    assert [row["source"] for row in stats["skipped"]] == ["d/b.txt"]
    assert f"byte {3 << 20}" in stats["skipped"][0]["reason"]
    assert stats["records"] == 2
    assert stats["files"][0] == {"source": "d/a.txt", "characters": 6, "records": 1}


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"chunk_size": 5}, "unknown keys chunk_size"),
        ({"chunk_chars": 0}, "config.chunk_chars is 0"),
        ({"chunk_chars": "9"}, "config.chunk_chars is '9'"),
        ({"overlap_chars": -1}, "config.overlap_chars is -1"),
        ({"overlap_chars": True}, "config.overlap_chars is True"),
        ({"chunk_chars": 10, "overlap_chars": 10}, "less than chunk_chars, 10"),
        ({"chunk_chars": 100}, "config.overlap_chars is 200"),
        ({"suffixes": []}, "config.suffixes is []"),
        ({"suffixes": ["txt"]}, "config.suffixes is ['txt']"),
        ({"on_invalid": "warn"}, "config.on_invalid is 'warn'; allowed: fail, skip"),
    ],
)
def test_a_configuration_that_is_none_is_refused(cut_text: Any, tmp_path: Path, config: Any, word: str) -> None:
    (tmp_path / "in.txt").write_text("x")
    with pytest.raises(ValueError) as caught:
        cut_text({"d": tmp_path / "in.txt"}, **config)
    assert word in str(caught.value)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=60), st.integers(1, 12), st.data())
def test_every_chunk_is_the_files_own_text_and_together_they_are_all_of_it(
    cut_text: Any, text: str, size: int, data: st.DataObject
) -> None:
    text = text.lstrip("\ufeff")
    overlap = data.draw(st.integers(0, size - 1))
    chunks = cut(cut_text, text, chunk_chars=size, overlap_chars=overlap)
    assert all(text[start:end] == piece for start, end, piece in chunks)
    assert "".join(piece if n == 0 else piece[overlap:] for n, (_, _, piece) in enumerate(chunks)) == text
    assert all(len(piece) == size for _, _, piece in chunks[:-1])


def test_a_long_file_is_read_in_pieces(cut_text: Any) -> None:
    text = "".join(chr(97 + n % 26) if n % 7 else "ü" for n in range(1_500_000))
    chunks = cut(cut_text, text, chunk_chars=70_000, overlap_chars=1_000)
    assert chunks[0][2] == text[:70_000]
    assert chunks[-1][1] == len(text)
    assert all(text[start:end] == piece for start, end, piece in chunks)
