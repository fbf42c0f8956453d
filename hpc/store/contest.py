"""Does a lock exclude? Two processes take it again and again and note when they were inside; the notes must never
overlap.

The notes come from one monotonic clock, so both processes run on one host. That a lock excludes between hosts cannot
be shown this way; where the mount is a network one the verdict says so.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Final

Mechanism = Callable[[str, float], AbstractContextManager[None]]
"""(path of the lock file, deadline on time.monotonic) -> context that holds the lock.

Raises OSError, TimeoutError when it does not get it.
"""

SOUND: Final = "sound"
UNSOUND: Final = "unsound"
UNSUPPORTED: Final = "unsupported"
STUCK: Final = "stuck"
_NOTE = struct.Struct("<qq")
_FAULT = struct.Struct("<qq")
_UNSUPPORTED_ERRNOS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EINVAL})


@dataclass(frozen=True)
class Outcome:
    """What a check found: sound | unsound | unsupported | stuck, and the evidence in words."""

    verdict: str
    detail: str

    @property
    def sound(self) -> bool:
        return self.verdict == SOUND


@contextmanager
def _fcntl_lock(path: str, deadline: float, take: Callable[[int, int], None]) -> Iterator[None]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                take(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as exc:
                if exc.errno not in (errno.EAGAIN, errno.EACCES, errno.EINTR):
                    raise
                if time.monotonic() > deadline:
                    raise TimeoutError("not acquired") from exc
                time.sleep(0.0005)
        yield
        take(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)


def flock(path: str, deadline: float) -> AbstractContextManager[None]:
    """BSD locks of whole files."""
    return _fcntl_lock(path, deadline, fcntl.flock)


def posix(path: str, deadline: float) -> AbstractContextManager[None]:
    """POSIX byte-range locks (what NFS maps flock to)."""
    return _fcntl_lock(path, deadline, fcntl.lockf)


@contextmanager
def strict_soft(path: str, deadline: float) -> Iterator[None]:
    """filelock's strict soft lock, the one that `hpc.store.locks` takes."""
    from filelock import StrictSoftFileLock

    with StrictSoftFileLock(path, timeout=max(0.0, deadline - time.monotonic()), poll_interval=0.001):
        yield


MECHANISMS: Final[Mapping[str, Mechanism]] = {"strict_soft": strict_soft, "posix": posix, "flock": flock}


def _contend(mechanism: Mechanism, path: str, rounds: int, hold_s: float, deadline: float, out: int) -> None:
    try:
        for _ in range(rounds):
            with mechanism(path, deadline):
                entered = time.monotonic_ns()
                time.sleep(hold_s)
                left = time.monotonic_ns()
            os.write(out, _NOTE.pack(entered, left))
            time.sleep(hold_s / 4)  # let the other one in
    except TimeoutError:
        os.write(out, _FAULT.pack(-1, errno.ETIMEDOUT))
    except OSError as exc:
        os.write(out, _FAULT.pack(-1, exc.errno or errno.EOPNOTSUPP))


def _start(mechanism: Mechanism, path: str, rounds: int, hold_s: float, deadline: float) -> tuple[int, int]:
    """Fork one contender; (pid, read end of its notes)."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reader)
            _contend(mechanism, path, rounds, hold_s, deadline, writer)
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    return pid, reader


def _collect(readers: list[int], deadline: float) -> dict[int, bytes]:
    notes = dict.fromkeys(readers, b"")
    waiting = list(readers)
    while waiting and (left := deadline - time.monotonic()) > 0:
        for fd in select.select(waiting, [], [], left)[0]:
            if data := os.read(fd, 1 << 16):
                notes[fd] += data
            else:
                waiting.remove(fd)
    return notes


def overlaps(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> int:
    """How many stays of `one` overlap a stay of `other`. Pure."""
    return sum(any(a < d and c < b for c, d in other) for a, b in one)


def judge(notes: list[list[tuple[int, int]]], rounds: int) -> Outcome:
    """The verdict on two contenders' notes; a note that starts with -1 carries an errno. Pure."""
    faults = sorted({b for each in notes for a, b in each if a == -1})
    stays = [[(a, b) for a, b in each if a != -1] for each in notes]
    if count := overlaps(stays[0], stays[1]):
        return Outcome(UNSOUND, f"both processes were inside at once, {count} times in {rounds} rounds")
    if hard := [f for f in faults if f != errno.ETIMEDOUT]:
        words = ", ".join(f"{errno.errorcode.get(f, f)} ({os.strerror(f)})" for f in hard)
        verdict = UNSUPPORTED if all(f in _UNSUPPORTED_ERRNOS for f in hard) else UNSOUND
        return Outcome(verdict, words)
    if faults or any(len(each) < rounds for each in stays):
        got = " and ".join(str(len(each)) for each in stays)
        return Outcome(STUCK, f"only {got} of {rounds} rounds were finished in time")
    return Outcome(SOUND, f"{rounds} rounds each, never both inside")


def contest(
    mechanism: Mechanism, path: str, *, rounds: int = 40, hold_s: float = 0.001, limit_s: float = 10.0
) -> Outcome:
    """Let two forked processes contend for the lock at `path`.

    Never takes longer than about `limit_s`; a contender that hangs is killed.
    """
    deadline = time.monotonic() + limit_s
    children = [_start(mechanism, path, rounds, hold_s, deadline) for _ in range(2)]
    try:
        raw = _collect([reader for _, reader in children], deadline + 1)
    finally:
        for pid, reader in children:
            os.close(reader)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    notes = [list(_NOTE.iter_unpack(data[: len(data) // _NOTE.size * _NOTE.size])) for data in raw.values()]
    return judge([[(a, b) for a, b in each] for each in notes], rounds)
