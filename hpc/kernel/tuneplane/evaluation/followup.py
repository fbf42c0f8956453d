"""An evaluation that follows a run: the candidate and what it is compared with, on the same rows, and the gates' verdict on both.

The candidate lies in another run, which the launcher has read and compared; its digests are in late.json. It is a whole model, or an adapter for the
model that the run began with. `base` as the baseline is that model. All reports are those of the behaviour evaluator; the verdict stands beside them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tuneplane.contract.evaluation import REPORT
from tuneplane.contract.followups import BASELINE, BASELINE_FOLDER, CANDIDATE, VERDICT, VERDICT_SCHEMA
from tuneplane.contract.gates import Bounds, Verdict, judge, suite_of
from tuneplane.evaluation.behaviour import Request, evaluate
from tuneplane.evaluation.loading import ADAPTER_CONFIG
from tuneplane.record.files import write_json_new
from tuneplane.record.times import utc_now
from tuneplane.training.refusals import refuse


@dataclass(frozen=True)
class Subject:
    """A model that is asked: its folder, an adapter or None, and the digests of the folder's files."""

    model: Path
    adapter: Path | None
    files: tuple[Mapping[str, Any], ...]


def subject(late: Mapping[str, Any] | None, given: Mapping[str, Any] | None, what: str) -> Subject:
    """What is asked: an artefact of a run (`late`), where it is an adapter on the model `given`; or that model. Raises Refused E-EVAL-050."""
    folder = Path(late["path"]) if late else None
    if late and folder and not (folder / ADAPTER_CONFIG).is_file():
        return Subject(folder, None, tuple(late["files"]))
    if given is None:
        raise refuse("E-EVAL-050", "has no model to stand on", field=what, found=os.fspath(folder or ""))
    return Subject(Path(given["path"]), folder, tuple(given.get("files", ())))


def evaluate_both(
    common: Request,
    candidate: Subject,
    baseline: Subject | None,
    wanted: Mapping[str, Any],
    say: Callable[[str], None],
    *,
    earlier: Iterable[Path] = (),
) -> dict[str, Any]:
    """Ask both and write the verdict of `wanted`, which is `spec.evaluation`; returns `{report, baseline, verdict}`.

    `earlier` are folders of finished reports: one on the same basis stands in for the baseline's. Raises Refused, or Warned with every answer kept.
    """
    reports = {}
    for name, one, inside in ((CANDIDATE, candidate, ""), (BASELINE, baseline, BASELINE_FOLDER)):
        if one is None:
            continue
        say(f"{name}: {one.adapter or one.model}" + (f" on {one.model}" if one.adapter else ""))
        request = replace(
            common, model=one.model, adapter=one.adapter, model_files=one.files, out=common.out / inside, keep=common.kept / name,
            earlier=tuple(earlier) if name == BASELINE else (),
        )  # fmt: skip
        reports[name] = evaluate(request, say)
    verdict = verdict_of(wanted, reports[CANDIDATE], reports.get(BASELINE))
    record = {
        "schema": VERDICT_SCHEMA, "at": utc_now(), "evaluation": dict(wanted), **verdict.as_json(),
        "candidate": reports[CANDIDATE]["basis"], "baseline": reports[BASELINE]["basis"] if BASELINE in reports else None,
    }  # fmt: skip
    write_json_new(common.out / VERDICT, record)
    return {"report": reports[CANDIDATE], "baseline": reports.get(BASELINE), "verdict": record}


def verdict_of(wanted: Mapping[str, Any], candidate: Mapping[str, Any], baseline: Mapping[str, Any] | None) -> Verdict:
    """The verdict of `spec.evaluation` on two reports. Pure."""
    gates = [Bounds(**gate) for gate in wanted.get("gates", ())]
    before = {baseline["suite"]: suite_of(baseline)} if baseline is not None else None
    return judge(gates, {candidate["suite"]: suite_of(candidate)}, before)


def finished_baselines(run_dir: Path) -> list[Path]:
    """Folders of baseline reports of the same experiment's earlier evaluations, newest first. What is used of them is compared byte by byte."""
    found = [(report.stat().st_mtime_ns, report.parent) for report in _reports(run_dir)]
    return [folder for _, folder in sorted(found, reverse=True)[:20]]


def _reports(run_dir: Path) -> list[Path]:
    pattern = f"run-*/attempts/*/out/{BASELINE_FOLDER}/{REPORT}"
    return [p for p in run_dir.parent.glob(pattern) if run_dir not in p.parents]
