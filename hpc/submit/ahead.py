"""Asks while something else is done: waiting for Slurm's answer and writing a package need not come one after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Ahead(Generic[T]):
    """Starts `ask` at once, beside the caller. An answer that nobody collects any more does not keep the process alive."""

    def __init__(self, ask: Callable[[], T]) -> None:
        self._ask = ask
        self._answers: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answers.append(self._ask())
        except BaseException as exc:  # raised again where the answer is collected
            self._error = exc

    def answer(self) -> T:
        """Waits for the answer. Raises what `ask` raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._answers[0]
