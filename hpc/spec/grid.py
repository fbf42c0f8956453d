"""The axes of a sweep: values (`lr=1e-5,2e-5`), a range (`lr=1e-5..1e-3`), a range that is even in the exponent (`lr=log:1e-5..1e-3`).

Values are words of `--set`. A range is for drawing, and gives whole numbers where both ends are whole. Every combination of the values is a variant;
drawn ones are the same for the same axes, count and seed, on every machine.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from tuneplane.contract.sweeps import MAX_VARIANTS

from hpc.errors import Refusal, Refusals
from hpc.spec.settings import parse_settings
from hpc.spec.text import visible

FIELD: Final = "--grid"
ALLOWED: Final = "NAME=VALUE,VALUE,… or, with --random, NAME=LOW..HIGH and NAME=log:LOW..HIGH"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_TRIES: Final = 200
"""Draws for each variant that is wanted before the axes are taken to have no more."""


@dataclass(frozen=True)
class Axis:
    """One parameter: its values, or the two ends of a range, `log` if it is even in the exponent."""

    name: str
    values: tuple[Any, ...] = ()
    ends: tuple[float, float] | None = None
    log: bool = False

    def draw(self, chance: float) -> Any:
        """The value for a number of [0, 1); six digits of a decimal one."""
        if self.ends is None:
            return self.values[int(chance * len(self.values))]
        low, high = self.ends
        if self.log:
            value: float = math.exp(math.log(low) + chance * (math.log(high) - math.log(low)))
        elif self.whole:
            return int(low + math.floor(chance * (high - low + 1)))
        else:
            value = low + chance * (high - low)
        return round(value) if self.whole else float(f"{min(max(value, low), high):.6g}")

    @property
    def whole(self) -> bool:
        return self.ends is not None and all(type(e) is int for e in self.ends)


def parse_axes(entries: Iterable[str | tuple[str, Any]]) -> tuple[Axis, ...]:
    """Axes in the order given: `NAME=…`, or a name with its list of values, of which none is taken apart.

    Raises Refusals E-SWEEP-001, -002, all entries at once.
    """
    faults: list[Refusal] = []
    axes: list[Axis] = []
    for entry in entries:
        try:
            axis = _axis(entry) if isinstance(entry, str) else _listed(*entry)
            if axis.name in {a.name for a in axes}:
                raise ValueError(f"{axis.name} is given twice")
            axes.append(axis)
        except ValueError as exc:
            code = "E-SWEEP-002" if "twice" in str(exc) else "E-SWEEP-001"
            field, found = (FIELD, entry) if isinstance(entry, str) else (f"sweep.grid.{entry[0]}", str(entry[1]))
            faults.append(Refusal(code, str(exc), field=field, found=visible(found), allowed=ALLOWED))
        except Refusals as exc:
            faults += exc.items
    if faults:
        raise Refusals(faults)
    return tuple(axes)


def _axis(entry: str) -> Axis:
    name, equals, text = (part.strip() for part in entry.partition("="))
    if not equals or not _NAME.fullmatch(name):
        raise ValueError("not an axis")
    log, body = text.startswith("log:"), text.removeprefix("log:")
    low, dots, high = body.partition("..")
    if dots:
        return _range(name, low, high, log=log)
    if log:
        raise ValueError("log: needs a range LOW..HIGH")
    return _listed(name, [word.strip() for word in text.split(",")])


def _listed(name: str, words: Any) -> Axis:
    """The axis of a list. Text means what it means after --set, commas and dots in it are its own."""
    if not _NAME.fullmatch(name):
        raise ValueError("not an axis")
    if not isinstance(words, list) or any(not isinstance(word, (str, bool, int, float)) for word in words):
        raise ValueError("a list of numbers, texts, true and false")
    if not words or "" in words:
        raise ValueError("an empty value")
    values = tuple(_value(name, word) if isinstance(word, str) else word for word in words)
    if len({(type(v), v) for v in values}) < len(values):
        raise ValueError(f"a value of {name} is given twice")
    return Axis(name, values)


def _range(name: str, low: str, high: str, *, log: bool) -> Axis:
    ends = _value(name, low), _value(name, high)
    if any(isinstance(e, (bool, str)) or not math.isfinite(e) for e in ends) or not ends[0] < ends[1]:
        raise ValueError("a range goes from a smaller number to a larger one")
    if log and ends[0] <= 0:
        raise ValueError("a range that is even in the exponent begins above 0")
    return Axis(name, ends=ends, log=log)


def _value(name: str, word: str) -> Any:
    return parse_settings([f"{name}={word}"])[name]


def every(axes: Sequence[Axis]) -> list[dict[str, Any]]:
    """Every combination, the last axis fastest. Raises Refusal E-SWEEP-003 for a range, E-SWEEP-004 for none or too many."""
    if ranged := [a.name for a in axes if a.ends is not None]:
        raise Refusal(
            "E-SWEEP-003", f"{', '.join(ranged)}: a range has no list of values", field=FIELD, allowed="--random N"
        )
    count = math.prod(len(a.values) for a in axes)
    if not axes:
        raise Refusal(
            "E-SWEEP-004",
            "no axis",
            field=FIELD,
            found=0,
            allowed=ALLOWED,
            hint="Give -g NAME=VALUE,VALUE, or `sweep.grid` in config.yaml.",
        )
    if count > MAX_VARIANTS:
        raise Refusal("E-SWEEP-004", f"{count} variants", field=FIELD, found=count, allowed=f"1 to {MAX_VARIANTS}")
    return [dict(zip((a.name for a in axes), row, strict=True)) for row in product(*(a.values for a in axes))]


def drawn(axes: Sequence[Axis], count: int, seed: int) -> list[dict[str, Any]]:
    """`count` different variants. Raises Refusal E-SWEEP-004 where the axes have not so many."""
    if not axes or not 1 <= count <= MAX_VARIANTS:
        raise Refusal(
            "E-SWEEP-004",
            f"{count} variants of {len(axes)} ax{'i' if len(axes) == 1 else 'e'}s",
            field="--random",
            found=count,
            allowed=f"1 to {MAX_VARIANTS}",
        )
    chance = random.Random(seed).random  # noqa: S311 - the same variants again, not a secret
    found: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for _ in range(count * _TRIES):
        row = {axis.name: axis.draw(chance()) for axis in axes}
        found.setdefault(tuple(row.values()), row)
        if len(found) == count:
            return [dict(r) for r in found.values()]
    raise Refusal(
        "E-SWEEP-004", f"the axes have {len(found)} variants", field="--random", found=count, allowed=str(len(found))
    )
