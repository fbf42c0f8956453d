"""The corpus of failures that were made for real (tests/cluster/record_failures.py): `tp job why` finds the cause and the fix of each."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tuneplane.contract.layout import RunPaths

from hpc.errors.catalogue import CATALOGUE
from hpc.runs.causes import CLASSES, PEER_SILENT, TABLE
from hpc.runs.clues import gather
from hpc.runs.diagnosis import Diagnosis
from hpc.runs.records import read_facts
from hpc.runs.state import Look, decide, is_ours
from hpc.runs.why import diagnose
from hpc.slurm.query import JobRow

CORPUS = Path(__file__).parents[1] / "data" / "failures"
LABELS = sorted(p.name for p in CORPUS.iterdir())
ASKED = {
    "out-of-memory", "time-limit", "preempted", "node-failure", "missing-file", "bad-bind", "port-clash", "empty-adapter", "nan-loss", "disk-full",
    "wrong-shape", "import-error", "plugin-mismatch", "hung-collective",
}  # fmt: skip


def read(folder: Path) -> tuple[RunPaths, dict[str, Any], list[JobRow]]:
    """The run, its label, and what Slurm said of it."""
    label = json.loads((folder / "label.json").read_text("utf-8"))
    rows = [JobRow.from_json(row) for row in json.loads((folder / "seen.json").read_text("utf-8"))]
    return RunPaths(folder / "run"), label, rows


def why(run: RunPaths, rows: list[JobRow]) -> Diagnosis:
    facts = read_facts(run)
    submission = facts.last_submission
    assert submission is not None
    jobs = tuple(r for r in rows if "." not in r.job_id)
    state = decide(
        facts,
        Look(history=jobs, polled_at=submission.submitted_at + 600, asked=(submission.job_id,)),
        submission.submitted_at + 600,
    )
    steps = [r for r in rows if "." in r.job_id or is_ours(r, submission)]
    return diagnose(facts, state, gather(run, state.attempt), steps=steps)


def test_the_corpus_has_every_kind_of_failure() -> None:
    assert set(LABELS) >= ASKED


@pytest.mark.parametrize("label", LABELS)
def test_the_cause_and_the_fix_of_a_real_failure_are_found(label: str) -> None:
    run, wanted, rows = read(CORPUS / label)
    found = why(run, rows)
    assert found.cause is not None
    assert (found.cause.id, found.cause.confidence) == (wanted["cause"], wanted["confidence"])
    assert wanted["mend"] in " ".join(found.mend)
    assert wanted["evidence"].lower() in " ".join(text for _, text in found.cause.evidence).lower()
    assert found.unseen, "what was not looked at is said"
    assert found.as_json()["cause"]["id"] == wanted["cause"]


@pytest.mark.parametrize("label", sorted({*LABELS} & {"out-of-memory", "hung-collective", "missing-file", "nan-loss"}))
def test_without_accounting_and_with_its_logs_alone_a_cause_is_still_named(label: str) -> None:
    run, wanted, _ = read(CORPUS / label)
    found = why(run, [])
    assert found.cause is not None
    assert found.cause.id == wanted["cause"]


def test_a_failure_s_echo_that_comes_first_is_not_the_cause(tmp_path: Path) -> None:
    """Clocks of two nodes differ: what the peers say of the end may carry an earlier time than the error itself."""
    shutil.copytree(CORPUS / "wrong-shape" / "run", tmp_path / "run")
    logs = sorted((tmp_path / "run/attempts/0/logs").glob("rank-*.log"))
    own = next(p for p in logs if "cannot be multiplied" in p.read_text())
    other = next(p for p in logs if p != own)
    other.write_text(
        "2020-01-01T00:00:00.000000Z RuntimeError: [gloo/transport/tcp/pair.cc] Connection closed by peer [127.0.0.1]:1\n"
    )
    for node in (tmp_path / "run/attempts/0/nodes").glob("*.end.json"):
        value = json.loads(node.read_text())
        for rank in value["ranks"]:
            if f"rank-{rank['rank']:05d}" in other.name:
                rank |= {"exit_code": 1, "signal": 0, "by_us": False}
        node.write_text(json.dumps(value))
    _, _, rows = read(CORPUS / "wrong-shape")
    found = why(RunPaths(tmp_path / "run"), rows)
    assert found.cause is not None
    assert found.cause.id == "wrong-shape"
    assert "cannot be multiplied" in found.lines[0]


def test_nothing_is_named_where_nothing_tells(tmp_path: Path) -> None:
    shutil.copytree(CORPUS / "program-error" / "run", tmp_path / "run")
    for log in [*(tmp_path / "run").rglob("*.log")]:
        log.write_text("2026-01-01T00:00:00.000000Z step 1\n")
    _, _, rows = read(CORPUS / "program-error")
    found = why(RunPaths(tmp_path / "run"), [replace(r, state="FAILED") for r in rows if "." not in r.job_id])
    assert found.cause is None
    assert found.as_json()["cause"] is None


def test_every_cause_is_in_the_page_and_every_code_in_the_catalogue() -> None:
    page = (Path(__file__).parents[2] / "docs" / "jobs.md").read_text("utf-8")
    causes = [*TABLE, *CLASSES.values(), PEER_SILENT]
    assert [c.id for c in causes if f"`{c.id}`" not in page] == []
    assert {code for c in causes for code in c.codes} <= CATALOGUE.keys()
