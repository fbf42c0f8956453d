"""Job arrays: `0-15`, `1,3,5-7`, `0-15:4`, each with `%LIMIT` after it.

A site caps the highest *index* (MaxArraySize - 1), not the count; `ArraySpec.highest` is what to compare with that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from hpc.errors import Refusal
from hpc.spec.text import visible

MAX_INDEX = 4_000_000
"""The highest index that any Slurm can be built to take."""
MAX_TEXT = 4096
ALLOWED = "indices and ranges such as 0-15, 1,3,5-7 or 0-15:4, at most 4000000, each once; then %N for N at a time"
_ITEM = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7})(?::([1-9][0-9]{0,6}))?)?")


@dataclass(frozen=True)
class ArraySpec:
    """The index ranges of an array, in ascending order, and how many tasks may run at once (0 = no limit)."""

    ranges: tuple[range, ...]
    limit: int = 0

    @property
    def count(self) -> int:
        return sum(len(r) for r in self.ranges)

    @property
    def at_once(self) -> int:
        """How many of its tasks can run at the same time."""
        return min(self.count, self.limit or self.count)

    @property
    def highest(self) -> int:
        return max(r[-1] for r in self.ranges)

    def __iter__(self) -> Iterator[int]:
        for part in self.ranges:
            yield from part


def parse_array(text: str, field: str = "") -> ArraySpec:
    """Raises Refusal E-SPEC-042: wrong form, a range that runs backwards, an index above the cap or named twice."""
    try:
        return _parse(text)
    except ValueError as exc:
        raise Refusal("E-SPEC-042", str(exc), field=field, found=visible(text), allowed=ALLOWED) from None


def _parse(text: str) -> ArraySpec:
    indices, percent, limit = text.partition("%")
    if len(text) > MAX_TEXT:
        raise ValueError(f"an array specification of more than {MAX_TEXT} characters")
    if percent and not re.fullmatch(r"[1-9][0-9]{0,6}", limit):
        raise ValueError("not an array's task limit")
    ranges = sorted((_range(item) for item in indices.split(",")), key=lambda r: (r.start, r.step))
    for i, one in enumerate(ranges):
        for other in ranges[i + 1 :]:
            if other.start > one[-1]:
                break
            if (index := _shared(one, other)) is not None:
                raise ValueError(f"index {index} is named twice")
    return ArraySpec(tuple(ranges), int(limit or 0))


def _range(item: str) -> range:
    match = _ITEM.fullmatch(item)
    if not match:
        raise ValueError("not an array specification")
    first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
    if last < first:
        raise ValueError(f"range {item} runs backwards")
    if last > MAX_INDEX:
        raise ValueError(f"index {last} is above {MAX_INDEX}")
    return range(first, last + 1, step)


def _shared(one: range, other: range) -> int | None:
    """An index of both. Residues repeat after `fine.step` steps of the coarse range, so no more need a look."""
    fine, coarse = sorted((one, other), key=lambda r: r.step)
    offset = max(0, -(-(fine.start - coarse.start) // coarse.step))
    return next((i for i in islice(coarse[offset:], fine.step) if i in fine), None)
