"""How an attempt ended, as a table: what the nodes and the batch script saw, and the class it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tuneplane.launch.verdict import Ending, Seen, decide, runs_again

POLICIES = {"requeue_on": ["preempted", "node_fail", "timeout"], "max_attempts": 3}
NONE: frozenset[int] = frozenset()
SEEN = Seen(
    nodes={},
    began=frozenset({0, 1}),
    stop_requested=False,
    warned="",
    slurm_state="",
    step_code=0,
    left_s=3000.0,
    lead_s=120.0,
)


def node(*codes: int, warned: tuple[str, ...] = (), by_us: bool = False, signal: int = 0) -> dict:
    ranks = [{"rank": i, "exit_code": c, "signal": signal, "by_us": by_us} for i, c in enumerate(codes)]
    return {"ranks": ranks, "warned": list(warned)}


@pytest.mark.parametrize(
    ("seen", "klass"),
    [
        (replace(SEEN, nodes={0: node(0, 0), 1: node(0, 0)}), "done"),
        (replace(SEEN, nodes={0: node(0)}, warned="USR2"), "done"),
        (replace(SEEN, nodes={0: node(85), 1: node(85)}, warned="USR2"), "preempted"),
        (replace(SEEN, nodes={0: node(85), 1: node(85)}, warned="USR2", left_s=100.0), "timeout"),
        (replace(SEEN, nodes={0: node(85)}, warned="TERM", slurm_state="CANCELLED"), "cancelled"),
        # scontrol says COMPLETING for all of these; why Slurm ends the job stands in the batch log
        (
            replace(SEEN, nodes={0: node(85)}, warned="TERM", slurm_state="COMPLETING", ended_by="CANCELLED"),
            "cancelled",
        ),
        (replace(SEEN, nodes={0: node(143, signal=15)}, slurm_state="COMPLETING", ended_by="CANCELLED"), "cancelled"),
        (
            replace(SEEN, nodes={0: node(85)}, warned="TERM", slurm_state="COMPLETING", ended_by="PREEMPTION"),
            "preempted",
        ),
        (replace(SEEN, nodes={0: node(85)}, warned="TERM", ended_by="PREEMPTION", left_s=10.0), "preempted"),
        (replace(SEEN, nodes={0: node(85)}, warned="TERM", slurm_state="COMPLETING", ended_by="TIME LIMIT"), "timeout"),
        (replace(SEEN, nodes={0: node(0)}, slurm_state="COMPLETING", ended_by="CANCELLED"), "done"),
        (replace(SEEN, nodes={0: node(85, warned=("SIGTERM",))}), "preempted"),
        (replace(SEEN, nodes={0: node(143, warned=("SIGTERM",), signal=15)}), "preempted"),
        (replace(SEEN, nodes={0: node(1), 1: None}, step_code=1), "error"),
        # Slurm puts the job back whatever the ranks say: a framework's program knows of no warning and of no lost peer
        (replace(SEEN, nodes={0: node(1), 1: None}, step_code=1, ended_by="NODE FAILURE"), "node_fail"),
        (replace(SEEN, nodes={0: node(1), 1: None}, step_code=1, ended_by="NODE FAILURE", warned="TERM"), "node_fail"),
        (replace(SEEN, nodes={0: node(1), 1: node(143, signal=15)}, warned="TERM", ended_by="PREEMPTION"), "preempted"),
        (replace(SEEN, nodes={0: node(1), 1: None}, step_code=1, ended_by="PREEMPTION"), "preempted"),
        (replace(SEEN, nodes={0: node(1)}, step_code=1, ended_by="JOB REQUEUE"), "preempted"),
        (replace(SEEN, nodes={0: node(0)}, ended_by="PREEMPTION"), "done"),
        (replace(SEEN, nodes={0: node(1)}, stop_requested=True, ended_by="PREEMPTION"), "cancelled"),
        (replace(SEEN, nodes={0: node(1)}, warned="TERM", ended_by="TIME LIMIT"), "error"),
        (replace(SEEN, nodes={0: node(139, signal=11)}, step_code=139), "error"),
        (replace(SEEN, nodes={0: node(87), 1: None}, step_code=87), "node_fail"),
        (replace(SEEN, nodes={0: None, 1: None}, step_code=137), "node_fail"),
        (replace(SEEN, nodes={0: None, 1: None}, step_code=1, began=NONE), "error"),
        # the package started before, or Slurm has lost the node: the machine is at fault
        (replace(SEEN, nodes={0: None, 1: None}, step_code=1, began=NONE, started_before=True), "node_fail"),
        (replace(SEEN, nodes={0: None, 1: None}, step_code=1, began=NONE, ended_by="NODE FAILURE"), "node_fail"),
        # node 1 never started, and srun ended the others
        (replace(SEEN, nodes={0: node(143, warned=("SIGTERM",), signal=15), 1: None}, step_code=75), "node_fail"),
        (replace(SEEN, nodes={0: node(85, warned=("SIGTERM",)), 1: None}, step_code=75), "node_fail"),
        (replace(SEEN, nodes={0: node(85, warned=("SIGTERM",)), 1: None}, ended_by="PREEMPTION"), "preempted"),
        (replace(SEEN, nodes={0: node(85), 1: None}, warned="TERM"), "preempted"),
        # a library that lost its peer aborts the rank
        (replace(SEEN, nodes={0: node(134, signal=6), 1: None}, step_code=134), "node_fail"),
        (replace(SEEN, nodes={0: node(134, signal=6), 1: node(87)}, step_code=134), "error"),
        (replace(SEEN, nodes={0: node(134, signal=6), 2: node(1), 1: None}, step_code=134), "error"),
        (replace(SEEN, nodes={0: node(87), 1: node(87)}, step_code=87), "node_fail"),
        (replace(SEEN, nodes={0: node(137, by_us=True, signal=9), 1: node(1)}, step_code=1), "error"),
        (
            replace(SEEN, nodes={0: {"refused": {"code": "E-JOB-002", "message": "x"}, "ranks": []}}, step_code=2),
            "refused",
        ),
        (replace(SEEN, nodes={0: node(85)}, stop_requested=True, warned="TERM"), "cancelled"),
        (replace(SEEN, nodes={0: node(85, 1)}, warned="USR2", step_code=1), "error"),
    ],
)
def test_the_class_of_an_end(seen: Seen, klass: str) -> None:
    assert decide(seen).klass == klass


def test_a_node_that_never_started_is_named() -> None:
    seen = replace(
        SEEN, nodes={0: node(143, warned=("SIGTERM",), signal=15), 1: None, 2: None}, began=frozenset({0, 2})
    )
    assert decide(seen).message == "no end record from node 1, 2; node 1 never started"


def test_a_refusal_carries_its_code() -> None:
    ending = decide(replace(SEEN, nodes={0: {"refused": {"code": "E-JOB-002", "message": "changed"}, "ranks": []}}))
    assert (ending.message, ending.exit_code) == ("E-JOB-002 changed", 2)


def test_p28_a_crashed_rank_is_requeued_only_if_the_spec_says_so() -> None:
    error = Ending("error", 1, 0, "rank 0 ended with exit code 1", False)
    args = {"attempt": 0, "first_attempt": 0, "step": None, "previous": []}
    assert runs_again(error, POLICIES, **args)[0] is False
    assert runs_again(error, {**POLICIES, "requeue_on": ["error"]}, **args)[0] is True


def test_attempts_are_capped() -> None:
    ending = Ending("preempted", 85, 0, "", True)
    assert (
        runs_again(ending, POLICIES, attempt=1, first_attempt=0, step=5, previous=[{"requeue": True, "step": 3}])[0]
        is True
    )
    assert (
        runs_again(ending, POLICIES, attempt=2, first_attempt=0, step=9, previous=[{"requeue": True, "step": 5}])[0]
        is False
    )


@pytest.mark.parametrize(
    ("step", "saved", "previous", "again"),
    [
        (3, True, [{"requeue": True, "step": 3}, {"requeue": True, "step": 3}], False),
        (None, False, [{"requeue": True, "step": None}], False),
        (3, True, [{"requeue": True, "step": 3}], True),  # the attempt before came from 0 to 3
        (3, True, [{"requeue": True, "step": 3}, {"requeue": True, "step": 2}], True),
        (4, True, [{"requeue": True, "step": 3}, {"requeue": True, "step": 3}], True),
        (
            None,
            True,
            [{"requeue": True, "step": None}],
            True,
        ),  # a user's script says that it saved; nobody else can tell
        (3, True, [{"requeue": False, "step": 3}, {"requeue": True, "step": 3}], True),  # a person started it again
    ],
)
def test_two_attempts_without_a_new_step_end_the_run(
    step: int | None, saved: bool, previous: list[dict[str, object]], again: bool
) -> None:
    ending, policies = Ending("preempted", 85, 0, "", saved), {**POLICIES, "max_attempts": 9}
    found = runs_again(ending, policies, attempt=2, first_attempt=0, step=step, previous=previous)
    assert found[0] is again
    assert (found[1] == "no_progress") is not again


codes = st.sampled_from([0, 1, 85, 87, 137, 143])
nodes = st.one_of(
    st.none(),
    st.builds(
        lambda c, w: node(*c, warned=w), st.lists(codes, min_size=1, max_size=3), st.sampled_from([(), ("SIGUSR2",)])
    ),
)


@given(
    st.lists(nodes, min_size=1, max_size=4), st.booleans(), st.sampled_from(["", "USR2", "TERM"]), st.integers(0, 255)
)
def test_every_combination_has_a_class_and_done_needs_every_rank(
    ends: list, stop: bool, warned: str, code: int
) -> None:
    ending = decide(replace(SEEN, nodes=dict(enumerate(ends)), stop_requested=stop, warned=warned, step_code=code))
    assert ending.klass in {"done", "cancelled", "refused", "preempted", "timeout", "node_fail", "error"}
    all_done = all(e is not None and all(r["exit_code"] == 0 for r in e["ranks"]) for e in ends)
    assert (ending.klass == "done") is all_done
