"""GPUs and jobs that an owner's queued and running runs hold, from the runs' own records and one look at the queue."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from tuneplane.contract.layout import RunPaths, StorageRoot
from tuneplane.record.files import read_json

from hpc.submit.admission import Usage


def _json(path: os.PathLike[str]) -> dict[str, Any] | None:
    try:
        value = read_json(path)
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _names(path: os.PathLike[str]) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def newest_number(run: RunPaths, folder: str) -> int | None:
    """The highest numbered entry of `attempts/` or `submissions/`."""
    numbers = [int(stem) for name in _names(run.root / folder) if (stem := name.removesuffix(".json")).isdigit()]
    return max(numbers, default=None)


def owner_runs(root: StorageRoot, owner: str) -> Iterator[RunPaths]:
    """Every run folder of an owner."""
    for exp in _names(root.owner_runs(owner)):
        for run_id in _names(root.owner_runs(owner) / exp):
            if run_id.startswith("run-"):
                yield root.run(owner, exp, run_id)


def open_submission(run: RunPaths) -> dict[str, Any] | None:
    """The newest submission of a run whose last attempt has not ended for good; None for a finished or never submitted run."""
    number = newest_number(run, "submissions")
    if number is None:
        return None
    attempt = newest_number(run, "attempts")
    if attempt is not None and attempt >= number:
        end = _json(run.attempt(attempt).end)
        if end is not None and not end.get("requeue"):
            return None
    return _json(run.submissions / f"{number}.json")


def _gpus(run: RunPaths) -> int:
    launch = _json(run.launch) or {}
    return sum(p["nodes"] * p["gpus_per_node"] for p in launch.get("shape", {}).get("pools", ()))


def usage_of(root: StorageRoot, owner: str, queued: frozenset[str] | None) -> Usage:
    """Sum over the owner's open runs. `queued` are the ids Slurm has of this owner, None when it could not be asked: then every open run counts."""
    gpus = jobs = 0
    for run in owner_runs(root, owner):
        if holds(run, queued):
            gpus, jobs = gpus + _gpus(run), jobs + 1
    return Usage(gpus, jobs)


def holds(run: RunPaths, queued: frozenset[str] | None) -> bool:
    """True while a run is queued or running as far as its records and `queued` tell; a job that its fleet no longer has holds nothing."""
    submission = open_submission(run)
    if submission is None:
        return False
    if submission.get("kind") == "local":
        return _alive(submission)
    return queued is None or str(submission.get("job_id")) in queued


def _alive(submission: dict[str, Any]) -> bool:
    from hpc.store.owners import start_ticks

    return start_ticks(int(submission.get("pid") or 0)) == submission.get("pid_start")
