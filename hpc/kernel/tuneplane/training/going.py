"""Signs that work which others wait for comes further: what bounds a wait is the silence of the workers, not the size of their work."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_SIGN_S = 1.0
"""At most one sign in this time reaches the store: it is the same for thousands of ranks."""
LOOK_S = 5.0


class Going:
    """The signs under one name in the ranks' store. Any thread, of the workers and of those who wait, may use it.

    `heard` is called when a sign of anybody was seen, `at` is when that was. With `fixed` signs change nothing: the bound is one on the whole.
    """

    def __init__(
        self, store: Any, key: str, bound_s: float, heard: Callable[[], None] = lambda: None, *, fixed: bool = False
    ) -> None:
        self.bound_s, self.fixed = bound_s, fixed
        self._store, self._key, self._heard = store, key, heard
        self._seen, self._sent, self.at = 0, 0.0, time.monotonic()

    def sign(self) -> None:
        """This rank has come further."""
        if time.monotonic() - self._sent >= _SIGN_S:
            self._sent = time.monotonic()
            self._store.add(self._key, 1)

    def over(self) -> bool:
        """Nobody has come further for longer than the bound."""
        if not self.fixed and (count := self._store.add(self._key, 0)) != self._seen:
            self._seen, self.at = count, time.monotonic()
            self._heard()
        return time.monotonic() - self.at > self.bound_s

    def text(self) -> str:
        return f"in {self.bound_s:.0f} s" if self.fixed else f"in {self.bound_s:.0f} s without a sign"


class Growth:
    """Whether what `seen` says is another than before; asked at most every few seconds, since it may look at many files."""

    def __init__(self, seen: Callable[[], Any] | None) -> None:
        self._seen, self._asked = seen, time.monotonic()
        self._last = seen() if seen else None

    def moved(self) -> bool:
        if self._seen is None or time.monotonic() - self._asked < LOOK_S:
            return False
        before, self._last, self._asked = self._last, self._seen(), time.monotonic()
        return bool(self._last != before)


def size_below(folder: Path) -> int:
    """Bytes of the files below a folder as far as they are written now; 0 where there is none."""
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(base, name)).st_size
            except OSError:
                continue
    return total


@contextmanager
def beside(every_s: float, act: Callable[[], None]) -> Iterator[None]:
    """A thread that calls `act` all the time while the block lasts."""
    stop = threading.Event()

    def go() -> None:
        while not stop.wait(every_s):
            act()

    thread = threading.Thread(target=go, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
