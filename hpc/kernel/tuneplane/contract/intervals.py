"""Bootstrap confidence intervals of a mean, the same to the last digit on every machine. Standard library only.

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
_PLACES: Final = 256
"""Values that one random byte chooses among. Blocks hold powers of two, so that no byte is rejected and every value is equally likely."""


@dataclass(frozen=True)
class Interval:
    """A mean over `n` values, and the interval that holds the true one with `CONFIDENCE`, as far as the values speak for it."""

    mean: float
    low: float
    high: float
    n: int


def mean_interval(values: Sequence[float], *, seed: int = 0, resamples: int = RESAMPLES) -> Interval | None:
    """The mean of `values` and its interval; None for no values. Same values in any order and same seed: same result.

    Values are finite and below 9e9 / n. Time: about 25 ns a resample and value, at most.
    """
    if not values:
        return None
    ints = sorted(round(v * _STEP) for v in values)
    n, total = len(ints), sum(ints)
    if ints[0] == ints[-1]:
        exact = ints[0] / _STEP
        return Interval(exact, exact, exact, n)
    rng = Random(f"tuneplane intervals/{seed}")  # noqa: S311 - statistics, no secrets
    cells = _cells(ints)
    sums = sorted(_resample(rng, cells, n) for _ in range(resamples))
    cut = int((1 - CONFIDENCE) / 2 * resamples)
    return Interval(total / n / _STEP, sums[cut] / n / _STEP, sums[-1 - cut] / n / _STEP, n)


@dataclass(frozen=True)
class _Cell:
    """`size` of the values: all equal to `value`, or a block. Its `tables`, a power of two of them, hold 256 places each."""

    size: int
    value: int
    tables: tuple[tuple[int, ...], ...] = ()


def _cells(ints: Sequence[int]) -> list[_Cell]:
    counts = Counter(ints)
    shared = sorted((v for v, c in counts.items() if c >= _SHARED), key=lambda v: (-counts[v], v))
    cells = [_Cell(counts[v], v) for v in shared]
    single = [v for v in ints if counts[v] < _SHARED]
    while single:
        size = 1 << (len(single).bit_length() - 1)
        block, single = single[:size], single[size:]
        block *= max(1, _PLACES // size)
        tables = tuple(tuple(block[i : i + _PLACES]) for i in range(0, len(block), _PLACES))
        cells.append(_Cell(size, 0, tables))
    return cells


def _resample(rng: Random, cells: Sequence[_Cell], n: int) -> int:
    """The sum of n draws with replacement."""
    left, draws, total = n, n, 0
    for cell in cells:
        count = draws if cell.size == left else binomial(rng, draws, cell.size, left)
        total += _draw(rng, cell.tables, count) if cell.tables else count * cell.value
        left, draws = left - cell.size, draws - count
    return total


def _draw(rng: Random, tables: Sequence[tuple[int, ...]], count: int) -> int:
    """The sum of `count` values of a block: each half of its tables gets a fair share of the draws, down to single tables."""
    if len(tables) == 1:
        return sum(map(tables[0].__getitem__, rng.randbytes(count)))
    middle, here = len(tables) // 2, rng.getrandbits(count).bit_count()
    return _draw(rng, tables[:middle], here) + _draw(rng, tables[middle:], count - here)


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
