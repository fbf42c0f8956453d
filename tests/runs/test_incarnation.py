"""What an earlier life of the same job left behind is no clue to the end of a later one; and what made an end look like that of a lost node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
from builder import RunMaker, epoch
from rows import NOW, look, past, row

from hpc.cli import reasoning
from hpc.runs.arrays import decide_run
from hpc.runs.causes import Found
from hpc.runs.clues import gather
from hpc.runs.diagnosis import Diagnosis
from hpc.runs.incarnation import rows_of_life
from hpc.runs.records import read_facts
from hpc.runs.state import RunState, decide
from hpc.runs.why import diagnose
from hpc.slurm.query import JobRow, Rows

Make = Callable[..., RunMaker]
OOM = "slurmstepd: error: Detected 1 oom_kill event in StepId=100.0. Some of the step tasks have been OOM Killed.\n"
FULL = "mktemp: failed to create directory via template '/tmp/tp-100.XXXXXX': No space left on device\n"
CRASHED = "srun: error: n3: task 0: Exited with exit code 3\n"


def begins(attempt: int, hosts: str = "n1,n2") -> str:
    return f"2026-03-01T12:00:00.000000Z tp: run run-0a1b2c3d attempt {attempt}, job 100, nodes {hosts}\n"


def batch(maker: RunMaker, *parts: str, first: int = 0) -> RunMaker:
    (maker.run.batch / f"{first}.log").write_text("".join(parts))
    return maker


def crashed(maker: RunMaker, number: int) -> RunMaker:
    return maker.nodes(number, 3, 87).end(number, "error", message="rank 0 ended with exit code 3")


def twice(make: Make) -> RunMaker:
    """A run whose first attempt ended and came back in the same job; the second one has begun."""
    maker = make().package().admit().submit().start(0).nodes(0, 0, 0, silent=(0, 1))
    return maker.closed_by_next(0).start(1, previous_end="node_fail")


def why(maker: RunMaker, *rows: JobRow, state: RunState | None = None) -> Diagnosis:
    facts = read_facts(maker.run)
    state = state or decide(facts, look(), NOW)
    assert facts.last_submission is not None
    steps = rows_of_life(rows, facts.last_submission, state)
    return diagnose(facts, state, gather(maker.run, state.attempt, state.element), steps=steps)


def cause(found: Diagnosis) -> Found:
    assert found.cause is not None
    return found.cause


def test_an_earlier_attempt_s_out_of_memory_is_not_the_later_one_s(make_run: Make) -> None:
    maker = twice(make_run).log(1, 0, "ValueError: row 7 is odd")
    batch(crashed(maker, 1), begins(0), OOM, begins(1), CRASHED)
    found = why(maker)
    assert (found.headline, found.end) == ("the job failed", "error")
    assert (cause(found).id, cause(found).evidence) == ("program-error", (("rank 0", "ValueError: row 7 is odd"),))
    assert "memory" not in dict(found.facts)


def test_the_attempt_s_own_out_of_memory_is(make_run: Make) -> None:
    maker = crashed(twice(make_run), 1)
    found = why(batch(maker, begins(0), CRASHED, begins(1), OOM))
    assert (found.headline, cause(found).id, cause(found).confidence) == ("out of memory", "out-of-memory", "certain")


def test_the_log_of_another_submission_is_not_looked_at(make_run: Make) -> None:
    """The newest submission was cancelled before its job began; the one before it had run out of memory."""
    maker = batch(crashed(make_run().package().admit().submit().start(0), 0), begins(0), OOM).submit(1)
    state = RunState("cancelled", "sacct", "Slurm says CANCELLED", final=True, end_class="cancelled", job_id="100")
    assert gather(maker.run, None).memory is None
    found = why(maker, state=state)
    assert (found.headline, cause(found).id, "memory" in dict(found.facts)) == ("cancelled", "cancelled", False)
    assert gather(maker.run, 0).memory is not None


@pytest.mark.parametrize(
    ("log", "attempt", "seen"),
    [
        (begins(0) + OOM + begins(1) + CRASHED, 0, True),
        (begins(0) + OOM + begins(1) + CRASHED, 1, False),
        (OOM + CRASHED, 1, True),  # a site's own template that writes no such line
        (OOM + begins(1) + CRASHED, 0, True),
        (OOM + begins(2) + CRASHED, 0, False),
        (begins(0) + OOM, 1, False),
        (begins(0) + OOM + CRASHED * 300, 0, False),
    ],
)
def test_the_log_is_cut_where_an_attempt_begins_and_where_the_next_one_does(
    make_run: Make, log: str, attempt: int, seen: bool
) -> None:
    maker = batch(twice(make_run), log)
    assert (gather(maker.run, attempt).memory is not None) == seen


def life(state: str, began: float, ended: float, step: str, **changes: object) -> list[JobRow]:
    span = {"started_at": int(epoch(began)), "ended_at": int(epoch(ended))}
    job = past(state, **span, **changes)
    return [job, *(replace(job, job_id=f"{job.job_id}.{n}", state=step, name="", comment="") for n in ("batch", "0"))]


def test_a_step_of_an_earlier_life_is_no_word_on_this_attempt(make_run: Make) -> None:
    maker = crashed(twice(make_run).log(1, 0, "ValueError: x"), 1)
    began = read_facts(maker.run).attempts[1].started_at
    assert began is not None
    now = began - epoch(0)
    died = life("NODE_FAIL", now - 900, now - 300, "OUT_OF_MEMORY")
    ran = life("FAILED", now - 2, now + 100, "FAILED")
    assert cause(why(maker, *died, *ran)).id == "program-error"
    assert cause(why(maker, *ran, *died)).id == "program-error"
    died, ran = life("NODE_FAIL", now - 900, now - 300, "FAILED"), life("FAILED", now - 2, now + 9, "OUT_OF_MEMORY")
    assert cause(why(maker, *died, *ran)).id == "out-of-memory"


def test_the_steps_of_a_stranger_with_the_same_id_are_not_ours(make_run: Make) -> None:
    maker = crashed(make_run().package().admit().submit().start(0).log(0, 0, "ValueError: x"), 0)
    ours = life("FAILED", 5, 20, "FAILED")
    theirs = life("FAILED", 400, 500, "OUT_OF_MEMORY", name="x", comment="y")
    assert cause(why(maker, *ours, *theirs)).id == "program-error"
    assert why(maker, *theirs).cause == why(maker).cause


def test_an_end_that_only_slurm_tells_of_is_of_the_life_that_ended_then(make_run: Make) -> None:
    submission = read_facts(twice(make_run).run).last_submission
    assert submission is not None
    first, second = life("NODE_FAIL", 10, 20, "OUT_OF_MEMORY"), life("FAILED", 200, 300, "FAILED")
    state = RunState("error", "sacct", "", started_at=epoch(12), ended_at=epoch(300))
    assert rows_of_life([*first, *second], submission, state) == second
    assert rows_of_life([*first, *second], submission, replace(state, evidence="own record")) == first
    assert rows_of_life([*first, *second], submission, RunState("error", "nothing", "")) == second


def test_accounting_is_asked_about_the_element_alone(make_run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    maker = make_run().package().admit().submit(array={"offset": 0, "tasks": "0-1"})
    crashed(maker.element(1).start(0).log(0, 0, "ValueError: x"), 0)
    asked: list[list[str]] = []
    monkeypatch.setattr(reasoning.query, "history", lambda *a, ids, **k: asked.append(ids) or Rows(()))
    facts = read_facts(maker.run)
    state = decide_run(facts, look(row("RUNNING", job_id="100_0")), NOW)
    error = replace(state, cls="error", element=1)
    desk = SimpleNamespace(root=maker.root, asker=SimpleNamespace(slurm=lambda fleet: None))
    reasoning.explain_run(desk, facts, error)  # type: ignore[arg-type]
    assert asked == [["100_1"]]


def test_launchers_that_were_killed_for_memory_are_no_lost_node(make_run: Make) -> None:
    """With OOMKillStep every process of the step is killed, the launchers too, and no node writes its end."""
    maker = make_run().package().admit().submit().start(0).log(0, 0, "step 1")
    maker.end(0, "node_fail", message="no end record from node 0, 1", requeue=False)
    found = why(batch(maker, begins(0), OOM))
    assert (found.headline, found.end, cause(found).confidence) == ("out of memory", "out_of_memory", "certain")
    assert cause(found).evidence[0] == ("batch", OOM.rstrip())
    assert cause(found).evidence[-1] == ("own record", "no end record from node 0, 1")
    assert "--mem" in found.mend[0]
    assert cause(why(maker, *life("FAILED", 1, 99, "OUT_OF_MEMORY"))).id == "out-of-memory"


def stopped(make: Make, cls: str, *log: str, message: str = "TERM: ended by the warning") -> RunMaker:
    """An attempt on n1 and n2 of which n2 never began; srun ended n1's ranks with a SIGTERM."""
    maker = make().package().admit().submit().start(0, ("n1",)).log(0, 0, "step 1").nodes(0, 143, signals=(15,))
    return batch(maker.end(0, cls, message=message), begins(0), *log)


