"""A candidate of another run and its baseline, asked on the same rows, and the verdict on both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from known_sums import KNOWN, write_rows
from tuneplane.evaluation import behaviour
from tuneplane.evaluation.followup import Subject, evaluate_all, finished_baselines, subject, verdict_of
from tuneplane.evaluation.settings import parse
from tuneplane.training.refusals import Refused

SETTINGS = parse({"max_new_tokens": 4})
GATES = [{"metric": "behaviour/exact_match", "min": 0.9, "max_regression": 0.0}]


def late(path: Path) -> dict[str, Any]:
    return {"path": str(path), "files": []}


def evaluate(run: Path, data: Path, candidate: Subject, baseline: Subject | None, wanted: dict[str, Any]) -> Any:
    def earlier(suite: str) -> list[Path]:
        return finished_baselines(run, suite)

    suites = [behaviour.suite(SETTINGS, data, "cpu", lambda _: None)]
    out, kept = run / "attempts/0/out", run / "checkpoints/evaluation"
    return evaluate_all(suites, candidate, baseline, wanted, lambda _: None, out=out, kept=kept, earlier=earlier)


@pytest.mark.train
def test_candidate_and_base_are_asked_the_same_and_the_verdict_stands_beside_the_report(
    taught: Path, base: Path, tmp_path: Path
) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", KNOWN)
    one, run = Subject(base, None, ()), tmp_path / "sums.eval/run-0001"
    wanted = {"suites": ["behaviour"], "baseline": "base", "gates": GATES}
    done = evaluate(run, rows, subject(late(taught), late(base), "candidate"), one, wanted)
    assert done["reports"][0]["metrics"]["exact_match"]["value"] == 1.0
    assert done["baselines"][0]["metrics"]["exact_match"]["value"] == 0.0
    verdict = json.loads((run / "attempts/0/out/verdict.json").read_text())
    assert (verdict["verdict"], verdict["gates"][0]["baseline"]) == ("passed", 0.0)
    candidate, baseline = verdict["candidate"]["behaviour"], verdict["baseline"]["behaviour"]
    assert candidate == done["reports"][0]["basis"]
    assert candidate["data"] == baseline["data"]

    later, planted = tmp_path / "sums.eval/run-0002", {**wanted, "gates": [{"metric": "behaviour/score", "min": 1.1}]}
    assert finished_baselines(later, "behaviour") == [run / "attempts/0/out/baseline"]
    again = evaluate(later, rows, Subject(taught, None, ()), one, planted)
    assert again["baselines"][0]["cached"]["from"] == str(run / "attempts/0/out/baseline")
    assert (again["verdict"]["verdict"], again["verdict"]["gates"][0]["reason"]) == ("failed", "1 is below min 1.1")


def test_an_adapter_stands_on_the_model_of_its_run_and_a_whole_model_on_itself(tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter/adapter_config.json").touch()
    model = {"path": "/models/base", "files": [{"path": "config.json", "sha256": "sha256:1"}]}
    found = subject(late(tmp_path / "adapter"), model, "candidate")
    assert (found.model, found.adapter, found.files) == (
        Path("/models/base"), tmp_path / "adapter", tuple(model["files"]),
    )  # fmt: skip
    assert subject(late(tmp_path), model, "candidate") == Subject(tmp_path, None, ())
    assert subject(None, model, "baseline").adapter is None
    with pytest.raises(Refused, match="E-EVAL-050 candidate: has no model to stand on"):
        subject(late(tmp_path / "adapter"), None, "candidate")


def report(value: float, data: str = "d") -> dict[str, Any]:
    metrics = {"score": {"value": value, "direction": "higher"}}
    return {"suite": "behaviour", "basis": {"data": data, "settings": "s"}, "metrics": metrics}


def test_a_number_that_is_missing_or_measured_otherwise_fails_its_gate() -> None:
    assert verdict_of({}, [report(1.0)]).state == "not evaluated"
    lost = {"gates": [{"metric": "behaviour/score", "max_regression": 0.1}]}
    assert verdict_of(lost, [report(0.8)], [report(0.85)]).state == "passed"
    assert verdict_of(lost, [report(0.8)], [report(0.95)]).state == "failed"
    assert verdict_of(lost, [report(0.8)]).state == "failed"
    assert verdict_of(lost, [report(0.8)], [report(0.8, "other rows")]).state == "failed"
    assert verdict_of({"gates": [{"metric": "behaviour/bleu", "min": 0.0}]}, [report(1.0)]).state == "failed"
