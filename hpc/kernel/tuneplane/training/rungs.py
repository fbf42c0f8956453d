"""Early stopping in a sweep: at a rung this element compares itself with the others by their files, and goes on or ends well.

Nobody waits for anybody: what was there decides (an asynchronous successive halving). An element's value and decision stand in
`rungs/<step>.json`, written once and never again: an element that is requeued and comes to the rung a second time finds its own word. Any program
may use this, not only ours: standard library only, one process an element (rank 0).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuneplane.contract.layout import RunPaths
from tuneplane.contract.sweeps import INDEX, RUNG, Stopping, read_sweep
from tuneplane.record.digest import digest_json
from tuneplane.record.events import EventWriter
from tuneplane.record.files import read_json, replace_json, write_json_new
from tuneplane.record.times import utc_now
from tuneplane.training.refusals import refuse


@dataclass(frozen=True)
class Rungs:
    """The rungs of one element. `attempt` names the writer of its events, `out` takes result.json when it stops."""

    stopping: Stopping
    element: RunPaths
    index: int
    run_id: str
    attempt: int
    out: Path

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> Rungs | None:
        """None outside of a sweep with early stopping. Raises Refused E-TRAIN-003."""
        if not env.get(INDEX):
            return None
        work = Path(env["TUNEPLANE_WORK_DIR"])
        try:
            sweep = read_sweep(work)
        except (OSError, ValueError) as exc:
            raise refuse("E-TRAIN-003", f"the table of variants cannot be used: {exc}", field=str(work)) from exc
        if sweep is None or sweep.stopping is None:
            return None
        element = RunPaths(Path(env["TUNEPLANE_RUN_DIR"]))
        return cls(
            sweep.stopping, element, int(env[INDEX]), env["TUNEPLANE_RUN_ID"], int(env["TUNEPLANE_ATTEMPT"]),
            Path(env["TUNEPLANE_OUT_DIR"]),
        )  # fmt: skip

    def due(self, step: int) -> bool:
        return step in self.stopping.rungs

    def decided(self, step: int) -> bool:
        """An earlier attempt of this element has left its word at the rung `step`."""
        return _record(self.element, step) is not None

    def stopped_before(self) -> int | None:
        """The rung at which an earlier attempt was told to stop, if it was ended before it could."""
        for step in self.stopping.rungs:
            if (known := _record(self.element, step)) and known["decision"] == "stop":
                return step
        return None

    def stops(self, step: int, metrics: Mapping[str, Any]) -> bool:
        """Decide at the rung `step` with this element's newest `metrics`, and write it down. Raises Refused E-TRAIN-080, OSError."""
        record = _record(self.element, step)
        again = record is not None
        if record is None:
            record = self._decide(step, self.need(metrics))
            try:
                self.element.rungs.mkdir(exist_ok=True)
                write_json_new(self.element.rungs / f"{step}.json", record)
            except FileExistsError:
                record, again = read_json(self.element.rungs / f"{step}.json"), True
        value = "no number" if record["value"] is None else f"{record['value']:.6g}"
        words = f"rung {step}: {self.stopping.metric} {value}, place {record['place']} of {record['seen']}, {record['places']} go on"
        details = {k: record[k] for k in ("step", "metric", "value", "place", "seen", "places", "decision")}
        self._events().append(
            "training",
            "running",
            f"{words}{'; decided before' if again else ''}",
            rung_sha256=digest_json(record),
            **details,
        )
        return bool(record["decision"] == "stop")

    def need(self, metrics: Mapping[str, Any]) -> float:
        """The metric's value. Raises Refused E-TRAIN-080 naming the metrics there are."""
        value = metrics.get(self.stopping.metric)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            known = ", ".join(sorted(k for k, v in metrics.items() if isinstance(v, (int, float))))
            raise refuse(
                "E-TRAIN-080",
                "the run has no such metric",
                field="stopping.metric",
                found=self.stopping.metric,
                allowed=known,
            )
        return float(value)

    def leave_result(self, step: int) -> None:
        """result.json of an element that ends at a rung."""
        known = _record(self.element, step) or {}
        result = {
            "schema": RUNG,
            "stopped_at_rung": step,
            "metric": self.stopping.metric,
            "value": known.get("value"),
            "steps": step,
        }
        replace_json(self.out / "result.json", result)

    def _decide(self, step: int, value: float) -> dict[str, Any]:
        others = self._others(step)
        standing = self.stopping.judge(value, others.values())
        seen = {str(i): v if math.isfinite(v) else None for i, v in others.items()}
        return {
            "schema": RUNG, "index": self.index, "attempt": self.attempt, "step": step, "metric": self.stopping.metric,
            "value": value if math.isfinite(value) else None, "place": standing.place, "seen": standing.seen,
            "places": standing.places, "others": ranges(others), "others_sha256": digest_json(seen),
            "decision": "go on" if standing.goes_on else "stop", "at": utc_now(),
        }  # fmt: skip

    def _others(self, step: int) -> dict[int, float]:
        """Values of the other elements at this rung, as far as their files are there."""
        parts = self.element.root.parent
        indices = (int(n) for n in os.listdir(parts) if n.isascii() and n.isdecimal())
        found = {i: _record(RunPaths(parts / str(i)), step) for i in indices if i != self.index}
        return {i: _number(r["value"]) for i, r in found.items() if r is not None}

    def _events(self) -> EventWriter:
        return EventWriter(self.element.events, f"rungs-{self.attempt}", run_id=self.run_id, now=utc_now)


def _record(element: RunPaths, step: int) -> dict[str, Any] | None:
    """An element's word at a rung. One that is torn or of another form is not there yet."""
    try:
        value = read_json(element.rungs / f"{step}.json")
    except (OSError, ValueError):
        return None
    good = isinstance(value, dict) and isinstance(value.get("value", ""), (int, float, type(None)))
    return value if good and value.get("decision") in ("stop", "go on") else None


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def ranges(indices: Iterable[int]) -> str:
    """`0-3,7`: the indices as an array's text."""
    out: list[list[int]] = []
    for index in sorted(indices):
        if out and index == out[-1][1] + 1:
            out[-1][1] = index
        else:
            out.append([index, index])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in out)
