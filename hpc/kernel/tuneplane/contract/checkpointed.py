"""Evaluations of a run's checkpoints while the run goes on: who waits for which step, and what has become of each.

They are one array, held by Slurm, of a run of its own that follows the training (`followups.CHECKPOINTS`): element n waits for the n-th step. The
training's batch script releases an element once its checkpoint is published, cancels those whose checkpoint never came, and leaves a mark of either
in `evaluations/` of the training's run. A checkpoint that an evaluation still waits for or reads is pinned: it is not pruned. Standard library only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tuneplane.contract.followups import CANDIDATE, CHECKPOINTS
from tuneplane.contract.layout import RUN_ID, SEGMENT, AttemptPaths, RunPaths
from tuneplane.record.files import read_bytes, read_json

RELEASED: Final = "released"
CANCELLED: Final = "cancelled"
GONE: Final = "gone"
"""A mark's word: Slurm let the element go; it was cancelled, since its checkpoint never came; Slurm did not know it any more."""
MAX_CHECKPOINTS: Final = 50
"""Evaluations that one run may ask for; each is a job that waits in Slurm."""
_MARK: Final = re.compile(r"([0-9]{1,18})_([0-9]{1,6})")


@dataclass(frozen=True)
class Mark:
    """What the training's script did about one element: its Slurm job, a word, and when (UTC text)."""

    job_id: str
    word: str
    at: str


@dataclass(frozen=True)
class Evaluations:
    """The run that evaluates a run's checkpoints, and the steps of its elements in their order."""

    run: RunPaths
    steps: tuple[int, ...]


def name_of(step: int) -> str:
    """A checkpoint's folder below `checkpoints/`."""
    return f"step-{step:09d}"


def steps_of(launch: Mapping[str, Any]) -> tuple[int, ...]:
    """The steps that the elements of an evaluation of checkpoints wait for, by its launch.json; () for any other run."""
    named = (launch.get("late") or {}).get(CANDIDATE)
    steps = named.get("steps") if isinstance(named, dict) else None
    if not isinstance(steps, list) or any(type(step) is not int or step < 1 for step in steps):
        return ()
    return tuple(steps)


def evaluations_of(run: RunPaths) -> Evaluations | None:
    """What evaluates the checkpoints of a run, by its folder of follow-ups and their own packages; None where nothing does.

    Raises OSError, ValueError, KeyError, TypeError or AttributeError for records that are damaged, where no other says it.
    """
    folder = run.root / "followups"
    fault: Exception | None = None
    for name in sorted(os.listdir(folder)) if folder.is_dir() else ():
        try:
            if name.endswith(".json") and (found := _said(run, folder / name)):
                return found
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
            fault = exc  # another record may still say it
    if fault is not None:
        raise fault
    return None


def _said(run: RunPaths, path: Path) -> Evaluations | None:
    """The evaluations that one record of a follow-up points to; only what their own package says counts."""
    said = read_json(path)
    if said.get("action") != CHECKPOINTS:
        return None
    if not SEGMENT.match(said["exp"]) or not RUN_ID.match(said["run_id"]):
        raise ValueError(f"{path} names no run")
    child = RunPaths(run.root.parent.parent / said["exp"] / said["run_id"])
    launch = read_json(child.launch)
    steps = steps_of(launch) if launch["follows"]["run_id"] == run.run_id else ()
    return Evaluations(child, steps) if steps else None


def job_of(run: RunPaths) -> str:
    """Slurm's id of the newest submission of evaluations, "" where there is none. Raises OSError, ValueError, KeyError, TypeError."""
    folder = run.submissions
    names = os.listdir(folder) if folder.is_dir() else []
    numbers = [int(stem) for name in names if (stem := name.removesuffix(".json")).isascii() and stem.isdecimal()]
    return str(read_json(folder / f"{max(numbers)}.json")["job_id"]) if numbers else ""


def marks_of(run: RunPaths, job_id: str = "") -> dict[int, Mark]:
    """Element → its newest mark, of the job with the highest number, or of the job `job_id` alone: what was said of a job that was retried since
    says nothing of the new one. What is no mark is passed over. Raises OSError, ValueError."""
    try:
        names = os.listdir(run.evaluations)
    except FileNotFoundError:
        return {}
    found: dict[int, Mark] = {}
    for match in sorted(filter(None, map(_MARK.fullmatch, names)), key=lambda m: int(m[1])):
        if job_id not in ("", match[1]):
            continue
        word, _, at = (
            read_bytes(run.evaluations / match[0], limit=4096).decode("utf-8", "replace").strip().partition(" ")
        )
        if word in (RELEASED, CANCELLED, GONE):
            found[int(match[2])] = Mark(match[1], word, at)
    return found


def pinned(run: RunPaths) -> set[int]:
    """Steps whose checkpoint an evaluation still waits for or reads. What cannot be read pins nothing: the training is not held up by it."""
    try:
        found = evaluations_of(run)
        marks = marks_of(run, job_of(found.run)) if found else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return set()
    if found is None:
        return set()
    stopped = (found.run.root / "stop_requested").exists()
    return {
        step for index, step in enumerate(found.steps) if _pins(found.run.element(index), marks.get(index), stopped)
    }


def _pins(element: RunPaths, mark: Mark | None, stopped: bool) -> bool:
    if mark is not None and mark.word != RELEASED:
        return False
    attempt = _newest(element)
    if attempt is None:
        return not stopped
    try:
        return bool(read_json(attempt.end)["requeue"])
    except (OSError, ValueError, KeyError, TypeError):
        return True  # it goes on, or nobody knows


def _newest(element: RunPaths) -> AttemptPaths | None:
    try:
        numbers = [int(name) for name in os.listdir(element.attempts) if name.isascii() and name.isdecimal()]
    except OSError:
        return None
    return element.attempt(max(numbers)) if numbers else None


def published(run: RunPaths, step: int) -> Path | None:
    """The manifest of a checkpoint that is there whole; None where it never was, or is gone."""
    path = run.checkpoints / name_of(step) / "manifest.json"
    return path if path.is_file() else None
