"""The reference of preference methods: what the model gave to an answer before it was trained.

With LoRA the reference is the model with its adapters off, asked beside each step. With all weights in training it is asked once, before the
first step, and kept below `RUN_DIR/cache/reference` by content, so that no second model stands in memory and a later attempt finds it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tuneplane.record.digest import digest_json
from tuneplane.record.files import replace
from tuneplane.training import warning
from tuneplane.training.engine import Engine
from tuneplane.training.forward import Batch, Row, answer_logits, token_logps
from tuneplane.training.peers import Peers
from tuneplane.training.watchdog import Watchdog

_FORMAT = "tuneplane-hpc/reference/v1"
_SHA = 32


class Reference:
    """Summed log-probabilities of answers under the initial model, in fp32. `model` is the digest of its folder."""

    def __init__(self, cache: Path, model: str, peers: Peers, watchdog: Watchdog) -> None:
        self._cache, self._model, self._peers, self._watchdog = cache, model, peers, watchdog
        self._known: dict[str, Any] = {}
        self.notes: list[str] = []
        """What `know` did, for people."""

    def know(
        self, engine: Engine, name: str, count: int, row: Callable[[int], Row], batch: Callable[[Sequence[Row]], Batch]
    ) -> None:
        """Make the values of rows 0 … count - 1 known under `name`, which says their content. Before a checkpoint is loaded. A collective.

        Nothing is done with LoRA. A warning ends the work on all ranks: Warned.
        """
        import numpy as np

        if engine.settings.lora:
            return
        key = digest_json([_FORMAT, name, self._model, engine.precision, bool(engine.settings.zero_stage)])
        path = self._cache / f"{key.removeprefix('sha256:')[:32]}.bin"
        start_timeout_s = self._peers.policies.start_timeout_s
        found = _read(path, count) if self._peers.first else None
        # Rank 0 alone looks: another node's file system may not show the file yet.
        if self._peers.total([float(found is not None)])[0]:
            self._known[name] = self._shared(np.zeros(count) if found is None else found)
            self.notes.append(f"reference: {count} answers known from an earlier attempt")
            return
        values = self._known[name] = self._ask(engine, count, row, batch)
        self._peers.once(f"keep {path.name}", lambda: _keep(path, values), start_timeout_s, by=0)
        self.notes.append(f"reference: {count} answers asked of the initial model, kept for later attempts")

    def _shared(self, values: Any) -> Any:
        """The sum over all ranks, of which one at most has a value in each place."""
        import numpy as np

        return np.asarray(self._peers.total(values.tolist()), dtype="<f8")

    def _ask(
        self, engine: Engine, count: int, row: Callable[[int], Row], batch: Callable[[Sequence[Row]], Batch]
    ) -> Any:
        import numpy as np

        size, place = engine.settings.micro_batch_size, self._peers.place
        values = np.zeros(count, dtype="<f8")
        for start in range(0, count, size * place.world_size):
            self._watchdog.again()
            if self._peers.total([float(warning.given() is not None)])[0]:
                given = warning.given()
                raise warning.Warned(given.name if given else "another rank's signal")
            first = start + place.rank * size
            mine = range(first, min(first + size, count))
            with engine.asking():
                found = logps(engine, batch([row(i) for i in mine or [0]]))
            if mine:
                values[mine.start : mine.stop] = found.double().cpu().numpy()
        return self._shared(values)

    def logps(self, engine: Engine, name: str, numbers: Sequence[int], batch: Batch) -> Any:
        """The reference's log-probabilities of these rows, whose tensors are in `batch`; shape (rows,), on the device."""
        import torch

        if engine.settings.lora:
            with engine.initially():
                return logps(engine, batch)
        return torch.tensor(self._known[name][list(numbers)], dtype=torch.float32, device=batch.labels.device)


def logps(engine: Engine, batch: Batch) -> Any:
    """Log-probability of each row's answer under the model as it is now, (rows,)."""
    return token_logps(*answer_logits(engine, batch)).sum(-1)


def _keep(path: Path, values: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = values.tobytes()
    replace(path, hashlib.sha256(data).digest() + data)


def _read(path: Path, count: int) -> Any | None:
    """The kept values; None where there are none, or the file is not what was written."""
    import numpy as np

    try:
        with open(path, "rb") as stream:
            if os.fstat(stream.fileno()).st_size != _SHA + 8 * count:
                return None
            digest, data = stream.read(_SHA), stream.read()
    except FileNotFoundError:
        return None
    return np.frombuffer(data, dtype="<f8") if hashlib.sha256(data).digest() == digest else None
