"""The warning signal: a rank is told that its time is nearly over. Standard library only.

`install()` comes before the heavy imports, since a signal with no handler kills a rank that is still importing. The handler only remembers;
what follows (all ranks agree at a step edge, save, leave) is the loop's business. Only the first warning counts.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from types import FrameType

SIGNALS = (signal.SIGUSR2, signal.SIGTERM)
"""USR2 is what the batch script sends; TERM is what Slurm itself sends at preemption."""


@dataclass(frozen=True)
class Given:
    """A warning that arrived: the signal's name and `time.monotonic()` of its arrival."""

    name: str
    at: float


class Warned(Exception):  # noqa: N818 - the job is not in error
    """Work was left early since a warning came; nothing that was finished is lost."""


_given: Given | None = None


def _note(number: int, _frame: FrameType | None) -> None:
    global _given
    if _given is None:
        _given = Given(signal.Signals(number).name, time.monotonic())
        os.write(2, f"warning {_given.name} received; this rank saves with the others at the next step edge\n".encode())


def install(signals: Iterable[signal.Signals] = SIGNALS) -> None:
    """Remember the given signals from now on. Call it in the main thread, before anything heavy is imported."""
    for number in signals:
        signal.signal(number, _note)


def given() -> Given | None:
    """The first warning, if one came."""
    return _given


def check() -> None:
    """Raise Warned if a warning came; for long work before the first step."""
    if _given is not None:
        raise Warned(_given.name)
