"""Sums that the tiny models of the evaluation tests know by heart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def sum_row(a: int, b: int, answer: str = "") -> dict[str, Any]:
    from tuneplane.training.sums import SYSTEM, question

    turns = (("system", SYSTEM), ("user", question(a, b)), ("assistant", answer or str(a + b)))
    return {"messages": [{"role": role, "content": text} for role, text in turns]}


SUMS = ((1, 2), (10, 20), (30, 13), (5, 41))
KNOWN = [sum_row(a, b) for a, b in SUMS]

OTHERWISE = [sum_row(a, b, text) for (a, b), text in zip(SUMS, ("30", "3", "46", "43"), strict=True)]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
