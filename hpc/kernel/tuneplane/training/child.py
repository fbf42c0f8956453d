"""A program that this rank starts and waits for: bounded, and no failure where it was a warning that ended it. Standard library only."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from tuneplane.training import warning
from tuneplane.training.going import Growth

_LOOK_S = 0.2
_WARNINGS = (signal.SIGUSR2, signal.SIGTERM)
_LATE_S = 2.0


def run(
    argv: Sequence[str], env: Mapping[str, str], bound_s: float, *, stdout: IO[bytes], stderr: IO[bytes],
    seen: Callable[[], Any] | None = None,
) -> int | None:  # fmt: skip
    """The program's exit code; None when it took longer than `bound_s` seconds, counted anew whenever what `seen` says is another than before.

    Nothing that it started is left, whatever happens.

    It has a session of its own, so that what is sent to this rank's group does not reach it. Raises Warned as soon as a warning has come, also where
    the program ended just then: a batch system may have sent it the same signal. Raises OSError where it cannot be started.
    """
    child = subprocess.Popen(
        list(argv), env=dict(env), stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True
    )
    until, growth = time.monotonic() + bound_s, Growth(seen)
    try:
        while time.monotonic() < until:
            try:
                code = child.wait(_LOOK_S)
            except subprocess.TimeoutExpired:
                warning.check()
                if growth.moved():
                    until = time.monotonic() + bound_s
            else:
                if -code in _WARNINGS:  # the same signal may be on its way to this rank
                    time.sleep(_LATE_S)
                warning.check()
                return code
        return None
    finally:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.wait()
