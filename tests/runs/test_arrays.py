"""An array is one run with elements of its own records (P14)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from builder import RunMaker
from conftest import ME
from fakeslurm import FakeSlurm
from rows import NOW, look, past, row

from hpc.runs import actions
from hpc.runs.actions import Actor
from hpc.runs.arrays import decide_run, elements
from hpc.runs.clues import gather
from hpc.runs.logs import last_lines, sources
from hpc.runs.records import read_facts
from hpc.runs.state import Look
from hpc.slurm.commands import Slurm

Make = Callable[..., RunMaker]


def test_an_array_that_waits_runs_and_ended_in_parts(make_run: Make) -> None:
    maker = make_run().package().admit().submit()
    maker.element(0).start().nodes(0, 0, 0).end()
    maker.element(1).start()
    facts = read_facts(maker.run)
    seen = look(
        row("RUNNING", job_id="100_1", raw_id=101), row("PENDING", job_id="100_[2-9]", reason="JobArrayTaskLimit")
    )
    state = decide_run(facts, seen, NOW)
    assert (state.cls, state.element, state.job_id, state.final) == ("running", 1, "100", False)
    assert state.message == "elements: 1 running, 1 done, 2-9 queued"
    assert {n: s.cls for n, s in elements(facts, seen, NOW).items()} == {0: "done", 1: "running"}


def test_an_array_is_done_when_all_of_it_is(make_run: Make) -> None:
    maker = make_run().package().admit().submit()
    for n in range(3):
        maker.element(n).start().nodes(0, 0, 0).end()
    state = decide_run(read_facts(maker.run), look(), NOW)
    assert (state.cls, state.final, state.message, state.attempts) == ("done", True, "elements: 3 done", 3)


def test_one_bad_element_speaks_for_the_array(make_run: Make) -> None:
    maker = make_run().package().admit().submit()
    maker.element(0).start().nodes(0, 0, 0).end()
    maker.element(1).start().log(0, 0, "ValueError: element one").nodes(0, 1, 87).end(0, "error")
    facts = read_facts(maker.run)
    state = decide_run(facts, look(history=(past("COMPLETED", job_id="100_0"), past("FAILED", job_id="100_1"))), NOW)
    assert (state.cls, state.element, state.attempt, state.message) == ("error", 1, 0, "elements: 1 error, 1 done")
    clues = gather(maker.run, state.attempt, state.element)
    assert clues.first_error is not None
    assert clues.first_error.text == "ValueError: element one"


def test_an_array_that_has_not_begun_is_known_by_its_rest(make_run: Make) -> None:
    facts = read_facts(make_run().package().admit().submit().run)
    state = decide_run(facts, look(row("PENDING", job_id="100_[0-9%2]", reason="Priority")), NOW)
    assert (state.cls, state.reason, state.message) == ("queued", "Priority", "elements: 0-9%2 queued")


def test_p16_a_strangers_array_is_not_ours(make_run: Make) -> None:
    facts = read_facts(make_run().package().admit().submit().run)
    stranger = replace(row("RUNNING", job_id="100_1"), name="x", comment="y")
    assert decide_run(facts, look(stranger), NOW).cls == "unknown"


def test_a_plain_run_is_decided_as_before(make_run: Make) -> None:
    facts = read_facts(make_run().done().run)
    assert decide_run(facts, Look(), NOW).element is None


def test_logs_of_all_elements_and_of_one(make_run: Make) -> None:
    maker = make_run().package().admit().submit()
    first, second = maker.element(0).start().log(0, 0, "zero"), maker.element(1).start()
    second.clock = first.clock
    second.log(0, 0, "one")
    assert [(line.source.element, line.text) for line in last_lines(sources(maker.run), 0)] == [(0, "zero"), (1, "one")]
    assert [line.text for line in last_lines(sources(maker.run, element=1), 0)] == ["one"]


def test_stop_marks_every_element(make_run: Make, fake_slurm: FakeSlurm) -> None:
    import os

    maker = make_run().package().admit().submit()
    part = maker.element(0).start()
    fake_slurm.add(id=100, name="sft.run-0a1b2c3d.0", user=ME, array="0-9")
    facts = read_facts(maker.run)
    slurm = Slurm(bin_dir=str(fake_slurm.bin), conf=fake_slurm.conf)
    state = decide_run(facts, look(row("RUNNING", job_id="100_0")), NOW)
    actor = Actor(ME, os.getuid(), lambda: "2026-03-01T13:00:00.000000Z")
    actions.stop(maker.run, facts, state, actor, lambda: slurm)
    assert json.loads((part.run.root / "stop_requested").read_text())["by"] == ME
    assert fake_slurm.job(100)["state"] == "CANCELLED"
