"""What a run's attempts recorded of how they went on, and whether the warning leaves time for a save."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from builder import RunMaker
from tuneplane.contract.continuity import text_of
from tuneplane.contract.layout import RunPaths, StorageRoot
from tuneplane.contract.leads import lead_advice, save_seconds, suggested_lead_s
from tuneplane.record.digest import digest_file

from hpc.runs import continuity
from hpc.runs.audit import audit
from hpc.runs.evidence import Case


def certificate(**changes: Any) -> dict[str, Any]:
    return {
        "schema": "tuneplane-hpc/continuity/v1",
        "run_id": "run-0a1b2c3d",
        "attempt": 3,
        "continues": {"run_id": "run-0a1b2c3d", "attempt": 2, "step": 1240, "checkpoint": "step-000001240"},
        "ranks": {"then": 2, "now": 2},
        "verified": True,
        "compared": ["parameters", "optimiser", "random", "samples"],
        "differs": [],
        "digests": {},
        **changes,
    }


def leave(run: RunPaths, attempt: int, value: dict[str, Any] | bytes) -> Path:
    path = run.attempt(attempt).continuity
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())
    return path


def test_a_certificate_says_what_continues_what_and_what_was_compared() -> None:
    assert text_of(certificate()) == (
        "attempt 3 continues attempt 2 at step 1240, verified: parameters, optimiser, random numbers, next samples"
    )
    other = {"run_id": "run-99999999", "attempt": 0, "step": 8, "checkpoint": "step-000000008"}
    reshaped = certificate(continues=other, ranks={"then": 2, "now": 8}, compared=["samples"])
    assert text_of(reshaped) == (
        "attempt 3 continues run-99999999 attempt 0 at step 8, 2 ranks became 8, verified: next samples"
    )
    assert text_of(certificate(verified=False, differs=["optimiser of rank 1"])) == (
        "attempt 3 continues attempt 2 at step 1240, and differs from what was saved: optimiser of rank 1"
    )
    assert text_of(certificate(compared=[], verified=False)).endswith("was not recorded when it was saved")


def test_status_shows_the_newest_certificate_and_each_that_differs(tmp_path: Path) -> None:
    run = StorageRoot(tmp_path).run("alice", "sft", "run-0a1b2c3d")
    leave(run, 1, certificate(attempt=1, verified=False, differs=["parameters of rank 0"]))
    leave(run, 2, certificate(attempt=2))
    leave(run, 3, certificate())
    leave(run, 4, b"{")
    leave(run, 5, certificate(attempt=3))  # a copy of another attempt's
    leave(run, 6, certificate(attempt=6, continues="x"))
    found = continuity.certificates(run)
    assert [c["attempt"] for c in found] == [1, 2, 3]
    assert [text.split(" at ")[0] for _, text in continuity.rows(found, "")] == [
        "attempt 1 continues attempt 2",
        "attempt 3 continues attempt 2",
    ]
    assert continuity.rows([], "say") == [("warning", "say")]


def test_the_suggested_lead_is_twice_the_95th_percentile_and_half_a_minute() -> None:
    assert suggested_lead_s([]) == 0
    assert suggested_lead_s([10.0]) == 50
    assert suggested_lead_s([1.0] * 95 + [40.0] * 5) == 32
    assert suggested_lead_s([1.0] * 90 + [40.2] * 10) == 111
    assert lead_advice([50.0, 70.4], 60) == (
        "the longest of 2 saves took 70 s, the warning comes 60 s before the end: submit with --signal B:USR2@171"
    )
    assert lead_advice([50.0], 60) == lead_advice([], 60) == ""


def test_p33_saves_of_all_attempts_are_held_against_the_warning_s_lead(tmp_path: Path) -> None:
    run = StorageRoot(tmp_path).run("alice", "sft", "run-0a1b2c3d")
    for attempt, lines in ((0, ['{"seconds": 30.5}', '{"seconds": "long"}', "["]), (2, ['{"seconds": 90}', '{"secon'])):
        run.attempt(attempt).saves.parent.mkdir(parents=True)
        run.attempt(attempt).saves.write_text("\n".join(lines) + ("\n" if attempt == 0 else ""))
    assert save_seconds(run) == [30.5, 90.0]
    assert continuity.advice(run) == ""  # no package, no lead
    run.launch.parent.mkdir(parents=True)
    run.launch.write_text('{"policies": {"lead_s": 60}}')
    assert continuity.advice(run).endswith("submit with --signal B:USR2@210")


@pytest.mark.parametrize("harm", [b"{}", None])
def test_a_certificate_that_was_edited_or_removed_is_tampered(tmp_path: Path, harm: bytes | None) -> None:
    run = StorageRoot(tmp_path).run("alice", "sft", "run-0a1b2c3d")
    path = leave(run, 3, certificate())
    endings = {3: {"continuity_sha256": digest_file(path)}, 2: {}}
    case = Case(run, deep=False, stop=lambda: False)
    continuity.check(case, run, endings)
    assert case.findings == []
    path.unlink() if harm is None else path.write_bytes(harm)
    continuity.check(case, run, endings)
    assert [(f.level, f.check) for f in case.findings] == [("tampered", "continuity")]


def test_an_audit_s_facts_hold_the_certificates(tmp_path: Path) -> None:
    maker = RunMaker(StorageRoot(tmp_path)).package().admit().submit().start()
    leave(maker.run, 0, certificate(attempt=0))
    assert audit(maker.run).facts["continuity"] == [
        {"attempt": 0, "verified": True, "text": text_of(certificate(attempt=0))}
    ]
