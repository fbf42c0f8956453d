"""Whose turn it is: an attempt whose node Slurm took for dead may live on, and must leave the run to the attempt that has begun since."""

from __future__ import annotations

import os

from tuneplane.contract.layout import RunPaths


def successor(run: RunPaths, attempt: int) -> int | None:
    """The newest attempt after this one that a job has claimed, None while this one is the last."""
    try:
        names = os.listdir(run.attempts)
    except FileNotFoundError:
        return None
    later = (int(name) for name in names if name.isdigit() and int(name) > attempt)
    return max((n for n in later if run.attempt(n).claim.exists()), default=None)
