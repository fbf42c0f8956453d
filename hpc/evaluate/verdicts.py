"""The verdict on a run: what its gates say of the evaluations that followed it. From the files alone, and computed again.

A verdict that a file states is not believed. The evaluation's run must be untampered, its reports must agree with their own scores, and the gates of
the training run's own package are judged on them here. What was evaluated with other words than the run's (`tp eval run --baseline`) decides nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tuneplane.contract.evaluation import REPORT
from tuneplane.contract.followups import BASELINE_FOLDER, EVAL, SUITES_FOLDER
from tuneplane.contract.gates import Judged, judge
from tuneplane.contract.layout import RunPaths, StorageRoot
from tuneplane.record.files import read_json

from hpc.errors import Refusal, Refusals
from hpc.evaluate.decide import measured
from hpc.evaluate.reports import Report, faults_of, read_report
from hpc.evaluate.wanted import parse_evaluation
from hpc.runs.audit import audit
from hpc.spec.parts import Evaluation
from hpc.submit.followlist import children

State = Literal["passed", "failed", "not evaluated"]


@dataclass(frozen=True)
class RunVerdict:
    """What the gates of a run say: by which evaluation, and each gate's result. `evaluation` is "" where there is none that counts."""

    state: State
    reason: str
    run_id: str
    evaluation: str = ""
    gates: tuple[Judged, ...] = ()

    def as_json(self) -> dict[str, Any]:
        named = {"run_id": self.run_id, "evaluation": self.evaluation or None}
        return {"verdict": self.state, "reason": self.reason, **named, "gates": [g.as_json() for g in self.gates]}


def evaluation_of(run: RunPaths) -> Evaluation:
    """`spec.evaluation` of a run's package, without defaults of a follow-up. Raises OSError, ValueError, Refusals."""
    spec = read_json(run.jobspec)["spec"]
    return parse_evaluation({k: v for k, v in (spec.get("evaluation") or {}).items() if k != "on_checkpoint"})


def verdict_of(root: StorageRoot, run: RunPaths) -> RunVerdict | None:
    """The verdict on a training run; None where it has no gates. Never raises for what the files hold: what cannot be judged did not pass."""
    try:
        wanted = evaluation_of(run)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, Refusal, Refusals) as exc:
        return RunVerdict("not evaluated", f"the run's own words cannot be read: {exc}"[:300], run.run_id)
    return judged(root, run, wanted) if wanted.gates else None


def verdict_of_lineage(root: StorageRoot, lineage: Mapping[str, Any]) -> RunVerdict | None:
    """The verdict on the run that made a registered model, by the gates that the model's own record has; None where it had none.

    A run that is gone cannot be judged any more: its model is `not evaluated`.
    """
    if lineage.get("source") != "run":
        return None
    run_id = str(lineage.get("run_id"))
    try:
        wanted = parse_evaluation({k: v for k, v in (lineage.get("evaluation") or {}).items() if k != "on_checkpoint"})
    except (TypeError, AttributeError, Refusal, Refusals) as exc:
        return RunVerdict("not evaluated", f"the record's evaluation cannot be read: {exc}"[:300], run_id)
    if not wanted.gates:
        return None
    run = root.run(str(lineage.get("owner")), str(lineage.get("exp")), run_id)
    if not run.root.is_dir():
        return RunVerdict("not evaluated", f"{run.root} is gone", run_id)
    return judged(root, run, wanted)


def judged(root: StorageRoot, run: RunPaths, wanted: Evaluation) -> RunVerdict:
    """The verdict of given gates on a run: by the newest evaluation that counts."""
    why = "no evaluation followed the run"
    for child in reversed([c for action, c in children(root, run) if action == EVAL]):
        found, why = _by(run, child, wanted)
        if found is not None:
            return found
    return RunVerdict("not evaluated", why, run.run_id)


def _by(run: RunPaths, child: RunPaths, wanted: Evaluation) -> tuple[RunVerdict | None, str]:
    """(verdict, "") by one evaluation; (None, why) where it did not end, or was asked for with other words."""
    try:
        if read_json(child.launch)["follows"].get("asked"):
            return None, f"{child.run_id} was asked for with other words than the run's"
        report = read_json(child.report)
    except FileNotFoundError:
        return None, f"{child.run_id} ({child.exp}) is not done"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        return None, f"{child.run_id}: {exc}"[:300]
    try:
        return _judge(run, child, report, wanted), ""
    except (Refusal, Refusals) as exc:
        fault = exc.items[0] if isinstance(exc, Refusals) else exc
        return RunVerdict("failed", f"{child.run_id}: {fault.code} {fault.message}", run.run_id, child.run_id), ""


def _judge(run: RunPaths, child: RunPaths, report: Mapping[str, Any], wanted: Evaluation) -> RunVerdict:
    found = audit(child)
    if found.verdict != "verified":
        first = found.findings[0]
        why = f"the evidence of {child.run_id} is {found.verdict}: {first.path} {first.message}"
        state: State = "failed" if found.verdict == "tampered" else "not evaluated"
        return RunVerdict(state, why, run.run_id, child.run_id)
    out = child.attempt(int(report["attempts"][-1]["attempt"])).out
    folders = _folders(out, report)
    before = [_read(folder / BASELINE_FOLDER) for folder in folders] if wanted.baseline else []
    verdict = judge(wanted.gates, measured([_read(f) for f in folders]), measured(before) if before else None)
    return RunVerdict(verdict.state, verdict.reason, run.run_id, child.run_id, verdict.gates)


def _folders(out: Path, report: Mapping[str, Any]) -> list[Path]:
    """The reports of an evaluation: of several suites those that the run's record lists with their baselines, which the audit compared."""
    listed = {str(row.get("path")) for row in report.get("artifacts") or () if isinstance(row, dict)}
    found = [path for path in sorted(listed) if re.fullmatch(rf"{SUITES_FOLDER}/[^/]+/{re.escape(REPORT)}", path)]
    return [(out / path).parent for path in found] or [out]


def _read(folder: Path) -> Report:
    """A report that agrees with its own files. Raises Refusal(s) E-EVAL-040, 041, 045, 049."""
    report = read_report(folder)
    if faults := faults_of(report):
        raise Refusals(faults)
    return report
