"""The order of the rows: a pure function of the seed and the position, so that a position is all a checkpoint must hold.

The epochs' permutations follow each other without a gap: a batch may span two epochs, no row is dropped or doubled within one. Up to LARGEST_TABLE
rows the permutation is a table from numpy's frozen legacy stream, which no later release changes; above, each place is computed by itself (a Feistel
network over the row numbers), so that neither memory nor start grows with the rows.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

from tuneplane.record.digest import digest_json

LARGEST_TABLE = 1 << 22
_ROUNDS = 6
LOOK_AHEAD = 100
"""How many sample ids the continuity digest covers."""


class Order:
    """Row numbers by position 0, 1, 2, …; `position // rows` is the epoch."""

    def __init__(self, rows: int, seed: int) -> None:
        if rows < 1:
            raise ValueError("no rows to order")
        self.rows, self.seed = rows, seed
        self._epochs: dict[int, Any] = {}

    def _words(self, epoch: int) -> Any:
        import numpy as np

        return np.frombuffer(hashlib.sha256(f"tuneplane order {self.seed} {epoch}".encode()).digest(), dtype="<u4")

    def _part(self, epoch: int, start: int, count: int) -> Any:
        """The row numbers at `count` places of an epoch from `start` on, fewer at its end."""
        if self.rows <= LARGEST_TABLE:
            return self._permutation(epoch)[start : start + count]
        return scattered(range(start, min(start + count, self.rows)), self.rows, self._words(epoch))

    def _permutation(self, epoch: int) -> Any:
        if epoch not in self._epochs:
            import numpy as np

            words = self._words(epoch)
            self._epochs = {e: p for e, p in self._epochs.items() if e == epoch - 1}  # at most two are alive
            self._epochs[epoch] = np.random.RandomState(words).permutation(self.rows)
        return self._epochs[epoch]

    def ids(self, position: int, count: int) -> list[int]:
        """The row numbers at positions `position` … `position + count - 1`."""
        out: list[int] = []
        while len(out) < count:
            epoch, start = divmod(position + len(out), self.rows)
            out.extend(int(i) for i in self._part(epoch, start, count - len(out)))
        return out

    def digest(self, position: int, count: int = LOOK_AHEAD) -> str:
        """Digest of the next `count` row numbers; equal digests mean that two runs go on with the same data (P35)."""
        return digest_json(self.ids(position, count))


def scattered(places: range, rows: int, words: Any) -> Any:
    """Where a pseudo-random permutation of 0 … rows - 1 puts these places. `words`: eight 32-bit words that choose it. Pure."""
    import numpy as np

    half = np.uint64((max(2, (rows - 1).bit_length()) + 1) // 2)
    mask = np.uint64((1 << int(half)) - 1)
    keys = [np.uint64(int(words[n]) << 32 | int(words[(n + 3) % 8])) for n in range(_ROUNDS)]
    out = np.arange(places.start, places.stop, dtype=np.uint64)
    wandering = np.ones(len(out), dtype=bool)
    while wandering.any():  # the network permutes a power of two: who lands outside the rows goes on, and comes back in
        left, right = out[wandering] >> half, out[wandering] & mask
        for key in keys:
            left, right = right, left ^ (_mixed(right, key) & mask)
        out[wandering] = left << half | right
        wandering[wandering] = out[wandering] >= rows
    return out.astype(np.int64)


def _mixed(values: Any, key: Any) -> Any:
    """splitmix64's finish of value + key; the product is meant to overflow."""
    import numpy as np

    with np.errstate(over="ignore"):
        x = values + key
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def steps_for(rows: int, epochs: float, global_batch: int) -> int:
    """Steps that cover `epochs` passes; the last one may reach into the next epoch."""
    return max(1, math.ceil(rows * epochs / global_batch - 1e-9))
