"""The rows of a benchmark's tasks, read alike by who submits and by who asks: a fault is found before a training and not behind it. Pure.

A file's rows become a table: every row has the fields of the first one, and a field holds one kind of value. A row that lacks a field would be asked
as if `None` stood there, and a number among texts or a fraction among whole numbers would change how the others read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

MOST_FAULTS: Final = 3
_KINDS: Final = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "an object",
}


@dataclass(frozen=True)
class RowFault:
    """What is wrong with a line, counted from 1; 0 is the file."""

    line: int
    message: str
    found: str = ""
    allowed: str = ""


def read_rows(data: bytes) -> tuple[list[dict[str, Any]], list[RowFault]]:
    """The rows of a JSONL file, blank lines left out, and what is wrong with them: MOST_FAULTS at most, none if all is well."""
    rows: list[dict[str, Any]] = []
    faults: list[RowFault] = []
    kinds: dict[str, tuple[type, int]] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as exc:
            faults.append(RowFault(number, f"is no JSON: {exc}"))
        else:
            if not isinstance(row, dict) or not row:
                faults.append(RowFault(number, "is no object with fields"))
            elif fault := _unlike(row, rows[0] if rows else row, kinds, number):
                faults.append(RowFault(number, *fault))
            else:
                rows.append(row)
        if len(faults) >= MOST_FAULTS:
            break
    if not rows and not faults:
        faults.append(RowFault(0, "holds no row"))
    return rows, faults


def _unlike(
    row: Mapping[str, Any], first: Mapping[str, Any], kinds: dict[str, tuple[type, int]], line: int
) -> tuple[str, str, str] | None:
    """Where a row differs from those before it: message, found, allowed. `kinds`: of each field the kind, and the line that settled it."""
    if row.keys() != first.keys():
        return "has other fields than the first row", ", ".join(row), f"{', '.join(first)}; null where there is nothing"
    for name, value in row.items():
        if value is None:
            continue
        kind, since = kinds.setdefault(name, (type(value), line))
        if kind is not type(value):
            return f"{name} is of another kind than in line {since}", _KINDS[type(value)], _KINDS[kind]
    return None
