"""The verdict on a run, from files that no job wrote: what counts, what does not, and what nobody believes."""

from __future__ import annotations

import json
import os
import pwd
import sys
from pathlib import Path
from typing import Any

import pytest
from answered import answered
from tuneplane.contract.layout import RunPaths, StorageRoot
from tuneplane.record.canonical import pretty_bytes

from hpc.evaluate.verdicts import verdict_of, verdict_of_lineage
from hpc.submit.followlist import children, remember

sys.path.insert(0, str(Path(__file__).parents[1] / "runs"))

from builder import RunMaker

ME = pwd.getpwuid(os.getuid()).pw_name
GATE = {"metric": "behaviour/score", "min": 0.7, "max_regression": 0.0}
WANTED = {"suites": ["behaviour"], "baseline": "base", "gates": [GATE]}
GOOD = {"a": ("1", "1"), "b": ("2", "2"), "c": ("3", "3"), "d": ("4", "x")}
BAD = {q: (expected, "x") for q, (expected, _) in GOOD.items()}


class Follower(RunMaker):
    """A run whose launch.json says whom it follows; `told` is added to that."""

    told: dict[str, Any] = {}

    def _put(self, path: Path, data: bytes) -> None:  # type: ignore[override]
        if path.name == "launch.json":
            follows = {"run_id": "run-0001", "exp": "sums", "action": "eval", **self.told}
            data = pretty_bytes({**json.loads(data), "follows": follows})
        RunMaker._put(path, data)


@pytest.fixture
def root(tmp_path: Path) -> StorageRoot:
    return StorageRoot(tmp_path / "root")


def trained(root: StorageRoot, evaluation: dict[str, Any] | None = None) -> RunPaths:
    spec = {"apiVersion": "tuneplane/v1", "metadata": {"name": "sums"}, "spec": {"evaluation": evaluation or WANTED}}
    maker = RunMaker(root, owner=ME, exp="sums", run_id="run-0001", spec=spec).done()
    return maker.run


def evaluated(
    root: StorageRoot,
    run: RunPaths,
    number: int,
    candidate: dict[str, tuple[str, str]],
    *,
    ended: bool = True,
    **told: Any,
) -> RunPaths:
    spec = {"apiVersion": "tuneplane/v1", "metadata": {"name": "sums.eval"}, "spec": {}}
    maker = Follower(root, owner=ME, exp="sums.eval", run_id=f"run-100{number}", spec=spec)
    maker.told = told
    maker.package().admit().submit().start().nodes(0, 0, 0)
    out = maker.run.attempt(0).out
    out.rmdir()
    answered(out, candidate)
    answered(out / "baseline", BAD)
    if ended:
        maker.end()
    remember(run, "eval", maker.run, f"2026-03-01T12:0{number}:00Z")
    return maker.run


def evaluated_in(
    root: StorageRoot, run: RunPaths, scratch: Path, suites: dict[str, dict[str, tuple[str, str]]], listed: set[str]
) -> RunPaths:
    """An evaluation in several suites, of which the run's record lists `listed`."""
    spec = {"apiVersion": "tuneplane/v1", "metadata": {"name": "sums.eval"}, "spec": {}}
    maker = Follower(root, owner=ME, exp="sums.eval", run_id="run-2000", spec=spec)
    for name, candidate in suites.items():
        answered(scratch / f"suites/{name}", candidate, suite=name)
        answered(scratch / f"suites/{name}/baseline", BAD, suite=name)
    files = {str(p.relative_to(scratch)): p.read_bytes() for p in scratch.rglob("*.json*")}
    maker.left = {name: data for name, data in files.items() if name.split("/")[1] in listed}
    maker.done()
    for name in files.keys() - maker.left.keys():
        path = maker.run.attempt(0).out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(files[name])
    remember(run, "eval", maker.run, "2026-03-01T12:00:00Z")
    return maker.run


def found(root: StorageRoot, run: RunPaths) -> tuple[str, str, str]:
    verdict = verdict_of(root, run)
    assert verdict is not None
    return verdict.state, verdict.evaluation, verdict.reason


def test_a_run_is_judged_by_its_newest_evaluation_that_ended(root: StorageRoot) -> None:
    run = trained(root)
    assert found(root, run) == ("not evaluated", "", "no evaluation followed the run")
    first = evaluated(root, run, 1, BAD)
    assert found(root, run)[:2] == ("failed", first.run_id)
    second = evaluated(root, run, 2, GOOD)
    assert found(root, run) == ("passed", second.run_id, "all 1 gates passed")
    evaluated(root, run, 3, BAD, ended=False)
    assert found(root, run)[:2] == ("passed", second.run_id)
    assert [child.run_id for _, child in children(root, run)] == ["run-1001", "run-1002", "run-1003"]


