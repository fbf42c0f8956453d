"""How runs end on a real Slurm, and which of them run again."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from journeys import LongRuns
from lab import Lab, Person, Run

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

STAYS = """\
trap 'echo warned; exit 85' USR2 TERM
echo ready
while :; do sleep 0.2; done
"""
CRASHES = """\
if [ "$RANK" = 1 ]; then sleep 1; exit 3; fi
sleep 600
"""


@dataclass(frozen=True)
class Ends:
    """Runs that were submitted together, so that they run side by side."""

    crash: Run
    crash_again: Run
    cancelled: Run
    stopped: Run
    waiting: Run


@pytest.fixture(scope="module")
def ends(lab: Lab, alice: Person) -> Ends:
    lab.experiments(alice, {"stays": STAYS, "crashes": CRASHES})
    return Ends(
        crash=lab.submit(alice, "crashes", "--profile", "two"),
        crash_again=lab.submit(alice, "crashes", "--profile", "two", "--requeue-on", "error", "--max-attempts", "2"),
        cancelled=lab.submit(alice, "stays", "--label", "end=scancel"),
        stopped=lab.submit(alice, "stays", "--label", "end=stop"),
        waiting=lab.submit(alice, "stays", "--begin", "now+1hour"),
    )


def restarts(run: Run) -> str:
    return run.lab.cluster.job(run.job_id)["Restarts"]


def test_scancel_ends_a_run_for_good(lab: Lab, alice: Person, ends: Ends) -> None:
    run = ends.cancelled
    run.wait_line("ready")
    lab.slurm(alice, "scancel", run.job_id)
    end = run.wait_end()
    assert (end["class"], end["requeue"], run.attempts()) == ("cancelled", False, [0])
    assert "warned" in run.log(0)
    assert (lab.cluster.job_state(run.job_id), restarts(run)) == ("CANCELLED", "0")
    assert lab.tp(alice, "job", "status", run.id, "--json").json["runs"][0]["state"] == "cancelled"


def test_tp_job_stop_ends_a_running_job_for_good(lab: Lab, alice: Person, ends: Ends) -> None:
    run = ends.stopped
    run.wait_line("ready")
    lab.tp(alice, "job", "stop", run.id)
    end = run.wait_end()
    assert (end["class"], end["requeue"], end["message"]) == ("cancelled", False, "stopped on request")
    assert (lab.cluster.job_state(run.job_id), restarts(run)) == ("CANCELLED", "0")
    assert lab.tp(alice, "job", "stop", run.id, "--json", code=1).codes == ["E-RUNS-010"]


def test_tp_job_stop_takes_a_waiting_job_out_of_the_queue(lab: Lab, alice: Person, ends: Ends) -> None:
    run = ends.waiting
    assert lab.tp(alice, "job", "status", run.id, "--json").json["runs"][0]["state"] == "queued"
    lab.tp(alice, "job", "stop", run.id)
    assert lab.cluster.wait_state(run.job_id, "CANCELLED") == "CANCELLED"
    assert run.attempts() == []
    assert lab.tp(alice, "job", "wait", run.id, "--timeout", "60", "--json", code=1).json["state"] == "cancelled"


def test_p28_a_crashed_rank_is_an_error_and_does_not_run_again(lab: Lab, alice: Person, ends: Ends) -> None:
    run = ends.crash
    end = run.wait_end()
    assert (end["class"], end["exit_code"], end["requeue"]) == ("error", 3, False)
    assert end["message"] == "rank 1 ended with exit code 3"
    ranks = [rank for node in "01" for rank in run.read("attempts", "0", "nodes", f"{node}.end.json")["ranks"]]
    assert [(r["rank"], r["exit_code"], r["by_us"]) for r in ranks] == [(0, 143, False), (1, 3, False)]
    assert (lab.cluster.job_state(run.job_id), restarts(run), run.attempts()) == ("FAILED", "0", [0])
    assert lab.tp(alice, "job", "wait", run.id, "--json", code=1).json["state"] == "error"
    why = lab.tp(alice, "job", "why", run.id).out
    assert "rank 1" in why
    assert "exit code 3" in why


def test_p28_the_spec_lets_a_crash_run_again_as_often_as_it_says(lab: Lab, alice: Person, ends: Ends) -> None:
    run = ends.crash_again
    end = run.wait_end()
    first = run.end(0)
    assert (first["class"], first["requeue"], first["reason"]) == ("error", True, "class error, attempt 1 of 2")
    assert run.read("attempts", "0", "requeue.json")["restart_count"] == 0
    assert (end["attempt"], end["class"], end["requeue"], end["reason"]) == (1, "error", False, "max_attempts is 2")
    assert (restarts(run), run.attempts()) == ("1", [0, 1])
    assert run.read("attempts", "1", "start.json")["previous_end"] == "error"
    assert end["job_id"] == first["job_id"] == run.job_id


def test_p30_slurm_is_told_whether_it_may_restart_the_job(lab: Lab, alice: Person, ends: Ends) -> None:
    held = ("--begin", "now+1hour")
    may = lab.submit(alice, "stays", *held, "--label", "requeue=may")
    must_not = lab.submit(alice, "stays", *held, "--requeue-on", "none")
    assert [lab.cluster.job(run.job_id)["Requeue"] for run in (may, must_not)] == ["1", "0"]
    for run in (may, must_not):
        lab.tp(alice, "job", "stop", run.id)


def test_p27_p28_the_warning_before_the_time_limit_reaches_the_rank_and_the_job_runs_again(
    lab: Lab, alice: Person, long_runs: LongRuns
) -> None:
    run = long_runs.finished("limited")
    first, second = run.end(0), run.end(1)
    assert run.log(0)[0] == "ready"
    assert "warned" in run.log(0)
    assert "got TERM" not in run.log(0)
    assert (first["class"], first["requeue"], first["message"]) == ("timeout", True, "USR2: all ranks saved")
    assert (second["class"], run.log(0, attempt=1), restarts(run)) == ("done", ["goes on from 41"], "1")


def accounting(run: Run) -> list[str]:
    """States of all lives of the job, oldest first, as sacct has them."""
    rows = run.lab.cluster.tool("sacct", "-D", "-X", "-n", "-P", "-j", run.job_id, "-o", "State").splitlines()
    return [row.split()[0] for row in rows]


def test_p28_a_job_that_slurm_ends_at_its_limit_is_a_timeout_and_runs_again(
    lab: Lab, alice: Person, long_runs: LongRuns
) -> None:
    run = long_runs.finished("overrun")
    first, second = run.end(0), run.end(1)
    assert (first["class"], first["requeue"], first["message"]) == ("timeout", True, "TERM: all ranks saved")
    assert (second["class"], run.log(0, attempt=1), restarts(run)) == ("done", ["goes on from 41"], "1")
    assert "DUE TO TIME LIMIT" in run.batch_log()


def test_p30_a_job_that_is_preempted_without_grace_comes_back_once(
    lab: Lab, alice: Person, long_runs: LongRuns
) -> None:
    run = long_runs.finished("ousted")
    first, second = run.end(0), run.end(1)
    assert (first["class"], first["requeue"]) == ("preempted", True)
    assert (second["class"], run.log(0, attempt=1), restarts(run)) == ("done", ["goes on from 41"], "1")
    assert run.attempts() == [0, 1]
    assert "DUE TO PREEMPTION" in run.batch_log()
    assert accounting(run)[0] == "PREEMPTED"


def test_p30_a_job_whose_only_node_dies_begins_again_elsewhere(lab: Lab, alice: Person, long_runs: LongRuns) -> None:
    run = long_runs.finished("beheaded")
    first, second = run.end(0), run.end(1)
    assert (first["class"], first["requeue"], first["reason"]) == ("node_fail", True, "restarted by Slurm")
    assert (second["class"], run.log(0, attempt=1), accounting(run)) == ("done", ["again"], ["NODE_FAIL", "COMPLETED"])
    assert [run.read("attempts", n, "start.json")["hosts"] == [lab.cluster.node(4)] for n in "01"] == [True, False]
    assert lab.tp(alice, "runs", "audit", run.id, "--json").json["verdict"] == "verified"
