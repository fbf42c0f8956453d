"""The order of the rows: a pure function of the seed and the position, so that a position is all a checkpoint must hold.

The epochs' permutations follow each other without a gap: a batch may span two epochs, no row is dropped or doubled within one. The generator is
numpy's frozen legacy stream, which no later release changes.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

from tuneplane.record.digest import digest_json

LOOK_AHEAD = 100
"""How many sample ids the continuity digest covers."""


class Order:
    """Row numbers by position 0, 1, 2, …; `position // rows` is the epoch."""

    def __init__(self, rows: int, seed: int) -> None:
        if rows < 1:
            raise ValueError("no rows to order")
        self.rows, self.seed = rows, seed
        self._epochs: dict[int, Any] = {}

    def _permutation(self, epoch: int) -> Any:
        if epoch not in self._epochs:
            import numpy as np

            words = np.frombuffer(hashlib.sha256(f"tuneplane order {self.seed} {epoch}".encode()).digest(), dtype="<u4")
            self._epochs = {e: p for e, p in self._epochs.items() if e == epoch - 1}  # at most two are alive
            self._epochs[epoch] = np.random.RandomState(words).permutation(self.rows)
        return self._epochs[epoch]

    def ids(self, position: int, count: int) -> list[int]:
        """The row numbers at positions `position` … `position + count - 1`."""
        out: list[int] = []
        while len(out) < count:
            epoch, start = divmod(position + len(out), self.rows)
            out.extend(int(i) for i in self._permutation(epoch)[start : start + count - len(out)])
        return out

    def digest(self, position: int, count: int = LOOK_AHEAD) -> str:
        """Digest of the next `count` row numbers; equal digests mean that two runs go on with the same data (P35)."""
        return digest_json(self.ids(position, count))


def steps_for(rows: int, epochs: float, global_batch: int) -> int:
    """Steps that cover `epochs` passes; the last one may reach into the next epoch."""
    return max(1, math.ceil(rows * epochs / global_batch - 1e-9))
