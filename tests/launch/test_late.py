"""Inputs that another run makes: what the launcher believes of that run, and what it refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tuneplane.contract.layout import RunPaths, StorageRoot
from tuneplane.launch.late import resolve_late
from tuneplane.launch.verify import LaunchRefused
from tuneplane.record.digest import digest_bytes, digest_file, digest_json
from tuneplane.record.events import EventWriter

PACKAGE = "sha256:aa"


def names(run_id: str = "run-0001", artefact: str = "final") -> dict[str, Any]:
    one = {"run_id": run_id, "exp": "sums", "artefact": artefact, "package_digest": PACKAGE}
    return {"late": {"candidate": one}}


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    """A run that ended well at attempt 1 and left an adapter."""
    run = StorageRoot(tmp_path).run("alice", "sums", "run-0001")
    attempt = run.attempt(1)
    (attempt.out / "final").mkdir(parents=True)
    run.attempt(0).root.mkdir()
    run.events.mkdir()
    (attempt.out / "final/adapter_model.safetensors").write_bytes(b"weights")
    (attempt.out / "metrics.jsonl").write_bytes(b"{}")
    close(run, {"class": "done", "message": "done", "attempt": 1})
    return run


def close(run: RunPaths, end: dict[str, Any]) -> None:
    """End, report and closing event of the last attempt, as the batch step writes them."""
    out = run.attempt(1).out
    files = sorted(p for p in out.rglob("*") if p.is_file())
    rows = [
        {"path": p.relative_to(out).as_posix(), "size": p.stat().st_size, "sha256": digest_file(p), "kind": "exports"}
        for p in files
    ]
    run.report.write_text(json.dumps({"package_digest": PACKAGE, "artifacts": rows}))
    run.attempt(1).end.write_text(json.dumps(end))
    writer = EventWriter(run.events, "batch-1", run_id=run.run_id, now=lambda: "2026-03-01T12:00:00Z")
    report = digest_bytes(run.report.read_bytes())
    writer.append("completed", "completed", "", end_sha256=digest_json(end), report_sha256=report)


def resolve(run: RunPaths, launch: dict[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    root = StorageRoot(run.root.parents[3])
    return resolve_late(launch or names(), root, "alice", lag_s=0)


def code(run: RunPaths, launch: dict[str, Any] | None = None) -> tuple[str, str]:
    with pytest.raises(LaunchRefused) as caught:
        resolve(run, launch)
    return caught.value.code, caught.value.message.partition(") ")[2]


def test_what_a_run_left_is_read_and_written_down(run: RunPaths) -> None:
    found = resolve(run)["candidate"]
    weights = run.attempt(1).out / "final/adapter_model.safetensors"
    assert (found["path"], found["attempt"]) == (str(weights.parent), 1)
    assert found["files"] == [{"path": weights.name, "size": 7, "sha256": digest_file(weights)}]
    assert found["digest"] == digest_json([[weights.name, digest_file(weights)]])
    assert found["report_sha256"] == digest_bytes(run.report.read_bytes())


def test_a_job_without_late_inputs_has_none(run: RunPaths) -> None:
    assert resolve(run, {"inputs": {}}) == {}


def test_p15_a_run_that_failed_gives_nothing_to_go_on_with(run: RunPaths) -> None:
    run.attempt(1).end.write_text(json.dumps({"class": "error", "message": "rank 0 ended with 1"}))
    assert code(run) == ("E-JOB-051", "ended error: rank 0 ended with 1")
    run.attempt(1).end.unlink()
    assert code(run)[0] == "E-JOB-051"
    assert code(run, names("run-0002")) == ("E-JOB-051", "left no end record: No such file or directory")


def test_an_artefact_that_the_run_did_not_make_is_missing(run: RunPaths) -> None:
    assert code(run, names(artefact="export")) == ("E-JOB-051", "left no export/model")


@pytest.mark.parametrize("what", ["weights", "added", "report", "end", "package", "chain"])
def test_a_change_after_the_runs_end_is_noticed(run: RunPaths, what: str) -> None:
    launch, folder = names(), run.attempt(1).out / "final"
    if what == "weights":
        (folder / "adapter_model.safetensors").write_bytes(b"WEIGHTS")
    elif what == "added":
        (folder / "tokenizer.json").write_bytes(b"{}")
    elif what == "report":
        run.report.write_text(run.report.read_text() + " ")
    elif what == "end":
        run.attempt(1).end.write_text(json.dumps({"class": "done", "message": "done", "attempt": 1, "step": 9}))
    elif what == "package":
        launch["late"]["candidate"]["package_digest"] = "sha256:bb"
    else:
        chain = run.events / "batch-1.jsonl"
        chain.write_text(chain.read_text().replace("completed", "complete_"))
    assert code(run, launch)[0] == "E-JOB-052"


@pytest.mark.skipif(os.getuid() != 0, reason="gives a folder to another user")
@pytest.mark.two_users
def test_another_users_run_is_refused(run: RunPaths) -> None:
    os.chown(run.root, 12345, 12345)
    assert code(run) == ("E-JOB-052", "belongs to another user")
