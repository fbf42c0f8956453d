"""`python local_wait.py PID TICKS COMMAND…`: wait until the process is gone, then become the command. Standard library only.

A job of the local fleet waits so for the job that it follows. The command keeps this process's number and start time, by which the job is known;
whether the other job ended well is not asked here: the job's own launcher reads that run's records before it starts anything.
"""

from __future__ import annotations

import os
import sys
import time


def gone(pid: int, ticks: int) -> bool:
    """True if no process has this number and start time (clock ticks since boot) any more, or only a dead one that nobody has collected."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            fields = stream.read().rpartition(b")")[2].split()
    except OSError:
        return True
    return int(fields[19]) != ticks or fields[0] in (b"Z", b"X")


def main(argv: list[str]) -> None:
    pid, ticks, command = int(argv[0]), int(argv[1]), argv[2:]
    while not gone(pid, ticks):
        time.sleep(0.5)
    os.execv(command[0], command)  # noqa: S606 - the caller's own interpreter and controller


if __name__ == "__main__":
    main(sys.argv[1:])
