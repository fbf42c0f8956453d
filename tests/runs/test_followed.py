"""What an audit says of a checkpoint that an evaluation read: compared while it is there, and no accusation once it is gone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tuneplane.contract.layout import RunPaths, StorageRoot
from tuneplane.record.digest import digest_bytes, digest_json
from tuneplane.record.events import EventWriter

from hpc.runs.evidence import Case
from hpc.runs.followed import check_late, unreached

KEYS = ("run_id", "attempt", "artefact", "digest", "report_sha256")


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    """Evaluations of run-0001's checkpoints, of which element 0 read step 20 as attempt 1 had written it."""
    root = StorageRoot(tmp_path)
    parent, run = root.run("alice", "sums", "run-0001"), root.run("alice", "sums.checkpoints", "run-0002")
    manifest = parent.checkpoints / "step-000000020/manifest.json"
    write(manifest, {"attempt": 1, "step": 20})
    write(parent.report, {"status": "done"})
    write(
        run.launch,
        {"follows": {"run_id": "run-0001", "exp": "sums", "action": "checkpoints"}, "late": {"candidate": {}}},
    )
    files = [{"path": "a.pt", "size": 1, "sha256": "sha256:1"}]
    found = {
        "run_id": "run-0001", "exp": "sums", "attempt": 1, "artefact": "checkpoint", "step": 20, "files": files,
        "digest": digest_json([["a.pt", "sha256:1"]]), "report_sha256": digest_bytes(manifest.read_bytes()),
    }  # fmt: skip
    element = run.element(0)
    element.events.mkdir(parents=True)
    write(
        element.attempt(0).root / "late.json",
        {"schema": "tuneplane-hpc/late-inputs/v1", "inputs": {"candidate": found}},
    )
    events = EventWriter(element.events, "launch-0", run_id="run-0002", now=lambda: "2026-03-01T12:00:00Z")
    events.append("preparing", "running", "", late={"candidate": {k: found[k] for k in KEYS}})
    return run


def findings(run: RunPaths) -> list[tuple[str, str]]:
    case = Case(run)
    part = run.element(0)
    check_late(case, part, case.chains(part.events), [0])
    return [(f.level, f.message) for f in case.findings]


def manifest(run: RunPaths) -> Path:
    return run.root.parents[1] / "sums/run-0001/checkpoints/step-000000020/manifest.json"


def test_a_checkpoint_that_stands_as_it_was_read_leaves_no_word(run: RunPaths) -> None:
    assert findings(run) == []


def test_one_that_was_pruned_or_written_anew_accuses_nobody(run: RunPaths) -> None:
    write(manifest(run), {"attempt": 2, "step": 20})
    ((level, message),) = findings(run)
    assert (level, message) == ("note", "candidate: another attempt of run-0001 has written step 20 anew since")
    shutil.rmtree(manifest(run).parent)
    ((level, message),) = findings(run)
    assert (level, message) == (
        "note",
        "candidate: step 20 of run-0001 is gone; what was read of it stands in the record alone",
    )


def test_one_that_was_changed_since_is_tampered(run: RunPaths) -> None:
    write(manifest(run), {"attempt": 1, "step": 20, "files": []})
    ((level, message),) = findings(run)
    assert level == "tampered"
    assert message.startswith("is not the checkpoint that was evaluated: recorded sha256:")


def test_elements_whose_checkpoint_never_came_are_known_by_the_scripts_mark(run: RunPaths) -> None:
    marks = run.root.parents[1] / "sums/run-0001/evaluations"
    marks.mkdir()
    for name, word in (("7_0", "released"), ("7_1", "cancelled"), ("7_2", "gone")):
        (marks / name).write_text(f"{word} 2026-03-01T12:00:00Z\n")
    assert unreached(Case(run)) == {1}
    write(run.launch, {"follows": {"run_id": "run-0001", "exp": "sums", "action": "eval"}})
    assert unreached(Case(run)) == set()
