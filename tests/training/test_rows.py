from __future__ import annotations

import json
from pathlib import Path

import pytest
from sources import file_source
from tuneplane.training.refusals import Refused
from tuneplane.training.rows import FORMS, MAX_FAULTS, parse_row, read_examples, read_rows

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


@pytest.mark.parametrize(
    "value",
    [
        {"prompt": [USER], "chosen": [ANSWER], "rejected": [{**ANSWER, "content": "b"}]},
        {"chosen": [USER, ANSWER], "rejected": [USER, {**ANSWER, "content": "b"}]},
    ],
    ids=["prompt", "shared-beginning"],
)
def test_a_preference_of_conversations(value: dict[str, object]) -> None:
    example = FORMS["preference"](value, 4)
    assert [row.messages for row in example.rows] == [(USER, ANSWER), (USER, {**ANSWER, "content": "b"})]
    assert example.line == 4


def test_a_preference_of_texts() -> None:
    example = FORMS["preference"]({"prompt": "q", "chosen": "a", "rejected": "b"}, 1)
    assert [(row.prompt, row.completion) for row in example.rows] == [("q", "a"), ("q", "b")]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([], "not an object"),
        ({"prompt": "q", "chosen": "a"}, "needs both `chosen` and `rejected`"),
        ({"prompt": "q", "chosen": "a", "rejected": "a"}, "are equal"),
        ({"prompt": "q", "chosen": "a", "rejected": ""}, "`rejected` is empty"),
        ({"prompt": "q", "chosen": "a", "rejected": [ANSWER]}, "`prompt` and `rejected` must both be text"),
        ({"prompt": "q", "chosen": [USER, ANSWER], "rejected": [USER, ANSWER]}, "must both be text, or both be lists"),
        ({"chosen": "a", "rejected": "b"}, "`chosen` is not a list of messages"),
        ({"chosen": [ANSWER], "rejected": [ANSWER]}, "`chosen` holds no question"),
        ({"chosen": [USER, ANSWER], "rejected": [{**USER, "content": "?"}, ANSWER]}, "answer different prompts"),
        ({"prompt": [USER], "chosen": [USER, ANSWER], "rejected": [ANSWER]}, "`chosen` holds more than one message"),
    ],
)
def test_a_line_that_is_no_preference_is_refused_with_the_reason(value: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        FORMS["preference"](value, 1)


def test_judged_answers_have_a_label_that_is_true_or_false() -> None:
    for value in ({"prompt": "q", "completion": "a"}, {"messages": [USER, ANSWER]}):
        assert [FORMS["judged"]({**value, "label": good}, 1).good for good in (True, False)] == [True, False]
        for label in (1, "yes", None):
            with pytest.raises(ValueError, match="`label` is neither true nor false"):
                FORMS["judged"]({**value, "label": label}, 1)


def test_prompts_have_no_answer_yet() -> None:
    (chat,) = FORMS["prompt"]({"prompt": [USER], "answer": "a"}, 3).rows
    (text,) = FORMS["prompt"]({"prompt": "q"}, 4).rows
    assert (chat.messages, chat.open, chat.line) == ((USER,), True, 3)
    assert (text.prompt, text.completion, text.open, text.line) == ("q", "", True, 4)
    for value in ([], {"prompt": ""}, {"messages": [USER]}, {"prompt": []}, {"prompt": [{"role": "user"}]}):
        with pytest.raises(ValueError, match=r"not an object|neither text nor a list|not a list|is not text"):
            FORMS["prompt"](value, 1)


def test_a_line_of_another_form_is_named(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"prompt": "q", "chosen": "a", "rejected": "b"}\n{"prompt": "q", "completion": "a"}\n')
    with pytest.raises(Refused, match=r"E-TRAIN-021 pairs\.jsonl:2: needs both `chosen` and `rejected`"):
        list(read_examples(file_source(path), "preference"))
