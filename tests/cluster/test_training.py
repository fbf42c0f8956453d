"""The main job: two nodes of DeepSpeed in a SIF, whole, through a preemption and through the loss of a node, to the same result."""

from __future__ import annotations

import json
from typing import Any

import pytest
from journeys import EARLY, STEPS, LongRuns
from lab import Lab, Person, Run

pytestmark = [pytest.mark.cluster, pytest.mark.train, pytest.mark.timeout(900)]


def losses(run: Run, attempt: int) -> dict[int, float]:
    """Step -> loss of one attempt; none where it ended before its first step."""
    path = run.paths.attempt(attempt).out / "metrics.jsonl"
    text = path.read_text("utf-8") if path.exists() else ""
    return {row["step"]: row["loss"] for row in map(json.loads, text.splitlines())}


def final_loss(run: Run) -> float:
    value = run.read("report.json")["result"]["final_loss"]
    assert isinstance(value, float)
    return value


def artifacts(run: Run) -> dict[str, Any]:
    return {a["path"]: a for a in run.read("report.json")["artifacts"]}


def accounting(run: Run) -> list[str]:
    """States of all lives of the job, oldest first, as sacct has them."""
    rows = run.lab.cluster.tool("sacct", "-D", "-X", "-n", "-P", "-j", run.job_id, "-o", "State").split()
    return [row.split()[0] for row in rows]


def test_two_nodes_train_to_an_audited_record(lab: Lab, alice: Person, long_runs: LongRuns) -> None:
    run = long_runs.finished("whole")
    assert (run.attempts(), run.end(0)["class"], run.end(0)["step"]) == ([0], "done", STEPS)
    report = run.read("report.json")
    assert (report["status"], report["owner"], report["exp"]) == ("done", "tpalice", "sums")
    assert sorted(report["slurm"]["hosts"]) == [lab.cluster.node(1), lab.cluster.node(2)]
    assert report["script_sha256"] == run.read("submissions", "0.json")["script_sha256"]
    assert report["result"]["world_size"] == 2
    curve = losses(run, 0)
    assert sorted(curve) == list(range(1, STEPS + 1))
    assert curve[STEPS] == final_loss(run) < curve[1] - 0.5
    weights = artifacts(run)["final/adapter_model.safetensors"]
    assert weights["size"] == (run.paths.attempt(0).out / weights["path"]).stat().st_size > 10_000
    assert lab.tp(alice, "runs", "audit", run.id, "--json").json["verdict"] == "verified"


def test_both_ranks_speak_in_the_logs(lab: Lab, alice: Person, long_runs: LongRuns) -> None:
    run = long_runs.finished("whole")
    assert f"step {STEPS}/{STEPS}" in "\n".join(run.log(0))
    assert run.log(1)[-1] == "rank 1: done"
    said = lab.tp(alice, "job", "logs", run.id, "-n", "0").out.splitlines()
    assert {line.split()[0] for line in said} == {"[0]", "[1]"}
    assert "[0] rank 0: done" in said
    followed = lab.tp(alice, "job", "logs", "-f", "--rank", "1", run.id)
    assert followed.out.splitlines()[-1] == "rank 1: done"
    status = lab.tp(alice, "job", "status", run.id, "--json").json["runs"][0]
    assert (status["state"], status["metrics"]["step"], status["result"]["final_loss"]) == (
        "done",
        STEPS,
        final_loss(run),
    )


def test_a_preempted_run_saves_comes_back_and_ends_with_the_same_loss(
    lab: Lab, alice: Person, long_runs: LongRuns
) -> None:
    """At least once: what other tests submit has the higher priority, too, and may take its nodes again."""
    whole, run = long_runs.finished("whole"), long_runs.finished("preempted")
    lives = [losses(run, n) for n in run.attempts()]
    *before, last = (run.end(n) for n in run.attempts())
    first = before[0]
    assert (first["class"], first["requeue"], first["message"]) == ("preempted", True, "TERM: all ranks saved")
    saved = first["step"]
    assert EARLY <= saved < STEPS
    assert all(any("warning SIG" in line for line in run.log(rank)) for rank in (0, 1))
    assert [(end["class"], end["requeue"]) for end in before] == [("preempted", True)] * len(before)
    assert (last["class"], last["job_id"]) == ("done", first["job_id"])
    taken_up = before[-1]["step"]
    assert run.read("report.json")["result"]["resumed_from"] == {
        "attempt": next(end["attempt"] for end in before if end["step"] == taken_up),
        "checkpoint": f"step-{taken_up:09d}",
        "step": taken_up,
    }
    assert (max(lives[0]), min(lives[-1])) == (saved, taken_up + 1)
    assert sorted(step for life in lives for step in life) == sorted(losses(whole, 0))  # each step once
    assert {step: loss for life in lives for step, loss in life.items()} == losses(whole, 0)
    assert final_loss(run) == final_loss(whole)
    weights = "final/adapter_model.safetensors"
    assert artifacts(run)[weights]["sha256"] == artifacts(whole)[weights]["sha256"]
    assert accounting(run)[-1] == "COMPLETED"
    assert lab.tp(alice, "runs", "audit", run.id, "--json").json["verdict"] == "verified"


def test_p30_a_run_that_loses_a_node_goes_on_elsewhere_and_ends_with_the_same_loss(
    lab: Lab, alice: Person, long_runs: LongRuns
) -> None:
    whole, run = long_runs.finished("whole"), long_runs.finished("bereft")
    dead = lab.cluster.node(4)
    assert accounting(run) == ["NODE_FAIL", "COMPLETED"]
    assert (run.end(0)["class"], run.end(1)["class"], run.attempts()) == ("node_fail", "done", [0, 1])
    start = run.read("attempts", "1", "start.json")
    assert (start["previous_end"], start["restart_count"]) == ("node_fail", 1)
    assert dead in run.read("attempts", "0", "start.json")["hosts"]
    assert dead not in start["hosts"]
    resumed = run.read("report.json")["result"]["resumed_from"]
    assert (resumed["attempt"], resumed["step"]) == (0, 40)
    assert losses(run, 0) | losses(run, 1) == losses(whole, 0)
    assert final_loss(run) == final_loss(whole)
    assert lab.tp(alice, "runs", "audit", run.id, "--json").json["verdict"] == "verified"
    assert lab.cluster.tool("sinfo", "-h", "-n", dead, "-o", "%T").split()[0] in ("idle", "mixed")
