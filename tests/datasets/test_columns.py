"""What columns mean, from config.yaml or dataset.yaml to the job; a column that is not there is refused before the queue."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hpc.errors import Refusal
from hpc.submit.engine import add_columns, engine_faults
from hpc.submit.flags import Flags, _data

SPEC = {"spec": {"framework": {"kind": "deepspeed"}}}
QA = {"input": "q", "output": "a"}


def columns(config: Any, flags: Flags = Flags(), **inputs: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, dict[str, Any]] = {"train": {"path": "/t"}, "validation": {"path": "/v"}} | inputs
    add_columns(made, flags, {"data": config})
    return {name: source["columns"] for name, source in made.items() if "columns" in source}


def test_the_config_says_what_columns_mean_and_validation_follows_the_training_rows() -> None:
    assert columns({"train": {"path": "x", "columns": QA}}) == {"train": QA, "validation": QA}
    assert columns({"train": {"columns": QA}, "validation": {"columns": {"messages": "chat"}}}) == {
        "train": QA,
        "validation": {"messages": "chat"},
    }
    assert columns({"train": {"columns": QA}, "validation": {"columns": None}}) == {"train": QA}
    assert columns({"train": "rows.jsonl"}) == {}


def test_a_data_set_s_own_mapping_counts_where_the_config_has_none() -> None:
    def declared(**roles: str) -> dict[str, Any]:
        return {"path": "/t", "files": [], "dataset": {"ref": "a/b@1", "columns": roles}}

    assert columns({}, train=declared(input="q", output="a")) == {"train": QA}
    assert columns({}, train=declared(messages="chat")) == {"train": {"messages": "chat"}}
    assert columns({}, train=declared(messages="messages")) == {}  # conversations stay whole
    assert columns({}, train=declared(prompt="prompt", completion="completion")) == {}
    assert columns({"train": {"columns": {"messages": "m"}}}, train=declared(input="q", output="a"))["train"] == {
        "messages": "m"
    }


def test_a_data_set_named_on_the_command_line_is_not_the_one_that_the_config_speaks_of() -> None:
    config = {"train": {"dataset": "a/b@1", "columns": QA}}
    assert columns(config, Flags(train_dataset="a/c@1")) == {}
    assert columns(config, Flags(train_data="part.jsonl"))["train"] == QA


def test_the_jobspec_s_grammar_does_not_know_columns() -> None:
    assert _data(Flags(), {"data": {"train": {"path": "x", "columns": QA}, "validation": "y"}}) == {
        "train": {"path": "x"},
        "validation": {"path": "y"},
    }


@pytest.mark.parametrize("wrong", [{"input": "q"}, ["q"], "q", {"messages": ""}])
def test_what_is_no_mapping_is_refused_with_its_place(wrong: Any) -> None:
    with pytest.raises(Refusal, match=r"E-DATA-005 config\.yaml: data\.train\.columns"):
        columns({"train": {"path": "x", "columns": wrong}})


def faults_of(path: Path, mapping: Mapping[str, str] = QA, kind: str = "deepspeed") -> list[tuple[str, Any, str]]:
    inputs = {"train": {"path": str(path), "files": [{"path": ""}], "columns": dict(mapping)}}
    found = engine_faults({"spec": {"framework": {"kind": kind}}}, inputs)
    return [(f.code, f.found, f.allowed) for f in found]


def test_e4_a_wrong_column_is_refused_before_the_queue_and_lists_those_that_are_there(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"q": n, "answer": "x", "id": n}) + "\n" for n in range(3)))
    assert faults_of(path) == [("E-DATA-005", "a", "answer, id, q")]
    assert faults_of(path, {"input": "q", "output": "answer"}) == []
    with path.open("a") as stream:
        stream.write(json.dumps({"a": "late"}) + "\n")
    assert faults_of(path) == []


def test_of_a_long_file_the_job_is_left_to_judge_what_the_beginning_does_not_tell(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"q": 1}\n' * 1001)
    assert faults_of(path) == []


def test_e4_columns_of_parquet_are_those_of_its_schema(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"q": ["x"], "b": ["y"]}), path)
    assert faults_of(path) == [("E-DATA-005", "a", "b, q")]
    path.write_bytes(b"PAR1")
    assert [code for code, _, _ in faults_of(path)] == ["E-DATA-003"]


def test_a_recipe_that_maps_no_columns_refuses_them(tmp_path: Path) -> None:
    assert [code for code, _, _ in faults_of(tmp_path / "x.jsonl", kind="custom")] == ["E-DATA-005"]
