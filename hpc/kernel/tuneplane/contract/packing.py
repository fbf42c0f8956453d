"""Which rows share a sequence, where rows are packed: made in the job, and estimated before the queue wait. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

OPEN = 256
"""Sequences that are filled at once: memory does not grow with the rows, and a new row nearly always finds one that it fits."""


def pack(lengths: Iterable[tuple[int, int]], width: int) -> Iterator[list[int]]:
    """Rows of (number, length) into packs of at most `width`: each into the open one that it fills best. Pure.

    A pack is given out when it is full, when too many are open (the fullest goes), or in the end.
    """
    open_packs: list[tuple[int, int, list[int]]] = []  # (room, number of the pack, rows), by room
    count = 0
    for row, length in lengths:
        at = bisect_left(open_packs, (length, -1, []))
        if at < len(open_packs):
            room, number, rows = open_packs.pop(at)
        else:
            room, number, rows = width, count, []
            count += 1
        rows.append(row)
        if room == length:
            yield rows
            continue
        insort(open_packs, (room - length, number, rows))
        if len(open_packs) > OPEN:
            yield open_packs.pop(0)[2]
    for _, _, rows in open_packs:
        yield rows
