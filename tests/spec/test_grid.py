"""The axes of a sweep: values, ranges, and draws that come out the same again."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc.errors import Refusal, Refusals
from hpc.spec.grid import drawn, every, parse_axes


def test_every_combination_the_last_axis_fastest() -> None:
    rows = every(parse_axes(["learning_rate=1e-5,2e-5", "seed=0,1", "over_long=skip"]))
    assert rows == [
        {"learning_rate": 1e-5, "seed": 0, "over_long": "skip"},
        {"learning_rate": 1e-5, "seed": 1, "over_long": "skip"},
        {"learning_rate": 2e-5, "seed": 0, "over_long": "skip"},
        {"learning_rate": 2e-5, "seed": 1, "over_long": "skip"},
    ]


@pytest.mark.parametrize(
    ("entries", "codes"),
    [
        (["lr"], ["E-SWEEP-001"]),
        (["lr=", "=1"], ["E-SWEEP-001", "E-SWEEP-001"]),
        (["lr=1,,2"], ["E-SWEEP-001"]),
        (["lr=1,1"], ["E-SWEEP-002"]),
        (["lr=1", "lr=2"], ["E-SWEEP-002"]),
        (["lr=3..1"], ["E-SWEEP-001"]),
        (["lr=log:0..1"], ["E-SWEEP-001"]),
        (["lr=log:1,2"], ["E-SWEEP-001"]),
        (["lr=a..b"], ["E-SWEEP-001"]),
        (["lr=nan..1"], ["E-SWEEP-001"]),
    ],
)
def test_what_is_no_axis_is_refused_all_at_once(entries: list[str], codes: list[str]) -> None:
    with pytest.raises(Refusals) as caught:
        parse_axes(entries)
    assert [f.code for f in caught.value.items] == codes


def test_one_and_true_are_two_values() -> None:
    assert len(every(parse_axes(["x=1,true,1.5"]))) == 3


def test_a_range_is_for_drawing_only() -> None:
    with pytest.raises(Refusal, match="a range has no list of values") as caught:
        every(parse_axes(["lr=1e-5..1e-3"]))
    assert caught.value.code == "E-SWEEP-003"


@given(st.integers(0, 2**32), st.integers(1, 40))
def test_draws_are_different_in_range_and_the_same_again(seed: int, count: int) -> None:
    axes = parse_axes(["lr=log:1e-5..1e-3", "k=1..64", "decay=0..0.1", "mode=a,b"])
    rows = drawn(axes, count, seed)
    assert rows == drawn(axes, count, seed)
    assert len({tuple(r.values()) for r in rows}) == count
    for row in rows:
        assert 1e-5 <= row["lr"] <= 1e-3
        assert type(row["k"]) is int
        assert 1 <= row["k"] <= 64
        assert 0 <= row["decay"] <= 0.1
        assert row["mode"] in ("a", "b")


def test_a_range_that_is_even_in_the_exponent_has_as_many_below_its_middle_as_above() -> None:
    rows = drawn(parse_axes(["lr=log:1e-6..1e-2"]), 400, 3)
    below = sum(math.log10(r["lr"]) < -4 for r in rows)
    assert 170 <= below <= 230


def test_more_draws_than_there_are_variants_are_refused_with_the_number() -> None:
    with pytest.raises(Refusal) as caught:
        drawn(parse_axes(["a=1,2", "b=1..2"]), 5, 0)
    assert (caught.value.code, caught.value.allowed) == ("E-SWEEP-004", "4")


def test_ten_thousand_and_one_are_too_many() -> None:
    axes = parse_axes([f"a={','.join(map(str, range(101)))}", f"b={','.join(map(str, range(100)))}"])
    with pytest.raises(Refusal) as caught:
        every(axes)
    assert (caught.value.code, caught.value.found) == ("E-SWEEP-004", 10100)
