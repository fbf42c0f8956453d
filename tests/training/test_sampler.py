from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tuneplane.training.sampler import Order, steps_for

rows = st.integers(1, 60)
seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=60, deadline=None)
@given(rows, seeds, st.integers(0, 3))
def test_every_epoch_holds_every_row_once(count: int, seed: int, epoch: int) -> None:
    assert sorted(Order(count, seed).ids(epoch * count, count)) == list(range(count))


@settings(max_examples=60, deadline=None)
@given(rows, seeds, st.integers(0, 200), st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_p35_an_order_taken_up_anywhere_continues_without_gap_or_repeat(
    count: int, seed: int, start: int, parts: list[int]
) -> None:
    whole = Order(count, seed).ids(start, sum(parts))
    again, position, pieces = Order(count, seed), start, []
    for part in parts:
        pieces += again.ids(position, part)
        position += part
    assert pieces == whole


@settings(max_examples=40, deadline=None)
@given(st.integers(8, 60), seeds)
def test_another_seed_or_epoch_is_another_order(count: int, seed: int) -> None:
    order = Order(count, seed)
    assert order.digest(0) != Order(count, seed ^ 1).digest(0)
    assert order.digest(0) != order.digest(count)


def test_the_order_is_the_same_for_ever() -> None:
    assert Order(10, 7).ids(0, 20) == [1, 9, 0, 6, 2, 7, 8, 4, 5, 3, 1, 6, 3, 9, 5, 0, 4, 2, 8, 7]
    assert Order(1000, 0).digest(0) == "sha256:cc5c5eba9baf555d82b17fa76f45692fe076d74071119396e0990d8859db2423"


def test_epochs_in_steps() -> None:
    assert [steps_for(100, e, 8) for e in (0.5, 1.0, 2.0)] == [7, 13, 25]
    assert steps_for(96, 1.0, 8) == 12
    assert steps_for(3, 0.1, 8) == 1
    with pytest.raises(ValueError, match="no rows"):
        Order(0, 1)
