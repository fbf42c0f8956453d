"""The attempt before this one: how it ended, and the end record that nobody could write when its batch host or node died."""

from __future__ import annotations

from typing import Any

from tuneplane.contract import schemas
from tuneplane.contract.layout import RunPaths
from tuneplane.record.files import read_json, write_json_new


def _step(run: RunPaths) -> int | None:
    try:
        step = read_json(run.checkpoints / "latest.json").get("step")
    except (OSError, ValueError, AttributeError):
        return None
    return step if isinstance(step, int) else None


def close_previous(run: RunPaths, run_id: str, attempt: int, *, restart_count: int, now: str) -> str | None:
    """Class of the end of the attempt before this one, None for the first attempt. A number whose submission was refused has no attempt.

    An attempt that Slurm restarted without an end record died with its node: this attempt, the next in the same job, adds that record. What was
    written is never changed.
    """
    if attempt == 0:
        return None
    before = next(
        (a for n in range(attempt - 1, -1, -1) if (a := run.attempt(n)).root.is_dir()), run.attempt(attempt - 1)
    )
    try:
        return str(read_json(before.end)["class"])
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError):
        return "lost"
    if restart_count == 0 or before.number != attempt - 1 or not before.root.is_dir():
        return "lost"
    record: dict[str, Any] = {
        "schema": schemas.ATTEMPT_END,
        "run_id": run_id,
        "attempt": attempt - 1,
        "job_id": None,
        "ended_at": now,
        "class": "node_fail",
        "exit_code": None,
        "signal": 0,
        "message": f"left no end record; Slurm restarted the job, and attempt {attempt} found it so",
        "step": _step(run),
        "requeue": True,
        "reason": "restarted by Slurm",
    }
    try:
        write_json_new(before.end, record)
    except FileExistsError:
        return str(read_json(before.end)["class"])
    return "node_fail"
