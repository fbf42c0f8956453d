"""Rows with other columns: mapped, counted, and never trained on where they are evaluated."""

from __future__ import annotations

from typing import Any

import pytest
from tuneplane.contract.datarows import DataFault
from tuneplane.contract.mapping import (
    Columns,
    Counts,
    Mapper,
    Seen,
    map_row,
    parse_columns,
    question_of,
    refuse_missing,
)

QA = Columns({"input": "q", "output": "a"})
Row = dict[str, Any]


def talk(question: str, answer: str, *before: str) -> Row:
    return {
        "messages": [
            *({"role": "system", "content": text} for text in before),
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
        ]
    }


def taken(mapper: Mapper, rows: list[Row]) -> list[Row]:
    return [found for row in rows if (found := mapper.take(row)) is not None]


def test_e4_the_counts_of_a_small_set() -> None:
    """Five records, one without an output, one repeated evaluation input, one that is trained on and evaluated."""
    seen = Seen()
    held_out = Mapper(QA, seen, split="validation", evaluates=True)
    trained = Mapper(QA, seen, split="train", evaluates=False)
    validation = [{"q": "Hi  there", "a": "x"}, {"q": "hi there ", "a": "y"}]
    train: list[Row] = [
        {"q": "one", "a": "1"}, {"q": "two"}, {"q": "HI THERE", "a": "z"}, {"q": 3, "a": True}, {"q": "one", "a": "again"},
    ]  # fmt: skip
    assert taken(held_out, validation) == [talk("Hi  there", "x")]
    assert taken(trained, train) == [talk("one", "1"), talk("3", "true"), talk("one", "again")]
    assert held_out.finish() == Counts(records=2, kept=1, dropped_duplicate_inputs=1)
    assert trained.finish() == Counts(records=5, kept=3, skipped_missing_fields=1, dropped_eval_overlap=1)


def test_e4_a_wrong_column_lists_what_there_is() -> None:
    mapper = Mapper(QA, Seen(), split="train", evaluates=False)
    mapper.take({"question": "x", "answer": "y", "id": 1})
    with pytest.raises(DataFault) as caught:
        mapper.finish()
    assert (caught.value.code, caught.value.found, caught.value.allowed) == ("E-DATA-005", "a", "answer, id, question")
    with pytest.raises(DataFault) as caught:
        refuse_missing(QA, ["question", "id", "a"], "train")
    assert (caught.value.code, caught.value.found, caught.value.allowed) == ("E-DATA-005", "q", "a, id, question")
    refuse_missing(QA, ["q", "a", "b"], "train")


def test_a_split_of_which_nothing_is_left_is_refused() -> None:
    for rows in ([], [{"q": " ", "a": "x"}]):
        mapper = Mapper(QA, Seen(), split="train", evaluates=False)
        assert taken(mapper, rows) == []
        with pytest.raises(DataFault, match="E-DATA-002"):
            mapper.finish()


def test_two_evaluation_splits_may_share_an_input_and_training_loses_both() -> None:
    seen, rows = Seen(), [{"q": "x", "a": "1"}]
    for split in ("validation", "test"):
        assert len(taken(Mapper(QA, seen, split=split, evaluates=True), rows)) == 1
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (talk(" q ", "a", "s")["messages"], talk("q", "a", "s")),
        ([*talk("q", "a")["messages"], {"role": "user", "content": "r"}], talk("q", "a")),
        ([{"role": "user", "content": "q"}, {"role": "user", "content": "r"}], None),
        ([{"role": "user", "content": "q"}], None),
        (talk("", "a")["messages"], None),
        ([1, None], None),
        ("text", None),
        (None, None),
    ],
)
def test_of_a_conversation_the_first_question_and_its_answer_are_taken(value: Any, wanted: Row | None) -> None:
    assert map_row({"chat": value}, Columns({"messages": "chat"})) == wanted


def test_columns_that_are_only_renamed_keep_those_beside_them() -> None:
    columns = parse_columns({"prompt": "question", "chosen": "good", "rejected": "bad"})
    row = {"question": "q", "good": "a", "bad": "b", "id": 3, "prompt": "another"}
    assert map_row(row, columns) == {"prompt": "q", "chosen": "a", "rejected": "b", "id": 3}
    assert map_row({**row, "bad": None}, columns) is None
    beside = {"text": "q", "done": "a", "label": True, "messages": []}
    found = map_row(beside, parse_columns({"prompt": "text", "completion": "done"}))
    assert found == {"prompt": "q", "completion": "a", "label": True}


def test_what_a_row_asks() -> None:
    assert question_of(talk("q", "a", "s")) == "q"
    assert question_of({"prompt": "q ", "completion": "a"}) == "q"
    assert question_of({"prompt": [{"role": "user", "content": "q"}], "completion": "a"}) == "q"
    assert question_of({"chosen": talk("q", "a")["messages"], "rejected": talk("q", "b")["messages"]}) == "q"
    assert question_of({"text": "x"}) == ""


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"input": "a"},
        {"input": "a", "output": "b", "messages": "c"},
        {"messages": " "},
        {"messages": 3},
        {"prompt": "a", "output": "b"},
    ],
)
def test_what_is_no_mapping_is_refused(value: Any) -> None:
    with pytest.raises(DataFault, match="E-DATA-005"):
        parse_columns(value, "f")


def test_memory_does_not_grow_with_the_training_rows() -> None:
    seen = Seen()
    mapper = Mapper(QA, seen, split="train", evaluates=False)
    assert sum(mapper.take({"q": f"question {n}", "a": "x"}) is not None for n in range(20_000)) == 20_000
    assert len(seen) == 0