def test_of_several_suites_each_gate_is_judged_on_the_report_that_the_record_lists(
    root: StorageRoot, tmp_path: Path
) -> None:
    gates = [GATE, {"metric": "sums/exact_match", "min": 0.7, "max_regression": 0.0}]
    run = trained(root, {"suites": ["behaviour", "sums"], "baseline": "base", "gates": gates})
    child = evaluated_in(root, run, tmp_path / "made", {"behaviour": GOOD, "sums": GOOD}, {"behaviour", "sums"})
    assert found(root, run) == ("passed", child.run_id, "all 2 gates passed")
    (child.attempt(0).out / "suites/sums/scores.jsonl").write_bytes(b"")
    assert found(root, run)[0] == "failed"


def test_a_report_that_was_put_beside_a_finished_evaluation_is_not_judged(root: StorageRoot, tmp_path: Path) -> None:
    gates = [GATE, {"metric": "sums/exact_match", "min": 0.7}]
    run = trained(root, {"suites": ["behaviour", "sums"], "baseline": "base", "gates": gates})
    evaluated_in(root, run, tmp_path / "made", {"behaviour": GOOD, "sums": GOOD}, {"behaviour"})
    state, _, reason = found(root, run)
    assert (state, "no result of suite sums; there are: behaviour" in reason) == ("failed", True)


def test_an_evaluation_with_other_words_than_the_runs_decides_nothing(root: StorageRoot) -> None:
    run = trained(root)
    evaluated(root, run, 1, GOOD, asked={"limit": 3})
    assert found(root, run) == (
        "not evaluated", "", "run-1001 was asked for with other words than the run's",
    )  # fmt: skip


def test_a_run_without_gates_has_no_verdict(root: StorageRoot) -> None:
    assert verdict_of(root, trained(root, {"suites": ["behaviour"]})) is None


def test_a_stated_verdict_is_not_believed_and_a_changed_score_fails(root: StorageRoot) -> None:
    run = trained(root)
    child = evaluated(root, run, 1, BAD)
    out = child.attempt(0).out
    (out / "verdict.json").write_text(json.dumps({"verdict": "passed"}))
    assert found(root, run)[0] == "failed"
    report = json.loads((out / "eval_report.json").read_text())
    report["metrics"]["score"]["value"] = 1.0
    (out / "eval_report.json").write_text(json.dumps(report))
    state, _, reason = found(root, run)
    assert (state, reason.partition(": ")[2][:10]) == ("failed", "E-EVAL-049")


def test_a_tampered_evaluation_fails_and_one_with_half_its_evidence_is_none(root: StorageRoot) -> None:
    run = trained(root)
    child = evaluated(root, run, 1, GOOD)
    weights = child.attempt(0).out / "adapter.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(bytes(len(data)))
    state, _, reason = found(root, run)
    assert (state, "run-1001 is tampered" in reason) == ("failed", True)
    weights.write_bytes(data)
    (child.attempt(0).claim).unlink()
    state, _, reason = found(root, run)
    assert (state, "run-1001 is incomplete" in reason) == ("not evaluated", True)


def test_a_folder_that_claims_a_followup_is_not_believed(root: StorageRoot) -> None:
    run = trained(root)
    evaluated(root, run, 1, GOOD, run_id="run-0009")
    (run.root / "followups/run-0bad.json").write_text('{"exp": "../..", "run_id": "run-0bad"}')
    assert found(root, run)[0] == "not evaluated"


def test_a_model_is_judged_by_the_gates_of_its_own_record(root: StorageRoot) -> None:
    run = trained(root)
    evaluated(root, run, 1, GOOD)
    lineage = {"source": "run", "owner": ME, "exp": "sums", "run_id": "run-0001", "evaluation": WANTED}
    verdict = verdict_of_lineage(root, lineage)
    assert verdict is not None
    assert verdict.state == "passed"
    harder = {**WANTED, "gates": [{**GATE, "min": 0.8}]}
    verdict = verdict_of_lineage(root, {**lineage, "evaluation": harder})
    assert verdict is not None
    assert verdict.state == "failed"
    gone = verdict_of_lineage(root, {**lineage, "run_id": "run-0002"})
    assert gone is not None
    assert (gone.state, gone.reason.endswith("run-0002 is gone")) == ("not evaluated", True)
    assert verdict_of_lineage(root, {**lineage, "evaluation": {}}) is None
    assert verdict_of_lineage(root, {"source": "folder"}) is None
