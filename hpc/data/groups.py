"""Groups that stand in both splits: patients, repositories, documents. A validation row whose group the model trained on measures less."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

from hpc.data.duplicates import LISTED, Tick, quiet
from hpc.data.rows import Source, rows
from hpc.data.spill import Spill, pairs, spilled
from hpc.errors.core import Refusal

_LOOKED_FOR = 10_000


def group_leaks(
    train: Sequence[Source], validation: Sequence[Source], key: str, *, tick: Tick = quiet
) -> dict[str, Any]:
    """`{train_rows, validation_rows, leaking, ratio, without_group, offenders}`; `ratio` is a share of the validation rows with a group.

    `key` is a column, or a path into objects with dots. Raises Refusal E-DATA-005 (no row has the key), E-DATA-003, E-DATA-004, E-STORE-02x.
    """
    missing = {"train": 0, "validation": 0}
    leaking, shared = 0, set[bytes]()
    with spilled() as learned, spilled() as measured:
        for name, sources, spill in (("train", train, learned), ("validation", validation, measured)):
            missing[name] = _collect(sources, key, spill, tick)
        if not learned.count or not measured.count:
            split = "train" if not learned.count else "validation"
            raise Refusal(
                "E-DATA-005",
                f"no row of the {split} split has {key!r}",
                field="group_key",
                found=key,
                allowed=_columns([*train, *validation]),
            )
        for known, asked in pairs(learned, measured):
            both = set(asked).intersection(known)
            leaking += sum(group in both for group in asked)
            shared.update(sorted(both)[: _LOOKED_FOR - len(shared)])
        rows_of = (learned.count, measured.count)
    return {
        "train_rows": rows_of[0], "validation_rows": rows_of[1], "leaking": leaking, "ratio": leaking / rows_of[1], "group_key": key,
        "without_group": missing, "offenders": _offenders(validation, key, shared),
    }  # fmt: skip


def _collect(sources: Sequence[Source], key: str, spill: Spill, tick: Tick) -> int:
    """The groups of all rows into `spill`; how many rows have none."""
    missing, held = 0, []
    for source in sources:
        for _, row in rows(source):
            group = _digest(row, key)
            if group is None:
                missing += 1
                continue
            held.append(group)
            if len(held) == 4096:
                spill.add(held)
                tick(len(held))
                held = []
    spill.add(held)
    tick(len(held))
    return missing


def value_at(row: dict[str, Any], key: str) -> Any:
    """The value of a column, or at a path with dots; None where there is none. Pure."""
    if key in row:
        return row[key]
    value: Any = row
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _digest(row: dict[str, Any], key: str) -> bytes | None:
    value = value_at(row, key)
    return None if value is None else hashlib.sha256(json.dumps(value, sort_keys=True).encode("ascii")).digest()


def _offenders(validation: Sequence[Source], key: str, shared: set[bytes]) -> list[dict[str, Any]]:
    return list(_leaking_rows(validation, key, shared)) if shared else []


def _leaking_rows(validation: Sequence[Source], key: str, shared: set[bytes]) -> Iterator[dict[str, Any]]:
    left = LISTED
    for source in validation:
        for line, row in rows(source):
            if _digest(row, key) in shared:
                yield {"row": f"{source.name}:{line}", "group": str(value_at(row, key))[:200]}
                left -= 1
                if not left:
                    return


def _columns(sources: Sequence[Source]) -> str:
    first = next((row for source in sources for _, row in rows(source)), {})
    return ", ".join(list(first)[:20]) or "none: there are no rows"