@pytest.mark.parametrize("cls", ["preempted", "node_fail", "timeout"])
def test_a_node_that_could_not_start_is_looked_at_before_the_class_is_believed(make_run: Make, cls: str) -> None:
    found = why(stopped(make_run, cls, FULL))
    assert (cause(found).id, cause(found).confidence) == ("disk-full", "likely")
    assert cause(found).evidence == (
        ("batch", FULL.rstrip()), ("node", "n2 never began"), ("own record", "TERM: ended by the warning"),
    )  # fmt: skip
    assert (found.headline, dict(found.facts)["nodes that never began"]) == (
        "no space was left, or a quota is used up",
        "n2",
    )
    assert "Make room" in found.mend[0]


def test_a_class_that_an_unknown_error_speaks_against_is_not_certain(make_run: Make) -> None:
    found = why(stopped(make_run, "preempted", "FATAL:   something else went wrong\n"))
    assert (cause(found).id, cause(found).confidence) == ("preempted", "likely")
    assert ("batch", "FATAL:   something else went wrong") in cause(found).evidence
    assert ("node", "n2 never began") in cause(found).evidence
    assert "tp job logs RUN --batch" in found.mend[-1]  # and not that nothing is wrong with the run


@pytest.mark.parametrize(
    ("cls", "word"), [("preempted", "PREEMPTION"), ("timeout", "TIME LIMIT"), ("node_fail", "NODE FAILURE")]
)
def test_what_slurm_says_itself_stays_certain(make_run: Make, cls: str, word: str) -> None:
    said = f"slurmstepd-n1: error: *** JOB 100 ON n1 CANCELLED AT 2026-03-01T12:00:09 DUE TO {word} ***\n"
    maker = stopped(make_run, cls, FULL, OOM, said)
    assert (cause(why(maker)).id in ("preempted", "time-limit", "node-failure"), cause(why(maker)).confidence) == (
        True,
        "certain",
    )
    batch(maker, begins(0), FULL)
    state = {"preempted": "PREEMPTED", "timeout": "TIMEOUT", "node_fail": "NODE_FAIL"}[cls]
    assert cause(why(maker, *life(state, 1, 99, "CANCELLED"))).confidence == "certain"


def test_the_warning_that_slurm_alone_gives_is_believed(make_run: Make) -> None:
    maker = stopped(make_run, "timeout", OOM, message="USR2: all ranks saved")
    assert (cause(why(maker)).id, cause(why(maker)).confidence) == ("time-limit", "certain")


def test_ranks_that_slurm_killed_at_the_limit_are_not_told_to_ask_for_memory(make_run: Make) -> None:
    maker = make_run().package().admit().submit().start(0).log(0, 0, "x").nodes(0, 137, 137, signals=(9, 9))
    found = why(maker.end(0, "timeout", step=40, message="USR2: ended by the warning"))
    assert "memory" not in dict(found.facts)
    assert found.mend[0].startswith("`tp job resume RUN`")
