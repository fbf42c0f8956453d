"""Rows as Slurm would answer for the run maker's job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from builder import epoch

from hpc.runs.state import Look
from hpc.slurm.query import JobRow

NOW = epoch(1000)


def row(state: str = "RUNNING", **changes: Any) -> JobRow:
    """A row of the run's own job."""
    base = JobRow(
        job_id="100", raw_id=100, state=state, reason="None", name="sft.run-0a1b2c3d.0", comment="tp:run-0a1b2c3d:cafe0123cafe0123",
        submitted_at=int(epoch(5)), started_at=None, ended_at=None, nodes=2, node_list="", partition="batch", account="lab", qos="normal",
        user="alice", cluster="lab", restarts=0, time_limit="1:00:00", dependency="", exit_code=None, signal=None, source="squeue",
    )  # fmt: skip
    return replace(base, **changes)


def past(state: str, **changes: Any) -> JobRow:
    values = {"source": "sacct", "ended_at": int(epoch(500)), "restarts": None, "exit_code": 1, "signal": 0, **changes}
    return row(state, **values)


def look(*queue: JobRow, history: tuple[JobRow, ...] = (), **changes: Any) -> Look:
    values = {"polled_at": NOW, "asked": ("100",), **changes}
    return Look(queue, history, **values)
