"""The rows of an input: from several files, JSONL and Parquet, with mapped columns, and never those that are measured on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sources import file_source
from tuneplane.contract.datarows import BATCH
from tuneplane.contract.mapping import parse_columns
from tuneplane.training.chat import Encoder
from tuneplane.training.place import Launch, Policies
from tuneplane.training.refusals import Refused
from tuneplane.training.rows import read_examples
from tuneplane.training.source import Source, raw_rows, source_of
from tuneplane.training.tokens import ensure, open_tokens

TOKENIZER = "sha256:" + "0" * 64
Row = dict[str, Any]


def talk(question: str, answer: str, **more: Any) -> Row:
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": [turn | more for turn in turns]}


def jsonl(path: Path, rows: Sequence[Row]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def parquet(path: Path, rows: Sequence[Row], codec: str = "zstd") -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    names = dict.fromkeys(name for row in rows for name in row)
    table = pa.table({name: [row.get(name) for row in rows] for name in names})
    pq.write_table(table, path, compression=codec)
    return path


def source(inputs: dict[str, Any], name: str = "train") -> Source:
    """The input as a job would find it; its paths are absolute."""

    class Here:
        work_dir = Path("/")

    policies = Policies(1, 1, 1, 1, 1)
    found = source_of(Launch({}, None, inputs, 0, policies), Here(), name)  # type: ignore[arg-type]
    assert found is not None
    return found


@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "brotli", "zstd", "lz4"])
def test_parquet_gives_the_rows_that_jsonl_gives_whatever_its_codec(tmp_path: Path, codec: str) -> None:
    rows = [talk(f"question {n}", f"answer {n}", name=None if n % 2 else "x") for n in range(7)]
    left = [{k: v for k, v in m.items() if v is not None} for row in rows for m in row["messages"]]
    one = file_source(jsonl(tmp_path / "rows.jsonl", [{"messages": left[2 * n : 2 * n + 2]} for n in range(7)]))
    other = file_source(parquet(tmp_path / "rows.parquet", [*rows], codec))
    found = [[(e.line, e.rows[0].messages) for e in read_examples(s, "answer")] for s in (one, other)]
    assert found[0] == found[1]
    assert len(found[0]) == 7


def test_a_column_that_holds_nothing_in_a_row_is_not_there(tmp_path: Path) -> None:
    rows = [talk("q", "a"), {"prompt": "q", "completion": "a"}]
    path = parquet(tmp_path / "rows.parquet", rows)
    first, second = read_examples(file_source(path), "answer")
    assert (len(first.rows[0].messages), second.rows[0].prompt) == (2, "q")


def test_several_files_are_read_in_order_of_name_and_their_lines_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    parquet(folder / "train-00001.parquet", [talk("two", "2"), {"messages": []}])
    jsonl(folder / "train-00000.jsonl", [talk("one", "1")])
    jsonl(folder / "train-00002.jsonl", [talk("three", "3")])
    jsonl(folder / "test.jsonl", [talk("held out", "0")])
    found = source({"train": {"path": str(folder)}, "validation": {"path": str(folder)}})
    assert [p.name for p in found.files] == ["train-00000.jsonl", "train-00001.parquet", "train-00002.jsonl"]
    with pytest.raises(Refused, match=r"E-TRAIN-021 train-00001\.parquet:2: `messages` is not a list"):
        list(read_examples(found, "answer"))
    parquet(folder / "train-00001.parquet", [talk("two", "2")])
    questions = [e.rows[0].messages[0]["content"] for e in read_examples(found, "answer")]
    assert questions == ["one", "two", "three"]
    held_out = source({"train": {"path": str(folder)}, "validation": {"path": str(folder)}}, "validation")
    assert [p.name for p in held_out.files] == ["test.jsonl"]


def test_of_a_data_set_only_the_files_of_the_split_are_read(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl", "c.jsonl"):
        jsonl(tmp_path / name, [talk(name, "x")])
    files = [{"path": name, "size": 1, "sha256": f"sha256:{name[0] * 64}"} for name in ("c.jsonl", "a.jsonl")]
    found = source({"train": {"path": str(tmp_path), "files": files, "dataset": {"ref": "alice/x@1"}}})
    assert [p.name for p in found.files] == ["a.jsonl", "c.jsonl"]


def test_content_is_told_apart_by_what_was_recorded_and_not_read_again(tmp_path: Path) -> None:
    path = str(tmp_path / "no-such-file.jsonl")
    row = {"path": "", "size": 3, "sha256": "sha256:" + "a" * 64}
    assert source({"train": {"path": path, "files": [row]}}).digest == row["sha256"]
    dear = [
        source({"train": {"path": path, "files": [{"path": "", "size": 3, "mtime_ns": t, "uid": 1}]}}) for t in (1, 2)
    ]
    assert dear[0].digest != dear[1].digest


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"E-TRAIN-020 .*no \.jsonl and no \.parquet file"):
        source({"train": {"path": str(tmp_path)}})


def test_a_file_that_is_no_parquet_is_refused_under_the_data_s_own_code(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    path.write_bytes(b"PAR1 no")
    with pytest.raises(Refused, match=r"E-DATA-003 rows\.parquet: is not Parquet"):
        list(raw_rows(file_source(path)))


def test_parquet_is_read_in_bounded_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow.parquet as pq

    sizes = []
    whole = pq.ParquetFile.iter_batches

    def counted(self: Any, *args: Any, **more: Any) -> Any:
        for batch in whole(self, *args, **more):
            sizes.append(len(batch))
            yield batch

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counted)
    path = parquet(tmp_path / "rows.parquet", [{"prompt": "q", "completion": str(n)} for n in range(BATCH * 2 + 5)])
    stream = raw_rows(file_source(path))
    assert next(stream).value == {"prompt": "q", "completion": "0"}
    assert sizes == [BATCH]  # nothing is read ahead of who asks
    assert sum(1 for _ in stream) == BATCH * 2 + 4
    assert max(sizes) == BATCH


TRAIN = [
    {"q": "one", "a": "1"},
    {"q": "two"},
    {"q": "HI THERE", "a": "z"},
    {"q": 3, "a": True},
    {"q": "one", "a": "again"},
]
HELD_OUT = [{"q": "Hi  there", "a": "x"}, {"q": "hi there ", "a": "y"}]


@pytest.mark.parametrize("write", [jsonl, parquet])
def test_e4_mapped_rows_reach_the_tokens_and_the_record_says_what_did_not(
    tmp_path: Path, tokenizer: Any, write: Any
) -> None:
    suffix = write.__name__
    train = [r | {"q": str(r["q"]), "a": None if "a" not in r else str(r["a"])} for r in TRAIN]
    columns = {"columns": {"input": "q", "output": "a"}}
    inputs = {
        "train": {"path": str(write(tmp_path / f"train.{suffix}", train)), **columns},
        "validation": {"path": str(write(tmp_path / f"held.{suffix}", HELD_OUT)), **columns},
    }
    held_out = source(inputs, "validation")
    encoder = Encoder(tokenizer, 200, "error")
    made = open_tokens(ensure(tmp_path / "cache", source(inputs), TOKENIZER, encoder, held_out=held_out))
    assert made.meta["columns"] == {
        "records": 5, "kept": 3, "skipped_missing_fields": 1, "dropped_duplicate_inputs": 0, "dropped_eval_overlap": 1,
    }  # fmt: skip
    texts = [tokenizer.decode(made.row(i)[0]) for i in range(3)]
    assert ["one" in t or "3" in t for t in texts] == [True] * 3
    assert "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\nagain<|im_end|>" in texts[2]
    measured = open_tokens(ensure(tmp_path / "cache", held_out, TOKENIZER, encoder))
    assert measured.meta["columns"]["dropped_duplicate_inputs"] == 1
    assert len(measured) == 1


def test_e4_other_evaluation_rows_make_other_training_tokens(tmp_path: Path, tokenizer: Any) -> None:
    columns = parse_columns({"input": "q", "output": "a"})
    files = {name: jsonl(tmp_path / f"{name}.jsonl", [{"q": name, "a": "1"}, {"q": "x", "a": "2"}]) for name in "abc"}
    names = ("train", "validation", "validation")
    train, one, other = (
        Source(name, (p,), f"sha256:{n * 64}", columns) for name, (n, p) in zip(names, files.items(), strict=True)
    )
    encoder = Encoder(tokenizer, 200, "error")
    made = [ensure(tmp_path / "cache", train, TOKENIZER, encoder, held_out=h) for h in (one, other, None)]
    assert len(set(made)) == 3
    assert [len(open_tokens(m)) for m in made] == [1, 1, 2]


def test_e4_a_wrong_column_lists_those_that_are_there(tmp_path: Path, tokenizer: Any) -> None:
    path = jsonl(tmp_path / "rows.jsonl", [{"question": "q", "answer": "a"}])
    wrong = source({"train": {"path": str(path), "columns": {"input": "q", "output": "answer"}}})
    with pytest.raises(Refused) as caught:
        ensure(tmp_path / "cache", wrong, TOKENIZER, Encoder(tokenizer, 200, "error"))
    (reason,) = caught.value.reasons
    assert (reason.code, reason.found, reason.allowed) == ("E-DATA-005", "q", "answer, question")
    assert list((tmp_path / "cache").iterdir()) == []
    with pytest.raises(Refused, match=r"E-DATA-005 data\.train\.columns"):
        source({"train": {"path": str(path), "columns": {"input": "q"}}})
