"""A run's metrics over all attempts: metrics.jsonl is the truth, and what a later attempt did again counts as it did it."""

from __future__ import annotations

import json
from typing import Any, Final

from tuneplane.contract.layout import RunPaths
from tuneplane.record.files import read_bytes

from hpc.errors import Refusal
from hpc.runs.records import numbers
from hpc.spec.text import escaped

MAX_BYTES: Final = 512 << 20
LARGEST: Final = 1e300
VALIDATION: Final = "validation_"
BESIDE: Final = frozenset({"step", "total_steps", "time", "attempt"})
"""What a row has whatever was measured."""


def read_metrics(run: RunPaths) -> list[dict[str, Any]]:
    """One object a step, by step; a value that was no number is None. Torn and foreign lines are passed over, and what is no file of up to MAX_BYTES.

    Steps that an attempt had done beyond the point from which a later one went on are of no model that there is: they are left out, as
    TensorBoard's event files leave them out. One that begins with a validation has made up that of the step it goes on from: the step itself is
    the earlier attempt's.
    """
    by_step: dict[int, dict[str, Any]] = {}
    for number in numbers(run.attempts):
        rows = attempt_rows(run, number)
        if rows and rows[0]["step"] in by_step and _only_validated(rows[0]):
            found = {name: value for name, value in rows[0].items() if name.startswith(VALIDATION)}
            rows[0] = by_step[rows[0]["step"]] | found
        for step in [step for step in by_step if rows and step >= rows[0]["step"]]:
            del by_step[step]
        by_step |= {row["step"]: row for row in rows}
    return [by_step[step] for step in sorted(by_step)]


def _only_validated(row: dict[str, Any]) -> bool:
    """Whether a row says of its step only what was measured on held-out rows."""
    return all(name.startswith(VALIDATION) or name in BESIDE for name in row)


def attempt_rows(run: RunPaths, number: int) -> list[dict[str, Any]]:
    """One object a step of a single attempt, by step: a step's own line and that of its validation are one."""
    try:
        data = read_bytes(run.attempt(number).out / "metrics.jsonl", limit=MAX_BYTES)
    except (OSError, ValueError):
        return []
    by_step: dict[int, dict[str, Any]] = {}
    for line in data.split(b"\n"):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and type(value.get("step")) is int:
            by_step.setdefault(value["step"], {}).update(value, attempt=number)
    return [by_step[step] for step in sorted(by_step)]


def series(rows: list[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    """(step, value) of one metric. Raises Refusal E-RUNS-040 naming the metrics there are."""
    points = [(float(r["step"]), float(r[name])) for r in rows if is_number(r["step"]) and is_number(r.get(name))]
    if not points:
        known = sorted(
            {escaped(k) for r in rows for k, v in r.items() if is_number(v) and k not in ("step", "attempt")}
        )
        raise Refusal(
            "E-RUNS-040", f"no metric {name!r}", field="--metric", found=name, allowed=", ".join(known) or "none yet"
        )
    return points


def newest(rows: list[dict[str, Any]], name: str) -> float | None:
    """What the last row that has the metric says: None where it was no number, or no row has it."""
    value: Any = next((row[name] for row in reversed(rows) if name in row), None)
    return float(value) if is_number(value) else None


def is_number(value: Any) -> bool:
    """True for a number that a chart has a place for; JSON knows larger ones, and their differences are no numbers any more."""
    return isinstance(value, (int, float)) and abs(value) <= LARGEST
