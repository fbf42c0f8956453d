"""Bootstrap confidence intervals of a mean, the same to the last digit on every (little-endian) machine. Standard library only.

A resample of n values is a multinomial draw, so only sums are drawn, exactly: values that many examples share are drawn as counts (a binomial of n
trials is popcounts of random bits, compared with the binary digits of its probability), and the others one by one. Values are taken in steps of 1e-9.
For paired comparisons give the differences, one an example. Percentile intervals: no claim for fewer than some twenty examples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

RESAMPLES: Final = 1000
CONFIDENCE: Final = 0.95
_STEP: Final = 1_000_000_000
_SHARED: Final = 200
"""From so many equal values on, drawing their count is cheaper than drawing them."""
_LARGEST: Final = 1 << 15
"""Values of a block at most; a block holds a power of two of them, so that random bytes are places in it and none is rejected."""


@dataclass(frozen=True)
class Interval:
    """A mean over `n` values, and the interval that holds the true one with `CONFIDENCE`, as far as the values speak for it."""

    mean: float
    low: float
    high: float
    n: int


def mean_interval(values: Sequence[float], label: str, *, seed: int = 0, resamples: int = RESAMPLES) -> Interval | None:
    """The mean of `values` and its interval; None for no values. Same values in any order, label and seed: same result.

    `label` keeps the random numbers of two metrics apart. Values are finite and below 9e9 / n. Seconds: about 40 ns a resample and value, at most.
    """
    if not values:
        return None
    ints = sorted(round(v * _STEP) for v in values)
    n, total = len(ints), sum(ints)
    if ints[0] == ints[-1]:
        exact = ints[0] / _STEP
        return Interval(exact, exact, exact, n)
    rng = Random(f"tuneplane intervals/{seed}/{label}")  # noqa: S311 - statistics, no secrets
    cells = _cells(ints)
    sums = sorted(_resample(rng, cells, n) for _ in range(resamples))
    cut = int((1 - CONFIDENCE) / 2 * resamples)
    return Interval(total / n / _STEP, sums[cut] / n / _STEP, sums[-1 - cut] / n / _STEP, n)


@dataclass(frozen=True)
class _Cell:
    """`size` of the values: all equal to `value`, or a block. Its `table` has 256 or 65,536 places and each value equally often."""

    size: int
    value: int
    table: tuple[int, ...] = ()


def _cells(ints: Sequence[int]) -> list[_Cell]:
    counts = Counter(ints)
    shared = sorted((v for v, c in counts.items() if c >= _SHARED), key=lambda v: (-counts[v], v))
    cells = [_Cell(counts[v], v) for v in shared]
    single = [v for v in ints if counts[v] < _SHARED]
    while single:
        size = min(_LARGEST, 1 << (len(single).bit_length() - 1))
        block, single = single[:size], single[size:]
        cells.append(_Cell(size, 0, tuple(block * ((256 if size <= 256 else 65536) // size))))
    return cells


def _resample(rng: Random, cells: Sequence[_Cell], n: int) -> int:
    """The sum of n draws with replacement."""
    left, draws, total = n, n, 0
    for cell in cells:
        count = draws if cell.size == left else binomial(rng, draws, cell.size, left)
        total += _draw(rng, cell.table, count) if cell.table else count * cell.value
        left, draws = left - cell.size, draws - count
    return total


def _draw(rng: Random, table: Sequence[int], count: int) -> int:
    """The sum of `count` values of a block."""
    places = rng.randbytes(count) if len(table) == 256 else memoryview(rng.randbytes(2 * count)).cast("H")
    return sum(map(table.__getitem__, places))


def binomial(rng: Random, trials: int, part: int, whole: int) -> int:
    """Successes among `trials`, each with probability part / whole, exactly.

    Every trial compares a random binary fraction with part / whole, digit by digit; all trials that still tie share one draw of random bits.
    """
    if part >= whole:
        return trials
    wins, rest = 0, part
    while trials and rest:
        rest *= 2
        zeros = trials - rng.getrandbits(trials).bit_count()
        if rest >= whole:
            rest -= whole
            wins, trials = wins + zeros, trials - zeros
        else:
            trials = zeros
    return wins
