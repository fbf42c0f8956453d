"""Rows with other columns: mapped, counted, and never trained on where they are evaluated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hpc.data.mapping import Columns, Counts, Seen, map_evaluation, map_training, pair_of, parse_columns
from hpc.errors import Refusal

QA = Columns("q", "a")
Row = dict[str, Any]


def test_e4_the_counts_of_a_small_set() -> None:
    """Five records, one without an output, one repeated evaluation input, one that is trained on and evaluated."""
    seen, held_out, trained = Seen(), Counts(), Counts()
    validation = [{"q": "Hi  there", "a": "x"}, {"q": "hi there ", "a": "y"}]
    train: list[Row] = [
        {"q": "one", "a": "1"}, {"q": "two"}, {"q": "HI THERE", "a": "z"}, {"q": 3, "a": True}, {"q": "one", "a": "again"},
    ]  # fmt: skip
    assert list(map_evaluation(validation, QA, held_out, seen)) == [{"prompt": "Hi  there", "completion": "x"}]
    assert list(map_training(train, QA, trained, seen)) == [
        {"prompt": "one", "completion": "1"}, {"prompt": "3", "completion": "true"}, {"prompt": "one", "completion": "again"},
    ]  # fmt: skip
    assert held_out == Counts(records=2, kept=1, dropped_duplicate_inputs=1)
    assert trained == Counts(records=5, kept=3, skipped_missing_fields=1, dropped_eval_overlap=1)


def test_e4_a_wrong_column_lists_what_there_is() -> None:
    with pytest.raises(Refusal) as caught:
        list(map_training([{"question": "x", "answer": "y", "id": 1}], QA, Counts(), Seen()))
    assert (caught.value.code, caught.value.found, caught.value.allowed) == ("E-DATA-005", "a", "answer, id, question")


def test_a_split_of_which_nothing_is_left_is_refused() -> None:
    for rows in ([], [{"q": " ", "a": "x"}]):
        with pytest.raises(Refusal, match="E-DATA-002"):
            list(map_training(rows, QA, Counts(), Seen()))


def test_two_evaluation_splits_may_share_an_input_and_training_loses_both() -> None:
    seen, rows = Seen(), [{"q": "x", "a": "1"}]
    assert len(list(map_evaluation(rows, QA, Counts(), seen))) == 1
    assert len(list(map_evaluation(rows, QA, Counts(), seen, split="test"))) == 1
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (
            [
                {"role": "system", "content": "s"},
                {"role": "user", "content": " q "},
                {"role": "assistant", "content": "a"},
            ],
            ("q", "a"),
        ),
        (
            [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}, {"role": "user", "content": "r"}],
            ("q", "a"),
        ),
        ([{"role": "user", "content": "q"}, {"role": "user", "content": "r"}], None),
        ([{"role": "user", "content": "q"}], None),
        ([{"role": "user", "content": ""}, {"role": "assistant", "content": "a"}], None),
        ([1, None], None),
        ("text", None),
        (None, None),
    ],
)
def test_of_a_conversation_the_first_question_and_its_answer_are_taken(
    value: Any, wanted: tuple[str, str] | None
) -> None:
    assert pair_of({"chat": value}, Columns(messages="chat")) == wanted


@pytest.mark.parametrize(
    "value",
    [None, [], {}, {"input": "a"}, {"input": "a", "output": "b", "messages": "c"}, {"messages": " "}, {"messages": 3}],
)
def test_what_is_no_mapping_is_refused(value: Any) -> None:
    with pytest.raises(Refusal, match="E-DATA-005"):
        parse_columns(value, "f")


def test_memory_does_not_grow_with_the_training_rows() -> None:
    def endless() -> Iterator[Row]:
        for number in range(20_000):
            yield {"q": f"question {number}", "a": "x"}

    seen = Seen()
    assert sum(1 for _ in map_training(endless(), QA, Counts(), seen)) == 20_000
    assert len(seen) == 0
    assert parse_columns({"messages": "chat"}) == Columns(messages="chat")
