"""Every process that descends from this one, found and ended: also those that left the group, the session or their parent.

As a subreaper the runner inherits every orphan below it, so a provider's process stays its descendant whatever it forks (`setsid`, double
fork, a subreaper of its own). Out of reach is what descends from somebody else (work handed to a daemon, to another node or container), what
another user's rights protect, and a process that takes a new session with each fork and ends at once, faster than /proc can be read.
If the runner itself is killed with KILL, only the provider's first process is (PR_SET_PDEATHSIG); the rest is left to Slurm's cgroup.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass

from tuneplane.transforms.limits import END_S, POLL_S

_SET_CHILD_SUBREAPER, _SET_PDEATHSIG = 36, 1
_REAPED_AT_ONCE = 10_000
"""Ends taken in one go: more may come as fast as they are taken, and the deadline must be looked at."""


def _prctl(option: int, value: int) -> bool:
    try:
        import ctypes

        return bool(ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies; ends it here if `parent` is gone already."""
    _prctl(_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


@dataclass(frozen=True)
class _Seen:
    """One line of /proc: a process's parent, group and state letter."""

    parent: int
    group: int
    state: str


def _table() -> dict[int, _Seen]:
    """Every process that can be seen, by pid."""
    out = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as stream:
                fields = stream.read().rpartition(b")")[2].split()
        except OSError:
            continue  # it has ended
        if len(fields) > 2:
            out[int(name)] = _Seen(int(fields[1]), int(fields[2]), fields[0].decode())
    return out


class Family:
    """The processes below this one, but those (and theirs) that were there when it was made.

    `subreaper`: orphans below this process become its children. Where the interpreter or the kernel cannot do that, an orphan is found only as
    long as it stays in the worker's process group.
    """

    def __init__(self) -> None:
        self.subreaper = _prctl(_SET_CHILD_SUBREAPER, 1)
        self._me, self._own_group = os.getpid(), os.getpgrp()
        self._spared: frozenset[int] = frozenset()
        self._spared = frozenset(self._look()[0])

    def _look(self) -> tuple[set[int], set[int]]:
        """(pids of living descendants, their process groups). A group counts while an ended member waits to be reaped: a process that forks
        and ends faster than anyone looks is found by what it leaves."""
        table = _table()
        children: dict[int, list[int]] = {}
        for pid, seen in table.items():
            children.setdefault(seen.parent, []).append(pid)
        living, groups, queue = set(), set(), [self._me]
        while queue:
            for pid in children.get(queue.pop(), ()):
                if pid not in self._spared:
                    queue.append(pid)
                    groups.add(table[pid].group)
                    if table[pid].state not in "ZX":
                        living.add(pid)
        return living, groups - {self._own_group}

    def end(self, worker: subprocess.Popen[bytes], grace_s: float) -> tuple[int, list[int]]:
        """TERM, up to `grace_s`, then KILL. (How many lived when this was called, pids that could not be ended within END_S.)"""
        there, groups = self._look()
        if worker.returncode is None or not self.subreaper:
            groups.add(worker.pid)
        _signal(there, groups, signal.SIGTERM)
        limit = time.monotonic() + grace_s
        living = there
        while living and time.monotonic() < limit:
            self.reap(worker)
            time.sleep(POLL_S)
            living = self._look()[0]
        return len(there), sorted(self._kill(worker, groups))

    def _kill(self, worker: subprocess.Popen[bytes], groups: set[int]) -> set[int]:
        """KILL until two looks in a row find nobody, for END_S at most; who is left.

        All are stopped before any is killed, so that none forks while its relatives die; a group gets its signal as a whole.
        """
        stopped: set[int] = set()
        quiet, limit = 0, time.monotonic() + END_S
        while quiet < 2 and time.monotonic() < limit:
            living, seen = self._look()
            groups |= seen
            fresh = living - stopped
            _signal(fresh or living, groups, signal.SIGSTOP if fresh else signal.SIGKILL)
            stopped |= fresh
            quiet = 0 if living else quiet + 1
            if not fresh:
                self.reap(worker)
                time.sleep(POLL_S / 4)
        return self._look()[0]

    @staticmethod
    def reap(worker: subprocess.Popen[bytes]) -> None:
        """Take the ends of inherited orphans; the worker's own end stays `worker.returncode`."""
        for _ in range(_REAPED_AT_ONCE):
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            if ended.si_pid == worker.pid and worker.returncode is None:
                worker.poll()
            else:
                os.waitpid(ended.si_pid, os.WNOHANG)


def _signal(pids: Iterable[int], groups: Iterable[int], signum: int) -> None:
    for target in [*pids, *(-group for group in groups)]:
        try:
            os.kill(target, signum)
        except (ProcessLookupError, PermissionError):
            pass
