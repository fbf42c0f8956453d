"""What the evaluations of a run's checkpoints gave, a row a step. From the records alone, and Slurm's states where they are known. Reads only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuneplane.contract.checkpointed import RELEASED, Evaluations, job_of, marks_of, published
from tuneplane.contract.layout import RunPaths
from tuneplane.record.files import read_json

from hpc.runs.state import RunState


@dataclass(frozen=True)
class Row:
    """One step. `state` is its job's; `held` says that it waits for its checkpoint, `stranded` that it does so though the run has ended, so that
    nobody lets it go; `mark` is what the run's script did about it."""

    step: int
    element: int
    state: str
    held: bool
    stranded: bool
    mark: str
    result: Mapping[str, Any]

    @property
    def score(self) -> Any:
        return (self.result.get("metrics") or {}).get("score")

    def as_json(self) -> dict[str, Any]:
        named = {
            "step": self.step,
            "element": self.element,
            "state": self.state,
            "held": self.held,
            "stranded": self.stranded,
            "mark": self.mark or None,
        }
        return named | {key: self.result.get(key) for key in ("suite", "tier", "metrics")}


def rows(run: RunPaths, found: Evaluations, states: Mapping[int, RunState], *, ended: bool) -> list[Row]:
    """A row a step that the run asked for, in their order.

    `states`: of the elements that Slurm or a record knows (`hpc.runs.arrays.elements`); `ended`: whether the run has, as far as is known.
    """
    try:
        marks = marks_of(run, job_of(found.run))
    except (OSError, ValueError, KeyError, TypeError):
        marks = {}
    out = []
    for element, step in enumerate(found.steps):
        mark = marks[element].word if element in marks else ""
        state, result = states.get(element), _result(found.run.element(element))
        word = state.cls if state else mark if mark and mark != RELEASED else "queued"
        if mark and mark != RELEASED and word in ("queued", "unknown", "vanished"):
            word = "cancelled"  # Slurm may have no row of what never began
        held = word == "queued" and not mark
        waits = held and published(run, step) is None
        out.append(Row(step, element, word, waits, held and ended, mark, result))
    return out


def _result(element: RunPaths) -> Mapping[str, Any]:
    try:
        value = read_json(element.report).get("result")
    except (OSError, ValueError, AttributeError):
        return {}
    return value if isinstance(value, dict) else {}
