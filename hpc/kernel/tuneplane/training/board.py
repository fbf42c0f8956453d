"""TensorBoard's event files beside metrics.jsonl, which stays the truth: one folder a run, continued by each attempt (P36).

An attempt that goes on after step n begins its file with the word that later steps of earlier files count no more, so that TensorBoard shows no step
twice. Where the package tensorboard is not installed, or its files cannot be written, the run says so once and trains on.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = "tensorboard"
"""Below the run's folder, whose name is the run's id: what TensorBoard calls a run is ours."""


class Board:
    """Scalars of one attempt. `fault` says why there are none."""

    def __init__(self, folder: Path, done_steps: int) -> None:
        self.fault = ""
        self._writer: Any = None
        try:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(folder), purge_step=done_steps + 1, flush_secs=30)
        except ImportError:
            self.fault = "no TensorBoard files: the package tensorboard is not installed in this image"
        except OSError as exc:
            self.fault = f"no TensorBoard files: {exc}"

    def add(self, part: str, step: int, values: Mapping[str, float]) -> None:
        """One point a value, under `<part>/<name>`."""
        self._try(lambda w: [w.add_scalar(f"{part}/{name}", value, step) for name, value in values.items()])

    def flush(self) -> None:
        self._try(lambda w: w.flush())

    def _try(self, work: Any) -> None:
        if self._writer is None:
            return
        try:
            work(self._writer)
        except OSError as exc:
            self._writer, self.fault = None, f"no more TensorBoard files: {exc}"
