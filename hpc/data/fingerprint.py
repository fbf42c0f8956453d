"""What a set of rows is known by without showing one: an order-free digest, and a sketch from which the overlap of two sets is estimated."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tuneplane.record.digest import digest_bytes
from tuneplane.record.files import read_json

from hpc.data.duplicates import Tick, quiet, row_digests
from hpc.data.rows import Source
from hpc.errors.core import Refusal
from hpc.store.faults import refusal

SCHEMA: Final = "tuneplane-hpc/row-fingerprint/v1"
SKETCH: Final = 1024
_MASK: Final = (1 << 128) - 1


def fingerprint(sources: Sequence[Source], *, tick: Tick = quiet) -> dict[str, Any]:
    """`{schema, rows, digest, sketch}`. The digest is the same for the same rows in any order and any files; the sketch holds the SKETCH
    smallest distinct row keys. Raises Refusal E-DATA-004, E-STORE-02x."""
    total, count = 0, 0
    smallest: list[int] = []  # a heap of negated keys: the largest one that is kept is at its top
    held: set[int] = set()
    for source in sources:
        for keys in row_digests(source):
            for key in keys:
                number = int.from_bytes(key[:16], "big")
                total += number
                if len(held) < SKETCH or number < -smallest[0]:
                    _keep(number, smallest, held)
            count += len(keys)
            total &= _MASK
            tick(len(keys))
    digest = digest_bytes(f"{SCHEMA}\n{count}\n{total:032x}".encode())
    return {"schema": SCHEMA, "rows": count, "digest": digest, "sketch": [f"{n:032x}" for n in sorted(held)]}


def _keep(number: int, smallest: list[int], held: set[int]) -> None:
    if number in held:
        return
    held.add(number)
    heapq.heappush(smallest, -number)
    if len(held) > SKETCH:
        held.discard(-heapq.heappop(smallest))


def resemblance(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The estimated share of distinct rows that two sets have in common (Jaccard), from their sketches. Exact up to SKETCH rows in all. Pure."""
    a, b = set(one["sketch"]), set(other["sketch"])
    union = sorted(a | b)[:SKETCH] if max(len(a), len(b)) >= SKETCH else sorted(a | b)
    return sum(k in a and k in b for k in union) / len(union) if union else 0.0


def read_fingerprint(path: Path) -> dict[str, Any]:
    """A fingerprint as `tp dataset fingerprint --json` wrote it. Raises Refusal E-DATA-006, E-STORE-02x."""
    try:
        value = read_json(path)
    except OSError as exc:
        raise refusal(exc, path, "read") from exc
    except ValueError as exc:
        raise Refusal("E-DATA-006", f"is no fingerprint: {exc}"[:200], field=str(path)) from exc
    good = isinstance(value, dict) and value.get("schema") == SCHEMA and isinstance(value.get("sketch"), list)
    if not good or not all(isinstance(k, str) for k in value["sketch"]):
        raise Refusal("E-DATA-006", "is no fingerprint", field=str(path), allowed=SCHEMA)
    return dict(value)
