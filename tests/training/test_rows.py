from __future__ import annotations

import json
from pathlib import Path

import pytest
from tuneplane.training.refusals import Refused
from tuneplane.training.rows import MAX_FAULTS, parse_row, read_rows

USER = {"role": "user", "content": "q"}
ANSWER = {"role": "assistant", "content": "a"}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([], "not an object"),
        ({"text": "x"}, "needs either `messages` or both"),
        ({"messages": [USER, ANSWER], "prompt": "x", "completion": "y"}, "needs either"),
        ({"messages": []}, "`messages` is not a list of messages"),
        ({"messages": [USER]}, "does not end with an answer"),
        ({"messages": [USER, {"role": "assistant", "content": ""}]}, "does not end with an answer"),
        ({"messages": [{"content": "q"}, ANSWER]}, r"`messages\[0\]` is not a message with a role"),
        ({"messages": [{"role": "user", "content": None}, ANSWER]}, r"`messages\[0\].content` is not text"),
        ({"prompt": "x"}, "must both be text"),
        ({"prompt": "x", "completion": ""}, "`completion` is empty"),
        ({"prompt": "x", "completion": ["y"]}, "must both be text"),
        ({"prompt": [USER], "completion": [ANSWER, ANSWER]}, "more than one message"),
        ({"prompt": [USER], "completion": [USER]}, "`completion` does not end"),
    ],
)
def test_a_line_that_is_no_row_is_refused_with_the_reason(value: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_row(value, 1)


def test_the_three_forms_of_a_row() -> None:
    assert parse_row({"messages": [USER, ANSWER], "id": 7}, 3).messages == (USER, ANSWER)
    assert parse_row({"prompt": [USER], "completion": [ANSWER]}, 3).messages == (USER, ANSWER)
    plain = parse_row({"prompt": "", "completion": "y"}, 3)
    assert (plain.line, plain.prompt, plain.completion, plain.messages) == (3, "", "y", ())


def test_faulty_lines_are_named_together_and_empty_lines_are_passed_over(tmp_path: Path) -> None:
    good = json.dumps({"prompt": "a", "completion": "b"})
    path = tmp_path / "train.jsonl"
    path.write_text(f'{good}\n\n{{"prompt": 1}}\n{good}\nnot json\n')
    with pytest.raises(Refused) as caught:
        list(read_rows(path))
    assert [(r.code, r.field) for r in caught.value.reasons] == [
        ("E-TRAIN-021", "train.jsonl:3"),
        ("E-TRAIN-021", "train.jsonl:5"),
    ]
    path.write_text(f"{good}\n\n{good}")
    assert [r.line for r in read_rows(path)] == [1, 3]


def test_a_file_of_another_kind_is_not_named_line_by_line_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text("no\n" * 1000)
    with pytest.raises(Refused) as caught:
        list(read_rows(path))
    assert len(caught.value.reasons) == MAX_FAULTS


def test_a_missing_file_is_refused_by_path(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"E-TRAIN-020 .*none\.jsonl: cannot be read"):
        list(read_rows(tmp_path / "none.jsonl"))
