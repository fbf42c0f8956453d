"""A last bound on everything: a thread that ends this rank when the main thread shows no life for too long.

Gloo's collectives have bounds of their own; a hung GPU kernel, a stuck save on a dead file server or NCCL waiting for a silent peer have not.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from tuneplane.contract import exits


def _end(message: str) -> None:
    os.write(2, f"{message}\n".encode())
    os._exit(exits.PEER_LOST)


class Watchdog:
    """`beat(doing, limit_s)` says what the main thread does now and how long it may take. Exit code 87 when it takes longer."""

    def __init__(self, end: Callable[[str], None] = _end, clock: Callable[[], float] = time.monotonic) -> None:
        self._end, self._clock = end, clock
        self._doing, self._limit, self._until = "starting", float("inf"), float("inf")
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, every_s: float = 0.5) -> Watchdog:
        def watch() -> None:
            while not self._stop.wait(every_s):
                self.look()

        self._thread = threading.Thread(target=watch, name="watchdog", daemon=True)
        self._thread.start()
        return self

    def beat(self, doing: str, limit_s: float) -> None:
        self._until = float("inf")  # in this order, so that the new text never meets the old time
        self._doing, self._limit = doing, limit_s
        self._until = self._clock() + limit_s

    def again(self) -> None:
        """Still the same, but a part of it is done: the time starts anew."""
        self._until = self._clock() + self._limit

    @property
    def doing(self) -> str:
        """What the main thread said last."""
        return self._doing

    def rest(self) -> None:
        """Nothing is awaited now."""
        self._limit = self._until = float("inf")

    def look(self) -> None:
        """End the rank if the time is over."""
        if self._clock() > self._until:
            doing, self._until = self._doing, float("inf")
            self._end(f"no end in sight: {doing} took longer than its bound; this rank stops (exit {exits.PEER_LOST})")

    def stop(self) -> None:
        self._stop.set()
