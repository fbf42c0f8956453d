"""Runs processes in turn and judges what they took, with the spread of the measurement."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

Command = Sequence[str]
Environment = dict[str, str]


@dataclass(frozen=True)
class Samples:
    """Values of one quantity, in the order in which they were taken."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def text(self, unit: str, digits: int = 0) -> str:
        low, high = min(self.values), max(self.values)
        return f"{self.median:.{digits}f} {unit} ({low:.{digits}f}–{high:.{digits}f})"

    def over(self, other: Samples) -> Samples:
        """Ratios, each of two values that were taken one after the other."""
        return Samples(tuple(a / b for a, b in zip(self.values, other.values, strict=True)))

    def misses(self, limit: float) -> bool:
        """True when three quarters of the values are above the limit: a noisy machine alone does not do that."""
        if len(self.values) < 4:
            return self.median > limit
        return statistics.quantiles(self.values, n=4)[0] > limit


def once(command: Command, *, env: Environment, cwd: Path) -> float:
    """Milliseconds from the start of a process to its end. A failure of the command is one of the benchmark."""
    begin = time.perf_counter()
    done = subprocess.run(command, env=env, cwd=cwd, capture_output=True, check=False)
    took = (time.perf_counter() - begin) * 1000
    if done.returncode:
        raise SystemExit(f"bench: {' '.join(command)} ended with {done.returncode}\n{done.stderr.decode()}")
    return took


def in_turn(rounds: int, one: Callable[[int], float], other: Callable[[int], float]) -> tuple[Samples, Samples]:
    """A B A B …; the first round only warms up."""
    pairs = [(one(n), other(n)) for n in range(rounds + 1)][1:]
    return Samples(tuple(a for a, _ in pairs)), Samples(tuple(b for _, b in pairs))


def times(rounds: int, one: Callable[[int], float]) -> Samples:
    """The same without a peer; the first round only warms up."""
    return Samples(tuple([one(n) for n in range(rounds + 1)][1:]))
