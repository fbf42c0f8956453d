"""Rows put together into sequences of at most `max_length` tokens, so that short rows do not travel as padding.

Which rows share a sequence is a function of the rows' lengths and the seed alone: neither ranks nor batch sizes have a say, so a resumed run
finds the same packs, and the order of a run numbers packs as it else numbers rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuneplane.contract.packing import pack
from tuneplane.record.digest import digest_json
from tuneplane.training.arrays import kept, open_arrays, writing
from tuneplane.training.sampler import Order

FORMAT = "tuneplane-hpc/packs/v1"
_CHUNK = 4096


@dataclass(frozen=True)
class Packs:
    """`members[bounds[k]:bounds[k + 1]]` are the rows of pack k, in their order in the sequence."""

    members: Any
    bounds: Any
    meta: dict[str, Any]

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def rows_of(self, pack: int) -> Sequence[int]:
        return [int(row) for row in self.members[self.bounds[pack] : self.bounds[pack + 1]]]


def ensure_packs(cache: Path, tokens: Any, width: int, seed: int, *, check: Callable[[], None] = lambda: None) -> Path:
    """The folder of the packs of `tokens` (a token folder, opened) below `cache`, made now if it is not there whole.

    Rows come in an order of `seed`, so that neighbours in a file do not stay together. `check` may raise to stop.
    """
    key = digest_json([FORMAT, tokens.meta["key"], width, seed])

    def make(folder: Path) -> dict[str, Any]:
        total = packs = 0
        with writing(folder, {"members": "q", "bounds": "q"}) as writer:
            writer.append("bounds", 0)
            for rows in pack(_shuffled(tokens, seed, check), width):
                writer.extend("members", rows)
                total, packs = total + len(rows), packs + 1
                writer.append("bounds", total)
            files = writer.finish()
        return {"schema": FORMAT, "rows": total, "packs": packs, "width": width, "seed": seed, "files": files}

    return kept(cache, key, make)


def _shuffled(tokens: Any, seed: int, check: Callable[[], None]) -> Iterator[tuple[int, int]]:
    order = Order(len(tokens), seed)
    for start in range(0, len(tokens), _CHUNK):
        check()
        for row in order.ids(start, min(_CHUNK, len(tokens) - start)):
            yield row, tokens.length(row)


def open_packs(folder: Path) -> Packs:
    """Map finished packs into memory, read-only. Raises OSError or ValueError when they are not whole (by size)."""
    arrays, meta = open_arrays(folder, FORMAT)
    return Packs(meta=meta, **arrays)
