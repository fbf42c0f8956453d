"""A run's metrics over all attempts: metrics.jsonl is the truth, a later attempt's line replaces the same step of an earlier one."""

from __future__ import annotations

import json
import math
from typing import Any, Final

from tuneplane.contract.layout import RunPaths
from tuneplane.record.files import read_bytes

from hpc.errors import Refusal
from hpc.runs.records import numbers
from hpc.spec.text import escaped

MAX_BYTES: Final = 512 << 20


def read_metrics(run: RunPaths) -> list[dict[str, Any]]:
    """One object a step, by step. Torn and foreign lines are passed over, and what is no file of up to MAX_BYTES."""
    by_step: dict[int, dict[str, Any]] = {}
    for number in numbers(run.attempts):
        try:
            data = read_bytes(run.attempt(number).out / "metrics.jsonl", limit=MAX_BYTES)
        except (OSError, ValueError):
            continue
        for line in data.split(b"\n"):
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict) and type(value.get("step")) is int:
                by_step[value["step"]] = {**value, "attempt": number}
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


def is_number(value: Any) -> bool:
    """True for a finite number that a chart has a place for; JSON knows larger ones."""
    try:
        return isinstance(value, (int, float)) and math.isfinite(value)
    except OverflowError:
        return False
