"""A sweep as its elements' records tell it: one row a variant, with its state, how far it is, and how good. Reads only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tuneplane.contract.layout import RunPaths
from tuneplane.contract.sweeps import Sweep, read_sweep

from hpc.errors import Refusal
from hpc.runs.arrays import elements
from hpc.runs.metrics import is_number, newest, read_metrics
from hpc.runs.records import Attempt, Facts
from hpc.runs.state import Look


@dataclass(frozen=True)
class Row:
    """One variant. `value` and `best` are the newest and the best of the metric, None where it is none; `stopped` is the rung it ended at."""

    index: int
    variant: dict[str, Any]
    state: str
    attempts: int = 0
    step: int | None = None
    total: int | None = None
    value: float | None = None
    best: float | None = None
    best_step: int | None = None
    stopped: int | None = None
    points: tuple[tuple[float, float], ...] = ()

    def as_json(self) -> dict[str, Any]:
        names = ("index", "variant", "state", "attempts", "step", "total", "value", "best", "best_step")
        return {name: getattr(self, name) for name in names} | {"stopped_at_rung": self.stopped}


@dataclass(frozen=True)
class SweepTable:
    """All variants of a sweep in the order of the table."""

    run: RunPaths
    sweep: Sweep
    metric: str
    mode: str
    rows: tuple[Row, ...]

    @property
    def ranked(self) -> list[Row]:
        """The best first; those without a value last."""

        def key(row: Row) -> tuple[bool, float, int]:
            good = row.best if row.best is not None else math.inf
            return row.best is None, good if self.mode == "min" else -good, row.index

        return sorted(self.rows, key=key)

    def counts(self) -> dict[str, int]:
        """How many elements are in each state; those that ended at a rung are told apart from the rest of `done`."""
        out: dict[str, int] = {}
        for row in self.rows:
            word = "stopped" if row.stopped is not None else row.state
            out[word] = out.get(word, 0) + 1
        return out


def table_of(run: RunPaths) -> Sweep:
    """The sweep's table of variants. Raises Refusal E-SWEEP-007."""
    try:
        sweep = read_sweep(run.work)
    except (OSError, ValueError) as exc:
        raise Refusal("E-SWEEP-007", f"its table of variants cannot be used: {exc}", field=run.run_id) from exc
    if sweep is None:
        raise Refusal("E-SWEEP-007", f"{run.run_id} is no sweep", field=run.run_id)
    return sweep


def look_at(facts: Facts, look: Look, now: float, *, metric: str = "", maximise: bool = False) -> SweepTable:
    """Every variant's row. The metric is the one of early stopping, else the loss; another may be named. Raises Refusal E-SWEEP-007."""
    sweep = table_of(facts.run)
    stopping = sweep.stopping
    named = metric or (stopping.metric if stopping else "loss")
    mode = stopping.mode if stopping and stopping.metric == named else "max" if maximise else "min"
    states = elements(facts, look, now)
    attempts = dict(facts.elements)
    rows = []
    for index, variant in enumerate(sweep.variants):
        state = states.get(index)
        own = attempts.get(index, ())
        word = state.cls if state else "queued" if any(s.is_of(index) for s in facts.submissions) else "not submitted"
        rows.append(_row(facts.run.element(index), index, variant, word, own, named, mode))
    return SweepTable(facts.run, sweep, named, mode, tuple(rows))


def _row(
    part: RunPaths, index: int, variant: dict[str, Any], state: str, attempts: tuple[Attempt, ...], metric: str, mode: str
) -> Row:  # fmt: skip
    steps = read_metrics(part) if attempts else []
    points = tuple(
        (float(r["step"]), float(r[metric])) for r in steps if is_number(r["step"]) and is_number(r.get(metric))
    )
    best = (min if mode == "min" else max)(points, key=lambda p: p[1], default=None)
    total = next((r["total_steps"] for r in reversed(steps) if type(r.get("total_steps")) is int), None)
    end = next((a.end for a in reversed(attempts) if a.end), None) or {}
    rung = end.get("stopped_at_rung")
    return Row(
        index, variant, state, len(attempts), steps[-1]["step"] if steps else None, total, newest(steps, metric),
        best[1] if best else None, int(best[0]) if best else None, rung if type(rung) is int else None, points,
    )  # fmt: skip
