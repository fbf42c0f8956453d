"""Trying again: 2, 4, 8 … 60 seconds between tries of what may pass, and no second try of what will not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from hpc.errors.core import Refusal

T = TypeVar("T")
FIRST_S, LONGEST_S = 2.0, 60.0
ATTEMPTS = 10
LASTING = frozenset(range(400, 500)) - {408, 425, 429}
"""Statuses that another try does not change."""


class PassingError(Exception):
    """What a later try may not meet: no connection, a cut one, 408, 429, 5xx. `after_s`: what the server asked to wait."""

    def __init__(self, message: str, after_s: float = 0.0) -> None:
        super().__init__(message)
        self.message, self.after_s = message, after_s


def delays() -> Iterator[float]:
    """2, 4, 8, 16, 32, 60, 60, …"""
    wait = FIRST_S
    while True:
        yield min(wait, LONGEST_S)
        wait = min(2 * wait, LONGEST_S)


def patiently(
    call: Callable[[], T], *, sleep: Callable[[float], None], what: str, attempts: int = ATTEMPTS,
    moved: Callable[[], int] = lambda: 0, told: Callable[[str, float], None] = lambda text, wait: None,
) -> T:  # fmt: skip
    """What `call` gives, trying again after a PassingError; other exceptions pass through at once.

    `attempts` counts tries without progress: when `moved` (bytes so far) grew since the last failure, counting and waiting start anew.
    Raises Refusal E-HUB-010 after the last.
    """
    failures, waits, before = 0, delays(), moved()
    while True:
        try:
            return call()
        except PassingError as exc:
            if (now := moved()) > before:
                failures, waits, before = 0, delays(), now
            failures += 1
            if failures >= attempts:
                raise Refusal("E-HUB-010", f"{what}: {exc.message}", field=what, found=f"{attempts} tries") from exc
            wait = max(next(waits), min(exc.after_s, LONGEST_S))
            told(exc.message, wait)
            sleep(wait)
