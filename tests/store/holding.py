"""A forked process that holds a lock until it is killed."""

from __future__ import annotations

import os
import time
from pathlib import Path

from hpc.store.locks import held
from hpc.store.owners import this_process


def hold_in_child(lock: Path) -> int:
    """Fork a process that holds the lock, as job 77 would; returns its pid once it is inside."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            with held(lock, owner=this_process("a test", env={"SLURM_JOB_ID": "77"})):
                os.write(writer, b"x")
                time.sleep(600)
        finally:
            os._exit(1)
    os.close(writer)
    entered = os.read(reader, 1)
    os.close(reader)
    assert entered == b"x"
    return pid
