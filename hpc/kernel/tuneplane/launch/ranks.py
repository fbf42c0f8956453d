"""Start this node's ranks, stamp and store their output, pass warnings on, and end them all when one fails."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tuneplane.contract import exits

WARNINGS = (signal.SIGUSR2, signal.SIGTERM)


@dataclass(frozen=True)
class RankEnd:
    """How one rank ended: exit_code, or the number of the signal that killed it; `by_us` if this launcher killed it."""

    rank: int
    exit_code: int
    signal: int
    by_us: bool

    def as_json(self) -> dict[str, Any]:
        return {"rank": self.rank, "exit_code": self.exit_code, "signal": self.signal, "by_us": self.by_us}


def heeds_warnings(entry: Mapping[str, Any]) -> bool:
    """A Python program that is started once a rank; any other entry may be a shell around the program that a warning is meant for."""
    return bool(entry["kind"] == "rank" and entry["argv"][0] == "$PYTHON")


class _Pump(threading.Thread):
    """Copies one rank's output to its log, each line with the time it arrived."""

    def __init__(self, source: IO[bytes], log: Path, now: Callable[[], str]) -> None:
        super().__init__(daemon=True)
        self._source, self._log, self._now = source, log, now

    def run(self) -> None:
        with open(self._log, "ab", buffering=0) as out:
            while line := self._source.readline(1 << 16):
                out.write(self._now().encode() + b" " + line.rstrip(b"\r\n") + b"\n")


class RankGroup:
    """The ranks of one node. `warn` may be called from a signal handler at any time."""

    def __init__(self, now: Callable[[], str], say: Callable[[str], None]) -> None:
        self._now, self._say = now, say
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._pumps: list[_Pump] = []
        self._killed: set[int] = set()
        self._alone: set[int] = set()
        self.warned: list[str] = []

    def start(
        self, rank: int, argv: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path, *, alone: bool = False
    ) -> None:
        """Start one rank in a session of its own. Raises OSError.

        `alone`: a warning is for the rank itself and not for what it has started, as for a program that heeds it: a judge of its answers that died
        of the warning would have judged them wrong. A shell hears nothing while its program runs, so there all of them get it.
        """
        child = subprocess.Popen(
            list(argv),
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert child.stdout is not None
        pump = _Pump(child.stdout, log, self._now)
        pump.start()
        if alone:
            self._alone.add(child.pid)  # first: a warning may come at any time
        self._children[rank] = child
        self._pumps.append(pump)
        if self.warned:  # a warning that came while the ranks were being started
            self._signal(child, signal.Signals[self.warned[-1]])

    def warn(self, signum: int) -> None:
        """Pass a warning on to every rank, and to its process group where it was not started `alone`."""
        self.warned.append(signal.Signals(signum).name)
        for child in list(self._children.values()):
            self._signal(child, signum)

    def _signal(self, child: subprocess.Popen[bytes], signum: int) -> None:
        if child.poll() is None:
            try:
                (os.kill if child.pid in self._alone else os.killpg)(child.pid, signum)
            except ProcessLookupError:
                pass

    def _kill(self) -> None:
        for rank, child in self._children.items():
            if child.poll() is None:
                self._killed.add(rank)
            try:
                os.killpg(child.pid, signal.SIGKILL)  # also what a finished rank left behind
            except ProcessLookupError:
                pass

    def wait(self, *, grace_s: float, save_s: float, lost: Callable[[], bool] | None = None) -> list[RankEnd]:
        """Wait for every rank, or until `lost` says that they wait for nothing.

        After the first bad end the others get `grace_s` seconds to notice by themselves, after the first preempted one `save_s`; then they
        are killed, so that no rank burns its node for a peer that is gone. What a rank leaves behind is killed at once, but where the rank died
        of a warning itself: then it was a script, and the program that it had started may be saving.
        """
        deadline: float | None = None
        while any(c.poll() is None for c in self._children.values()):
            codes = [c.returncode for c in self._children.values() if c.returncode is not None]
            bad = any(code not in (exits.DONE, exits.PREEMPTED) for code in codes)
            if codes and deadline is None and (bad or exits.PREEMPTED in codes):
                deadline = time.monotonic() + (grace_s if bad else save_s)
            elif bad and deadline is not None:
                deadline = min(deadline, time.monotonic() + grace_s)
            if (deadline is not None and time.monotonic() > deadline) or (lost is not None and lost()):
                self._say("ranks did not end by themselves; ending them")
                break
            time.sleep(0.05)
        else:
            self._settle(time.monotonic() + grace_s if deadline is None else deadline)
        self._kill()
        for child in self._children.values():
            child.wait()
        for pump in self._pumps:
            pump.join(timeout=5)
        return [self._end(rank, child.returncode) for rank, child in sorted(self._children.items())]

    def _settle(self, deadline: float) -> None:
        """Until the process groups of ranks that died of our warning are empty, or the deadline."""
        sent = {-signal.Signals[name] for name in self.warned}
        left = [child.pid for child in self._children.values() if child.returncode in sent]
        while left and time.monotonic() < deadline:
            time.sleep(0.05)
            left = [pid for pid in left if _is_there(pid)]

    def _end(self, rank: int, code: int) -> RankEnd:
        return RankEnd(rank, code if code >= 0 else 128 - code, -code if code < 0 else 0, rank in self._killed)


def _is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody else's by now; it is there
    return True
