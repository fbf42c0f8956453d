"""What an owner leaves in a run's folder cannot crash, hold up, steer or misuse whoever looks at it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builder import RunMaker

from hpc.cli import runs_audit
from hpc.cli.runview import run_text
from hpc.runs import actions, logs
from hpc.runs.arrays import decide_run
from hpc.runs.asking import Asker
from hpc.runs.audit import audit
from hpc.runs.metrics import read_metrics, series
from hpc.runs.progress import newest_metrics
from hpc.runs.records import Submission, read_facts
from hpc.runs.state import Look

Make = Callable[..., RunMaker]
GOOD = {
    "first_attempt": 0, "kind": "local", "job_id": "local-7", "submitted_at": "2026-01-01T00:00:00Z", "pid": 7, "pid_start": 9,
}  # fmt: skip


@pytest.mark.parametrize(
    ("pid", "ticks"),
    [(-1, None), (0, None), (1, 5), (True, 5), ("7", 5), (7, None), (7, 0), (7, -1), (None, None), ([7], 5), (7, "5")],
)
def test_a_process_that_a_record_does_not_name_whole_is_never_signalled(pid: Any, ticks: Any) -> None:
    assert Submission.from_json(GOOD).pid == 7
    found = Submission.from_json({**GOOD, "pid": pid, "pid_start": ticks})
    assert (found.pid, found.pid_start) == (None, None)


def test_stop_signals_nobody_for_a_forged_record(make_run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run().package().run
    run.submissions.mkdir(exist_ok=True)
    (run.submissions / "0.json").write_text(json.dumps({**GOOD, "pid": -1, "pid_start": None}))
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("a signal was sent"))
    with pytest.raises(actions.Refusal):
        actions._stop_local(run, Submission.from_json(json.loads((run.submissions / "0.json").read_text())))


@pytest.mark.parametrize("at", ["", "x", None, 5, "2026", [], "9999-99-99T00:00:00Z"])
def test_a_submission_without_a_time_is_none(at: Any) -> None:
    with pytest.raises(ValueError, match="submitted_at"):
        Submission.from_json({**GOOD, "submitted_at": at})


@pytest.mark.parametrize("hosts", [None, 5, "n1", {}, [1, None], [["n1"]], ["n\x1b[31m1"]])
def test_hosts_of_any_form_are_looked_at(make_run: Make, root: Any, hosts: Any) -> None:
    maker = make_run().package().admit().submit().start()
    path = maker.run.attempt(0).start
    value = {**json.loads(path.read_text()), "hosts": hosts}
    path.unlink()
    path.write_text(json.dumps(value))
    facts = read_facts(maker.run)
    Asker(root, maker.run.owner, maker.run.owner, site=lambda: pytest.fail("asked"), now=lambda: 0.0)._alive(
        facts, facts.submissions[0]
    )
    text = run_text(
        maker.run, decide_run(facts, Look(), 0.0), 0.0, age_s=None, metrics={"step": hosts, "loss": 10**400}
    )
    assert "\x1b" not in text
    assert "loss" not in text


def blocked(path: Path, how: str) -> None:
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    if how == "pipe":
        os.mkfifo(path)
    elif how == "loop":
        path.symlink_to(path)
    elif how == "folder":
        path.mkdir()
    elif how == "holes":
        with open(path, "wb") as stream:
            stream.truncate(1 << 40)
    else:
        path.write_bytes(b"[" * 100_000 + b"\n")


@pytest.mark.parametrize("how", ["pipe", "loop", "folder", "holes", "deep"])
def test_metrics_that_are_no_metrics_are_passed_over(make_run: Make, how: str) -> None:
    run = make_run().done().run
    blocked(run.attempt(0).out / "metrics.jsonl", how)
    assert read_metrics(run) == []
    assert newest_metrics(run, 0) is None


def test_numbers_without_a_place_on_a_chart_are_left_out() -> None:
    rows = [{"step": 1, "loss": 10**400}, {"step": 2, "loss": float("nan")}, {"step": 3, "loss": 1.5}]
    assert series(rows, "loss") == [(3.0, 1.5)]


@pytest.mark.parametrize("how", ["pipe", "loop", "folder"])
def test_a_log_that_is_no_file_is_left_out(make_run: Make, how: str) -> None:
    maker = make_run().package().admit().submit().start()
    maker.log(0, 1, "hello")
    blocked(maker.run.attempt(0).rank_log(0), how)
    found = logs.sources(maker.run)
    assert [line.text for line in logs.last_lines(found, 10)] == ["hello"]
    assert [line.text for line in logs.Follower(lambda: found).more()] == ["hello"]


def test_the_last_lines_of_a_file_of_holes_are_looked_for_only_so_far_back(make_run: Make) -> None:
    maker = make_run().package().admit().submit().start()
    blocked(maker.run.attempt(0).rank_log(0), "holes")
    assert len(logs.last_lines(logs.sources(maker.run), 5)) <= 1


def hostile(run: Any, how: str) -> str:
    """Do it, and say what must be in the findings."""
    if how == "odd name":
        with open(os.fsencode(run.events) + b"/\xff\x1b[31m.jsonl", "wb"):
            return "is not the name of a writer"
    os.chmod(run.work, 0o755)
    if how == "holes":
        with open(run.work / "holes", "wb") as stream:
            stream.truncate(1 << 42)
        return "more bytes than belong here"
    folder = run.work
    for _ in range(120):
        folder = folder / "d"
        folder.mkdir()
    return "nested deeper"


@pytest.mark.parametrize("how", ["odd name", "holes", "deep"])
def test_an_audit_ends_and_its_words_are_harmless(make_run: Make, how: str) -> None:
    run = make_run().done().run
    wanted = hostile(run, how)
    found = audit(run)
    assert found.verdict == "tampered"
    text = json.dumps([f.as_json() for f in found.findings], ensure_ascii=False)
    assert wanted in text
    assert text.isprintable()


@pytest.mark.parametrize("heads", [{"launch-0": "x"}, {"launch-0": None}, {"launch-0": [1]}, {"launch-0": {"hash": 5}}])
def test_joined_heads_of_any_form_are_judged(make_run: Make, heads: Any) -> None:
    maker = make_run().done()
    maker.events("batch-0").append("completed", "completed", "again", heads=heads)
    assert audit(maker.run).verdict == "tampered"


def test_a_run_that_trips_the_audit_hides_no_other(make_run: Make) -> None:
    run = make_run().done().run
    row = runs_audit._row(run, lambda _: 1 / 0)
    assert (row["verdict"], "please report: ZeroDivisionError" in row["worst"]) == ("incomplete", True)


def test_an_artifact_of_another_length_is_a_difference_without_being_read(make_run: Make) -> None:
    run = make_run().done().run
    listed = json.loads(run.report.read_text())["artifacts"]
    path = run.attempt(0).out / listed[0]["path"]
    with open(path, "wb") as stream:
        stream.truncate(1 << 42)
    (finding,) = audit(run).findings
    assert (finding.level, finding.check, f"{1 << 42} bytes" in finding.message) == ("tampered", "artifacts", True)


@pytest.mark.parametrize(
    "change",
    [{"attempts": 5}, {"attempts": [1]}, {"attempts": {}}, {"artifacts": 5}, {"artifacts": {}}, {"artifacts": [[]]}, {"status": []}],
)  # fmt: skip
def test_a_report_of_any_form_is_judged(make_run: Make, change: dict[str, Any]) -> None:
    run = make_run().done().run
    value = {**json.loads(run.report.read_text()), **change}
    run.report.write_text(json.dumps(value))
    assert audit(run).verdict == "tampered"


@pytest.mark.parametrize(
    "spec", [{"spec": 5}, {"spec": []}, {"spec": {"slurm": 5}}, {"spec": {"slurm": {"array": {}}}}]
)
def test_a_spec_of_any_form_is_judged(make_run: Make, spec: Any) -> None:
    run = make_run().done().run
    os.chmod(run.jobspec, 0o644)
    run.jobspec.write_text(json.dumps(spec))
    assert audit(run).verdict == "tampered"


def test_a_time_that_lies_ahead_is_not_just_now(make_run: Make) -> None:
    """A clock that was set back, or a record that says so: the process decides."""
    maker = make_run().package().admit()
    (maker.run.submissions / "0.json").write_text(json.dumps({**GOOD, "submitted_at": "2099-01-01T00:00:00Z"}))
    assert decide_run(read_facts(maker.run), Look(alive=False), 0.0).cls == "vanished"
