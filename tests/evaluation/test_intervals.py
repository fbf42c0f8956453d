"""Bootstrap intervals: exact draws, the same result everywhere, and as wide as theory says."""

from __future__ import annotations

import math
import statistics
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tuneplane.contract.intervals import Interval, binomial, mean_interval


def test_the_same_values_give_the_same_interval_in_any_order_on_any_machine() -> None:
    values = [i % 7 / 7 for i in range(2000)] + [math.sqrt(i) for i in range(300)]
    found = mean_interval(values, seed=3, resamples=200)
    assert found == mean_interval(values[::-1], seed=3, resamples=200)
    assert found == Interval(1.8746367182282608, 1.72042327922, 2.0710249696234784, 2300)
    assert found != mean_interval(values, seed=4, resamples=200)


@pytest.mark.parametrize(
    "values",
    [
        [Random(1).random() for _ in range(1)] * 30 + [0.0] * 40,
        [float(i % 3 == 0) for i in range(3000)],
        [Random(i).gauss(0, 1) for i in range(1500)],
        [1.0] * 500 + [i / 100 for i in range(100)],
    ],
)
def test_an_interval_is_as_wide_as_the_standard_error_says(values: list[float]) -> None:
    found = mean_interval(values, resamples=4000)
    assert found is not None
    half = 1.96 * statistics.pstdev(values) / math.sqrt(len(values))
    assert found.mean == pytest.approx(statistics.fmean(values), abs=1e-9)
    assert (found.high - found.low) / 2 == pytest.approx(half, rel=0.1)
    assert abs((found.high + found.low) / 2 - found.mean) < 0.15 * half


def test_no_values_have_no_interval_and_equal_ones_a_point() -> None:
    assert mean_interval([]) is None
    assert mean_interval([0.25] * 9) == Interval(0.25, 0.25, 0.25, 9)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=700), st.integers(0, 5))
def test_an_interval_lies_inside_of_the_values(values: list[float], seed: int) -> None:
    found = mean_interval(values, seed=seed, resamples=50)
    assert found is not None
    assert min(values) - 1e-8 <= found.low <= found.high <= max(values) + 1e-8


def test_a_binomial_has_the_right_distribution() -> None:
    rng = Random(5)
    counts = [0] * 5
    for _ in range(20_000):
        counts[binomial(rng, 4, 3, 10)] += 1
    expected = [math.comb(4, k) * 0.3**k * 0.7 ** (4 - k) * 20_000 for k in range(5)]
    assert sum((c - e) ** 2 / e for c, e in zip(counts, expected, strict=True)) < 18.5  # chi square, 4 degrees, 0.1 %


@given(st.integers(0, 5000), st.integers(0, 50), st.integers(1, 50))
def test_a_binomial_stays_within_its_trials(trials: int, part: int, whole: int) -> None:
    found = binomial(Random(0), trials, part, whole)
    assert 0 <= found <= trials
    assert found == trials or part < whole
    assert found == 0 or part
