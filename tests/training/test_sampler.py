from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tuneplane.training import sampler
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


@pytest.mark.parametrize("rows", [1, 2, 3, 17, 64, 1000, 4097])
def test_a_computed_order_has_every_row_once_too(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "LARGEST_TABLE", 0)
    order = Order(rows, 5)
    epochs = [order.ids(epoch * rows, rows) for epoch in range(2)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(rows))] * 2
    assert order.ids(0, 2 * rows) == epochs[0] + epochs[1]
    if rows > 16:
        assert epochs[0] != epochs[1] != list(range(rows))
        assert epochs[0] != Order(rows, 6).ids(0, rows)
        assert order.ids(rows // 2, 7) == epochs[0][rows // 2 :][:7]


def test_the_computed_order_is_pinned_for_ever() -> None:
    """A resumed run must go on with the rows that its first attempt would have taken."""
    order = Order(5_000_000_000, 3)
    assert order.ids(0, 4) == [2967341021, 823902640, 2948482197, 3033229584]
    assert order._epochs == {}


def test_neighbours_do_not_stay_together_in_a_computed_order(monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    monkeypatch.setattr(sampler, "LARGEST_TABLE", 0)
    ids = np.array(Order(100_000, 1).ids(0, 100_000))
    assert abs(float(np.corrcoef(ids[:-1], ids[1:])[0, 1])) < 0.02
    assert abs(float(np.corrcoef(ids, np.arange(100_000))[0, 1])) < 0.02
    assert 30_000 < float(np.abs(np.diff(ids)).mean()) < 36_500  # a third of the rows, for a random order
