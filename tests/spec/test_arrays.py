"""Job arrays: indices, ranges, steps and a limit; the highest index is what a site caps."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc.errors import Refusal
from hpc.spec.arrays import parse_array


@pytest.mark.parametrize(
    ("text", "indices", "limit"),
    [
        ("5", [5], 0),
        ("0-3", [0, 1, 2, 3], 0),
        ("1,3,5-7", [1, 3, 5, 6, 7], 0),
        ("0-15:4", [0, 4, 8, 12], 0),
        ("0-15%4", list(range(16)), 4),
        ("8,1-2", [1, 2, 8], 0),
        ("0-10:2,1-11:2", [0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11], 0),
    ],
)
def test_forms(text: str, indices: list[int], limit: int) -> None:
    array = parse_array(text)
    assert list(array) == indices
    assert array.count == len(indices)
    assert array.limit == limit


def test_p13_the_highest_index_is_told_not_the_count() -> None:
    array = parse_array("1000,2000")
    assert (array.count, array.highest) == (2, 2000)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not an array specification"),
        ("a", "not an array specification"),
        ("1-", "not an array specification"),
        ("5-1", "range 5-1 runs backwards"),
        ("0-4000001", "index 4000001 is above 4000000"),
        ("1,1", "index 1 is named twice"),
        ("0-10,5", "index 5 is named twice"),
        ("0-10:2,3-9:3", "index 6 is named twice"),
        ("0-3%0", "not an array's task limit"),
        ("0-3%", "not an array's task limit"),
        ("0-3%1%2", "not an array's task limit"),
        ("0-3:0", "not an array specification"),
        ("1\n", "not an array specification"),
        (",".join(map(str, range(2000))), "an array specification of more than 4096 characters"),
    ],
)
def test_anything_else_is_refused_with_the_reason(text: str, message: str) -> None:
    with pytest.raises(Refusal) as caught:
        parse_array(text)
    assert (caught.value.code, caught.value.message) == ("E-SPEC-042", message)


RANGES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(1, 7)), min_size=1, max_size=4)


@settings(max_examples=300, deadline=None)
@given(RANGES)
def test_an_index_is_named_twice_exactly_when_it_is_refused(parts: list[tuple[int, int, int]]) -> None:
    text = ",".join(f"{low}-{low + more}:{step}" for low, more, step in parts)
    indices = [i for low, more, step in parts for i in range(low, low + more + 1, step)]
    try:
        found = sorted(parse_array(text))
    except Refusal as refusal:
        found = None
        message = refusal.message
        assert "named twice" in message
    assert (found == sorted(indices)) == (len(set(indices)) == len(indices))
