"""What state a run is in (P15, P16, P18, P28, P30). Each case is a record, an answer of Slurm, and the one right word."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from builder import RunMaker, epoch
from rows import NOW, look, past, row

from hpc.runs.records import Facts, read_facts
from hpc.runs.state import ACTIVE, GRACE_S, Look, RunState, decide, is_ours

Make = Callable[..., RunMaker]


def submitted(make: Make) -> Facts:
    maker = make()
    return read_facts((maker if maker.run.root.exists() else maker.package().admit().submit()).run)


def started(make: Make) -> Facts:
    maker = make()
    return read_facts((maker if maker.run.root.exists() else maker.package().admit().submit().start()).run)


def ended(make: Make, cls: str, **kwargs: Any) -> Facts:
    return read_facts(make().package().admit().submit().start().end(0, cls, **kwargs).run)


def verdict(facts: Facts, seen: Look, now: float = NOW) -> tuple[str, str, bool]:
    state = decide(facts, seen, now)
    return state.cls, state.evidence, state.final


# The order of belief: own record, accounting, queue, age


@pytest.mark.parametrize(
    ("cls", "expected"),
    [("done", "done"), ("preempted", "preempted"), ("timeout", "timeout"), ("node_fail", "node_fail"), ("cancelled", "cancelled"),
     ("error", "error"), ("refused", "error"), ("no_progress", "error")],
)  # fmt: skip
def test_p18_p28_the_runs_own_end_wins_over_everything(make_run: Make, cls: str, expected: str) -> None:
    facts = ended(make_run, cls)
    for seen in (
        look(),
        look(row("RUNNING")),
        look(row("FAILED")),
        look(history=(past("NODE_FAIL"),)),
        Look(error="away"),
    ):
        state = decide(facts, seen, NOW)
        assert (state.cls, state.end_class, state.evidence, state.final) == (expected, cls, "own record", True)


def test_p18_a_running_job_in_the_queue(make_run: Make) -> None:
    assert verdict(started(make_run), look(row("RUNNING", node_list="n[1-2]"))) == ("running", "squeue", False)
    assert decide(started(make_run), look(row("RUNNING", node_list="n[1-2]")), NOW).hosts == "n[1-2]"


def test_a_pending_job_has_its_reason_and_outlook(make_run: Make) -> None:
    state = decide(submitted(make_run), look(row("PENDING", reason="PartitionTimeLimit")), NOW)
    assert (state.cls, state.reason, state.outlook, state.dead) == ("queued", "PartitionTimeLimit", "user", False)


def test_p15_a_dependency_that_can_never_be_met_is_dead(make_run: Make) -> None:
    seen = look(row("PENDING", reason="DependencyNeverSatisfied", dependency="afterok:7(failed)"))
    state = decide(submitted(make_run), seen, NOW)
    assert (state.cls, state.dead, state.dependency) == ("queued", True, "afterok:7(failed)")


@pytest.mark.parametrize(
    ("slurm", "expected"),
    [("FAILED", "error"), ("OUT_OF_MEMORY", "error"), ("TIMEOUT", "timeout"), ("NODE_FAIL", "node_fail"), ("PREEMPTED", "preempted"),
     ("CANCELLED", "cancelled"), ("BOOT_FAIL", "node_fail"), ("DEADLINE", "timeout")],
)  # fmt: skip
def test_p18_without_an_own_end_accounting_tells(make_run: Make, slurm: str, expected: str) -> None:
    facts = started(make_run)
    assert verdict(facts, look(history=(past(slurm),))) == (expected, "sacct", True)
    assert verdict(facts, look(row(slurm, ended_at=int(epoch(500))))) == (expected, "squeue", True)


def test_p18_accounting_wins_over_the_queue_about_an_end(make_run: Make) -> None:
    seen = look(row("FAILED", ended_at=int(epoch(500))), history=(past("NODE_FAIL"),))
    assert verdict(started(make_run), seen) == ("node_fail", "sacct", True)


def test_a_live_job_in_the_queue_wins_over_an_old_accounting_record(make_run: Make) -> None:
    seen = look(row("PENDING", restarts=1, reason="BeginTime"), history=(past("NODE_FAIL"),))
    assert verdict(started(make_run), seen) == ("requeued", "squeue", False)


def test_p18_a_job_that_nobody_knows_has_vanished(make_run: Make) -> None:
    assert verdict(started(make_run), look()) == ("vanished", "age", False)
    assert verdict(started(make_run), look(polled_at=epoch(200_000)), epoch(200_000)) == ("vanished", "age", True)


def test_p18_without_accounting_the_queue_alone_decides(make_run: Make) -> None:
    state = decide(started(make_run), look(accounting=False, asked=()), NOW)
    assert (state.cls, state.message) == ("vanished", "the queue has forgotten the job, and it left no end record")


def test_before_accounting_was_asked_nothing_is_claimed(make_run: Make) -> None:
    assert verdict(started(make_run), look(asked=())) == ("unknown", "nothing", False)


def test_slurm_says_done_but_the_run_does_not(make_run: Make) -> None:
    facts = started(make_run)
    fresh, old = past("COMPLETED", ended_at=int(NOW - 5)), past("COMPLETED", ended_at=int(NOW - GRACE_S))
    assert verdict(facts, look(history=(fresh,)))[0] == "running"  # the record may still be on its way
    assert verdict(facts, look(history=(old,))) == ("unknown", "sacct", True)


# Age


def test_a_job_that_was_just_submitted_is_queued(make_run: Make) -> None:
    facts = submitted(make_run)
    assert verdict(facts, look(polled_at=epoch(10)), epoch(12)) == ("queued", "age", False)
    assert verdict(facts, Look(), epoch(12)) == ("queued", "age", False)


def test_an_answer_from_before_the_submission_says_nothing(make_run: Make) -> None:
    assert verdict(submitted(make_run), look(polled_at=epoch(-100))) == ("queued", "age", False)


def test_slurm_away_leaves_the_own_record(make_run: Make) -> None:
    state = decide(started(make_run), Look(error="E-SLURM-002 away"), NOW)
    assert (state.cls, state.evidence) == ("running", "own record")
    assert "did not answer" in state.message


def test_slurm_away_leaves_a_submitted_run_queued(make_run: Make) -> None:
    assert verdict(submitted(make_run), Look(error="E-SLURM-002 away")) == ("queued", "age", False)


def test_slurm_away_after_it_lost_sight_is_unknown(make_run: Make) -> None:
    assert verdict(started(make_run), look(error="E-SLURM-002 away")) == ("unknown", "nothing", False)


def test_a_run_that_was_packed_but_never_submitted(make_run: Make) -> None:
    state = decide(read_facts(make_run().package().admit().run), look(), NOW)
    assert (state.cls, state.job_id, state.final) == ("unknown", "", False)


# P16: ids come back


@pytest.mark.parametrize(
    "changes",
    [
        {"comment": "tp:run-ffffffff:0000000000000000", "name": "other"},
        {"comment": "", "name": "other"},
        {"comment": "somebody's own words"},
        {"submitted_at": int(epoch(-10_000))},
    ],
)
def test_p16_a_strangers_job_is_never_the_runs_state(make_run: Make, changes: dict[str, Any]) -> None:
    stranger = row("RUNNING", **changes)
    for seen in (look(stranger), look(history=(replace(stranger, source="sacct"),))):
        state = decide(started(make_run), seen, NOW)
        assert (state.cls, state.message) == ("unknown", "job id 100 now belongs to another job")


def test_p16_another_clusters_job_is_a_stranger(make_run: Make) -> None:
    facts = read_facts(make_run().package().admit().submit(cluster="west").run)
    assert decide(facts, look(row("RUNNING", cluster="east")), NOW).cls == "unknown"
    assert decide(facts, look(row("RUNNING", cluster="west")), NOW).cls == "running"


def test_p16_accounting_without_comments_goes_by_the_unique_name(make_run: Make) -> None:
    facts = started(make_run)
    assert decide(facts, look(history=(past("FAILED", comment=""),)), NOW).cls == "error"


def test_p16_a_record_whose_name_has_not_arrived_is_nobodys_yet(make_run: Make) -> None:
    nameless = past("FAILED", comment="", name="")
    assert decide(started(make_run), look(history=(nameless,)), NOW).cls == "vanished"
    assert decide(started(make_run), look(row("RUNNING"), history=(nameless,)), NOW).cls == "running"


def test_p16_a_stranger_beside_the_own_record_changes_nothing(make_run: Make) -> None:
    stranger = row("RUNNING", comment="x", name="y", submitted_at=int(epoch(900)))
    seen = look(stranger, history=(past("TIMEOUT"),))
    assert verdict(started(make_run), seen) == ("timeout", "sacct", True)


def test_p16_the_clocks_of_two_machines_may_differ_a_little(make_run: Make) -> None:
    facts = submitted(make_run)
    submission = facts.last_submission
    assert submission is not None
    assert is_ours(row(submitted_at=int(submission.submitted_at) - 200), submission)
    assert not is_ours(row(submitted_at=int(submission.submitted_at) - 400), submission)


# P30: one run, another attempt


def test_p30_a_node_failure_followed_by_pending_is_one_run(make_run: Make) -> None:
    state = decide(started(make_run), look(row("PENDING", restarts=1, submitted_at=int(epoch(600)))), NOW)
    assert (state.cls, state.attempt, state.active) == ("requeued", 0, True)
    running = decide(started(make_run), look(row("RUNNING", restarts=1, submitted_at=int(epoch(600)))), NOW)
    assert (running.cls, running.message) == ("running", "the node is being prepared")


def test_p30_an_end_by_a_dead_node_is_not_final_within_the_grace(make_run: Make) -> None:
    for slurm in ("NODE_FAIL", "PREEMPTED"):
        seen = look(history=(past(slurm, ended_at=int(NOW - 10)),))
        assert decide(started(make_run), seen, NOW).final is False
        assert decide(started(make_run), seen, NOW + GRACE_S).final is True


def test_p30_the_own_wish_to_run_again(make_run: Make) -> None:
    facts = ended(make_run, "preempted", requeue=True, step=40)
    at_end = epoch(30)
    assert verdict(facts, look(row("RUNNING"))) == ("requeued", "own record", False)
    assert verdict(facts, look(row("PENDING", restarts=1))) == ("requeued", "squeue", False)
    assert verdict(facts, look(row("RUNNING", restarts=1))) == ("running", "squeue", False)
    assert verdict(facts, Look(error="away"))[:2] == ("requeued", "own record")
    assert verdict(facts, look(polled_at=at_end), at_end)[:2] == ("requeued", "own record")
    assert decide(facts, look(), NOW).cls == "preempted"
    assert "Slurm has no such job" in decide(facts, look(), NOW).message
    assert decide(facts, look(), NOW).step == 40


def test_p30_a_requeued_job_that_was_cancelled_before_it_began_again(make_run: Make) -> None:
    facts = ended(make_run, "preempted", requeue=True)
    end = decide(facts, look(row("CANCELLED", restarts=1, submitted_at=int(epoch(600)), ended_at=int(epoch(700)))), NOW)
    assert (end.cls, end.final) == ("cancelled", True)
    end = decide(facts, look(history=(past("CANCELLED", submitted_at=int(epoch(600)), ended_at=int(epoch(700))),)), NOW)
    assert (end.cls, end.final) == ("cancelled", True)


def test_p30_a_finished_run_that_an_admin_requeues_lives_again(make_run: Make) -> None:
    facts = ended(make_run, "error")
    assert verdict(facts, look(row("PENDING", restarts=1)))[0] == "requeued"


def test_a_retry_is_a_new_submission_with_the_next_attempt(make_run: Make) -> None:
    maker = make_run().package().admit().submit().start().end(0, "error")
    maker.job_id, maker.nonce = "200", "beef0123beef0123"
    facts = read_facts(maker.submit(1).run)
    again = row(
        "PENDING", job_id="200", raw_id=200, name="sft.run-0a1b2c3d.1", comment="tp:run-0a1b2c3d:beef0123beef0123"
    )
    state = decide(facts, look(row("FAILED"), again), NOW)
    assert (state.cls, state.attempt, state.attempts, state.job_id) == ("queued", None, 1, "200")


# Arrays and heterogeneous jobs


def test_p14_array_and_heterogeneous_ids(make_run: Make) -> None:
    facts = started(make_run)
    assert decide(facts, look(row("RUNNING", job_id="100+0")), NOW).cls == "running"
    assert decide(facts, look(row("PENDING", job_id="100_[1-3]"), row("RUNNING", job_id="100_0")), NOW).cls == "running"
    task = read_facts(make_run("run-11111111").package().admit().submit(job_id="100_2").run)
    mine = row("RUNNING", job_id="100_2", name="sft.run-11111111.0", comment="")
    assert decide(task, look(replace(mine, job_id="100_1"), mine), NOW).cls == "running"
    assert decide(task, look(replace(mine, job_id="100_1")), NOW).cls == "vanished"


# The local fleet


def local(make: Make, *, begun: bool = True) -> Facts:
    maker = make(kind="local", job_id="local-77").package().admit().submit(pid=77, pid_start=5)
    return read_facts((maker.start() if begun else maker).run)


def test_a_local_run_by_its_process(make_run: Make) -> None:
    facts = local(make_run)
    assert verdict(facts, Look(alive=True)) == ("running", "process", False)
    assert verdict(facts, Look(alive=None)) == ("running", "own record", False)
    assert verdict(facts, Look(alive=False)) == ("vanished", "process", True)


def test_a_local_run_that_has_not_begun(make_run: Make) -> None:
    facts = local(make_run, begun=False)
    assert verdict(facts, Look(alive=True)) == ("queued", "process", False)
    assert verdict(facts, Look(alive=False), epoch(4)) == ("queued", "age", False)


def test_a_local_run_that_runs_again(make_run: Make) -> None:
    maker = make_run(kind="local", job_id="local-77").package().admit().submit(pid=77, pid_start=5).start()
    facts = read_facts(maker.end(0, "preempted", requeue=True).run)
    assert verdict(facts, Look(alive=True))[0] == "requeued"
    assert verdict(facts, Look(alive=False)) == ("preempted", "own record", True)


# Every combination has an answer


def test_no_combination_is_without_an_answer_and_no_stranger_runs(make_run: Make) -> None:
    makers = {
        "none": make_run("run-00000001").package(),
        "submitted": make_run("run-00000002").package().admit().submit(),
        "started": make_run("run-00000003").package().admit().submit().start(),
        "requeue": make_run("run-00000004").package().admit().submit().start().end(0, "preempted", requeue=True),
        "done": make_run("run-00000005").done(),
    }
    states = ["PENDING", "RUNNING", "COMPLETED", "FAILED", "NODE_FAIL", "PREEMPTED", "CANCELLED", "MYSTERY", None]
    for (name, maker), queue, old, error, accounting in itertools.product(
        makers.items(), states, states, ("", "away"), (True, False)
    ):
        facts = read_facts(maker.run)
        same = {"name": f"sft.{maker.run_id}.0", "comment": ""}
        rows = (row(queue, **same),) if queue else ()
        hist = (past(old, **same),) if old else ()
        state = decide(facts, look(*rows, history=hist, error=error, accounting=accounting), NOW)
        assert isinstance(state, RunState)
        assert not (state.final and state.active)
        if state.cls == "done":
            assert name == "done"
        strange = decide(
            facts, look(*(replace(r, name="x") for r in rows), history=tuple(replace(r, name="x") for r in hist)), NOW
        )
        if name in ("submitted", "started") and (rows or hist):
            assert strange.cls not in ACTIVE
