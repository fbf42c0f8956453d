"""A sweep: one package, many variants of its hyperparameters, each an element of one array; and the rule by which weak ones end early.

`variants.json` in the package is the table: element n trains with variant n over the package's own hyperparameters. Standard library only; the
login node writes and reads the same form that the job reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tuneplane.record.files import read_json

RECORD: Final = "variants.json"
"""Its name below `.tuneplane/` in the package."""
SCHEMA: Final = "tuneplane-hpc/variants/v1"
RUNG: Final = "tuneplane-hpc/rung/v1"
INDEX: Final = "TUNEPLANE_ARRAY_INDEX"
MAX_VARIANTS: Final = 10_000
MODES: Final = ("min", "max")


@dataclass(frozen=True)
class Stopping:
    """At the steps `rungs`, of those that were there so far one in `keep` goes on, best by `metric`; `mode` is min or max."""

    metric: str
    mode: str
    rungs: tuple[int, ...]
    keep: int

    @classmethod
    def parse(cls, value: Any) -> Stopping:
        """Raises ValueError saying what is wrong."""
        if not isinstance(value, Mapping) or set(value) != {"metric", "mode", "rungs", "keep"}:
            raise ValueError("early stopping has metric, mode, rungs and keep")
        metric, mode, rungs, keep = (value[k] for k in ("metric", "mode", "rungs", "keep"))
        if not isinstance(metric, str) or not metric or not metric.isprintable() or metric == "step":
            raise ValueError("metric is the name of a number in metrics.jsonl")
        if mode not in MODES:
            raise ValueError("mode is min or max")
        if not isinstance(rungs, (list, tuple)) or not rungs or any(type(r) is not int or r < 1 for r in rungs):
            raise ValueError("rungs are steps from 1 on")
        if list(rungs) != sorted(set(rungs)):
            raise ValueError("rungs ascend, each once")
        if type(keep) is not int or keep < 2:
            raise ValueError("keep is a whole number from 2 on: of so many one goes on")
        return cls(metric, mode, tuple(rungs), keep)

    def as_json(self) -> dict[str, Any]:
        return {"metric": self.metric, "mode": self.mode, "rungs": list(self.rungs), "keep": self.keep}

    def beats(self, a: float, b: float) -> bool:
        """Whether `a` is strictly better. What is no finite number is worse than every number."""
        if not math.isfinite(a) or not math.isfinite(b):
            return math.isfinite(a) and not math.isfinite(b)
        return a < b if self.mode == "min" else a > b

    def judge(self, value: float, others: Iterable[float]) -> Standing:
        """Where `value` stands among those that reached the rung so far, itself included. Pure: equal values share a place."""
        seen = list(others)
        ahead = sum(self.beats(other, value) for other in seen)
        places = -(-(len(seen) + 1) // self.keep)
        return Standing(ahead + 1, len(seen) + 1, places)


@dataclass(frozen=True)
class Standing:
    """`place` (1 is best) of `seen` elements, of which the best `places` go on."""

    place: int
    seen: int
    places: int

    @property
    def goes_on(self) -> bool:
        return self.place <= self.places


@dataclass(frozen=True)
class Sweep:
    """The table of a package."""

    variants: tuple[dict[str, Any], ...]
    stopping: Stopping | None = None

    @classmethod
    def parse(cls, value: Any) -> Sweep:
        """Raises ValueError saying what is wrong; the values themselves are the recipe's to judge."""
        if (
            not isinstance(value, Mapping)
            or value.get("schema") != SCHEMA
            or set(value) - {"schema", "variants", "stopping"}
        ):
            raise ValueError(f"not a table of {SCHEMA}")
        rows = value.get("variants")
        if not isinstance(rows, (list, tuple)) or not 1 <= len(rows) <= MAX_VARIANTS:
            raise ValueError(f"between 1 and {MAX_VARIANTS} variants")
        for number, row in enumerate(rows):
            if (
                not isinstance(row, Mapping)
                or not row
                or any(not isinstance(v, (int, float, bool, str)) for v in row.values())
            ):
                raise ValueError(f"variant {number} is not an object of plain values")
        stopping = value.get("stopping")
        return cls(tuple(dict(r) for r in rows), None if stopping is None else Stopping.parse(stopping))

    def as_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"schema": SCHEMA, "variants": [dict(v) for v in self.variants]}
        return out | ({"stopping": self.stopping.as_json()} if self.stopping else {})

    @property
    def names(self) -> list[str]:
        """The parameters that vary, in the order in which they were given."""
        return list(dict.fromkeys(name for row in self.variants for name in row))


def read_sweep(work: Path) -> Sweep | None:
    """The table of the package in `work`, None where it is no sweep. Raises OSError, ValueError."""
    try:
        return Sweep.parse(read_json(work / ".tuneplane" / RECORD))
    except FileNotFoundError:
        return None


def variant_of(work: Path, env: Mapping[str, str]) -> dict[str, Any]:
    """The hyperparameters that this element has over the package's; {} outside of a sweep. Raises OSError, ValueError."""
    sweep = read_sweep(work)
    if sweep is None:
        return {}
    text = env.get(INDEX, "")
    if not (text.isascii() and text.isdecimal() and int(text) < len(sweep.variants)):
        raise ValueError(f"element {text or '?'} of a sweep of {len(sweep.variants)} variants")
    return sweep.variants[int(text)]
