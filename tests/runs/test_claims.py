"""What a report and a closing event claim beside their digests is compared with the records that it was copied from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from builder import RunMaker
from tuneplane.launch import finish
from tuneplane.record.canonical import canonical_bytes, pretty_bytes
from tuneplane.record.digest import digest_bytes
from tuneplane.record.events import event_hash

from hpc.runs.audit import Audit, audit

Make = Callable[..., RunMaker]
SPEC: dict[str, Any] = {
    "apiVersion": "tuneplane/v1",
    "metadata": {"name": "sft"},
    "spec": {"recipe": {"name": "custom/custom"}},
}


def claimed(make: Make, change: Callable[[dict[str, Any]], object]) -> Audit:
    """The audit of a run whose report was changed and whose closing event was made to fit it: only what the report says is wrong."""
    maker = make(spec=SPEC).done()
    report = json.loads(maker.run.report.read_text())
    report |= {
        "recipe": {"name": "custom/custom"}, "inputs": {}, "kernel": {"verifier": "k"},
        "slurm": {"job_id": maker.job_id, "hosts": ["n1", "n2"], "cluster": ""},
        "artifacts": [{"kind": "logs", "path": "result.json", "size": 13, "sha256": digest_bytes(b'{"loss": 0.5}')}],
    }  # fmt: skip
    change(report)
    maker.run.report.write_bytes(pretty_bytes(report))
    path = maker.run.events / "batch-0.jsonl"
    event = json.loads(path.read_text())
    event["details"]["report_sha256"] = digest_bytes(pretty_bytes(report))
    event["hash"] = event_hash(event)
    path.write_bytes(canonical_bytes(event) + b"\n")
    return audit(maker.run)


def test_a_report_that_repeats_its_records_is_verified(make_run: Make) -> None:
    assert claimed(make_run, lambda report: None).findings == ()


CLAIMS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a better result": (lambda r: r.update(result={"loss": 0.1}), "its result is not what result.json says"),
    "another recipe": (lambda r: r.update(recipe={"name": "deepspeed/sft"}), "recipe is "),
    "another experiment": (lambda r: r.update(exp="dpo"), "exp is 'dpo'"),
    "other inputs": (lambda r: r.update(inputs={"model": "x"}), "inputs is "),
    "another kernel": (lambda r: r.update(kernel={}), "kernel is "),
    "an enforced admission": (lambda r: r.update(admission="enforced"), "admission is 'enforced'"),
    "other hosts": (lambda r: r["slurm"].update(hosts=["n9"]), "hosts is ['n9']"),
    "another job": (lambda r: r["slurm"].update(job_id="9"), "job_id is '9'"),
    "an attempt less": (lambda r: r["attempts"][0].update(attempt=1), "tells attempts [1], not all from 0 on"),
    "no attempts": (lambda r: r.update(attempts=[]), "tells attempts [], not all from 0 on"),
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_report_that_claims_more_than_its_records_is_found(make_run: Make, claim: str) -> None:
    change, words = CLAIMS[claim]
    found = claimed(make_run, change)
    assert found.verdict == "tampered"
    assert any(f.path == "report.json" and words in f.message for f in found.findings), found.findings


@pytest.mark.parametrize(
    ("damage", "level"), [("changed", "tampered"), ("gone", "tampered"), ("later", "note")]
)  # fmt: skip
def test_the_nodes_records_that_decided_an_end_are_the_recorded_ones(make_run: Make, damage: str, level: str) -> None:
    """A node that writes after the attempt was closed overwrites nothing and decides nothing."""
    maker = make_run().done()
    path = maker.run.attempt(0).nodes / ("7.end.json" if damage == "later" else "1.end.json")
    if damage == "gone":
        path.unlink()
    else:
        path.write_text('{"node": 1, "exit_code": 1}')
    found = audit(maker.run)
    assert [(f.level, f.path) for f in found.findings] == [(level, f"attempts/0/nodes/{path.name}")]


def test_output_past_the_cap_of_artifacts_is_counted_and_said(
    make_run: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.bin").write_text(name)
    (tmp_path / "d.bin").symlink_to("a.bin")
    place: Any = SimpleNamespace(attempt=SimpleNamespace(out=tmp_path))
    recipe = {"artifacts": {"checkpoints": ["*.bin"], "exports": ["a.bin"]}}
    rows, beyond = finish.collect_artifacts(place, recipe)
    assert ([r["path"] for r in rows], beyond) == (["a.bin", "b.bin", "c.bin"], 0)
    monkeypatch.setattr(finish, "MAX_ARTIFACT_FILES", 2)
    rows, beyond = finish.collect_artifacts(place, recipe)
    assert ([(r["path"], r["kind"]) for r in rows], beyond) == ([("a.bin", "exports"), ("b.bin", "checkpoints")], 1)
    found = claimed(make_run, lambda report: report.update(artifacts_not_listed=1))
    assert (found.verdict, [(f.level, f.path) for f in found.findings]) == ("verified", [("note", "report.json")])
