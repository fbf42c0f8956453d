"""A run's metrics over all attempts: metrics.jsonl is the truth, a later attempt's line replaces the same step of an earlier one."""

from __future__ import annotations

import json
from typing import Any

from tuneplane.contract.layout import RunPaths

from hpc.errors import Refusal
from hpc.runs.records import numbers


def read_metrics(run: RunPaths) -> list[dict[str, Any]]:
    """One object a step, by step. Torn and foreign lines are passed over. Raises OSError but for missing files."""
    by_step: dict[int, dict[str, Any]] = {}
    for number in numbers(run.attempts):
        try:
            data = (run.attempt(number).out / "metrics.jsonl").read_bytes()
        except FileNotFoundError:
            continue
        for line in data.split(b"\n"):
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, dict) and isinstance(value.get("step"), int):
                by_step[value["step"]] = {**value, "attempt": number}
    return [by_step[step] for step in sorted(by_step)]


def series(rows: list[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    """(step, value) of one metric. Raises Refusal E-RUNS-040 naming the metrics there are."""
    points = [(float(r["step"]), float(r[name])) for r in rows if isinstance(r.get(name), (int, float))]
    if not points:
        known = sorted(
            {k for r in rows for k, v in r.items() if isinstance(v, (int, float)) and k not in ("step", "attempt")}
        )
        raise Refusal(
            "E-RUNS-040", f"no metric {name!r}", field="--metric", found=name, allowed=", ".join(known) or "none yet"
        )
    return points
