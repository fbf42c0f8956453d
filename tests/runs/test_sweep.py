"""A sweep's table: one row a variant, from the elements' records."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from builder import RunMaker
from conftest import ME
from rows import NOW, look, past, row
from runcommands import Tp
from tuneplane.contract.sweeps import Stopping, Sweep
from tuneplane.record.digest import digest_json
from tuneplane.record.files import write_json_new

from hpc.errors import Refusal
from hpc.runs.arrays import decide_run, elements
from hpc.runs.audit import audit
from hpc.runs.logs import sources
from hpc.runs.records import read_facts
from hpc.runs.state import Look
from hpc.runs.sweep import look_at

Make = Callable[..., RunMaker]


def swept(make: Make, count: int = 4, **submission: object) -> RunMaker:
    maker = make().package()
    sweep = Sweep(tuple({"lr": n / 10} for n in range(count)), Stopping("loss", "min", (2, 4), 2))
    maker.run.variants.write_text(json.dumps(sweep.as_json()))
    return maker.admit().submit(array={"offset": 0, "tasks": f"0-{count - 1}%2"}, **submission)


def trained(part: RunMaker, *losses: float | None, **end: object) -> None:
    part.start()
    lines = [{"step": n, "total_steps": 4, "loss": v} for n, v in enumerate(losses, 1)]
    (part.run.attempt(0).out / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    if end:
        part.nodes(0, 0, 0).end(0, **end)


def test_one_row_a_variant_with_state_step_metric_and_best(make_run: Make) -> None:
    maker = swept(make_run)
    trained(maker.element(0), 3.0, 1.0, 2.0, 1.5, cls="done")
    trained(maker.element(1), 4.0, 3.5, cls="done", stopped_at_rung=2)
    trained(maker.element(2), 2.5)
    seen = look(
        row("RUNNING", job_id="100_2", raw_id=102), row("PENDING", job_id="100_[3]", reason="JobArrayTaskLimit")
    )
    found = look_at(read_facts(maker.run), seen, NOW)
    assert (found.metric, found.mode) == ("loss", "min")
    assert [(r.state, r.step, r.value, r.best, r.best_step, r.stopped) for r in found.rows] == [
        ("done", 4, 1.5, 1.0, 2, None),
        ("done", 2, 3.5, 3.5, 2, 2),
        ("running", 1, 2.5, 2.5, 1, None),
        ("queued", None, None, None, None, None),
    ]
    assert [r.index for r in found.ranked] == [0, 2, 1, 3]
    assert found.counts() == {"done": 1, "stopped": 1, "running": 1, "queued": 1}


def test_a_metric_that_is_no_number_now_keeps_its_best_and_has_no_newest(make_run: Make) -> None:
    maker = swept(make_run, 2)
    trained(maker.element(0), 3.0, None)
    trained(maker.element(1), None)
    found = look_at(read_facts(maker.run), look(), NOW)
    assert [(r.step, r.value, r.best, r.best_step) for r in found.rows] == [(2, None, 3.0, 1), (1, None, None, None)]


def test_elements_that_never_began_are_told_apart(make_run: Make) -> None:
    maker = swept(make_run, 4)
    trained(maker.element(0), 1.0, cls="done")
    facts = read_facts(maker.run)
    assert [r.state for r in look_at(facts, look(), NOW).rows] == ["done", "vanished", "vanished", "vanished"]
    gone = look(history=(past("CANCELLED", job_id="100_[1-2]"),))
    assert [r.state for r in look_at(facts, gone, NOW).rows] == ["done", "cancelled", "cancelled", "vanished"]
    late = look(row("PENDING", job_id="100_[1,3,...]", reason="Priority"))
    assert [r.state for r in look_at(facts, late, NOW).rows] == ["done", "queued", "queued", "queued"]
    assert decide_run(facts, gone, NOW).message == "elements: 1 vanished, 2 cancelled, 1 done"


def test_a_part_that_slurm_refused_is_not_submitted(make_run: Make) -> None:
    maker = make_run().package()
    maker.run.variants.write_text(json.dumps(Sweep(({"a": 1}, {"a": 2}, {"a": 3})).as_json()))
    maker.admit().submit(array={"offset": 0, "tasks": "0-1"})
    trained(maker.element(0), 1.0, cls="done")
    trained(maker.element(1), 1.0, cls="done")
    assert look_at(read_facts(maker.run), look(), NOW).counts() == {"done": 2, "not submitted": 1}


def test_p13_the_parts_of_a_large_array_are_one_run(make_run: Make) -> None:
    maker = make_run().package().admit().submit(array={"offset": 0, "tasks": "0-9"})
    maker.submit(1000, job_id="200", array={"offset": 10, "tasks": "0-4"})
    first, second = maker.element(3), maker.element(12)
    second.first, second.job_id = 1000, "200_2"
    first.start().nodes(0, 0, 0).end()
    second.start(1000)
    facts = read_facts(maker.run)
    there = {"name": "sft.run-0a1b2c3d.1000", "raw_id": 202, "job_id": "200_2"}
    rest = row("PENDING", job_id="200_[0-1,3-4]", name="sft.run-0a1b2c3d.1000", reason="Priority")
    seen = look(row("RUNNING", **there), rest, row("PENDING", job_id="100_[0-2,4-9]", reason="Priority"))
    states = elements(facts, seen, NOW)
    assert {n: (s.cls, s.job_id) for n, s in states.items()} == {3: ("done", "100_3"), 12: ("running", "200_2")}
    assert decide_run(facts, seen, NOW).message == "elements: 1 running, 1 done, 0-1,3-4 queued, 0-2,4-9 queued"


def test_p14_an_element_that_was_submitted_again_is_judged_by_the_newer_submission(make_run: Make) -> None:
    maker = make_run().package().admit().submit(array={"offset": 0, "tasks": "0-3"})
    maker.element(1).start().nodes(0, 1, 0).end(0, "error")
    maker.element(2).start().nodes(0, 0, 0).end()
    maker.submit(1000, job_id="300", array={"offset": 0, "tasks": "1"})
    facts = read_facts(maker.run)
    again = row("PENDING", job_id="300_1", raw_id=301, name="sft.run-0a1b2c3d.1000", reason="Priority", comment="")
    states = elements(facts, look(again), NOW)
    assert {n: states[n].cls for n in (1, 2)} == {1: "queued", 2: "done"}


def test_each_element_has_a_batch_log_of_its_own(make_run: Make) -> None:
    maker = make_run().package().admit().submit(1000, array={"offset": 10, "tasks": "0-4"})
    (maker.run.batch / "1000_2.log").write_text("two\n")
    (maker.run.batch / "1000_x.log").write_text("no\n")
    assert [(s.attempt, s.element) for s in sources(maker.run, kind="batch")] == [(1000, 12)]
    assert sources(maker.run, kind="batch", element=3) == []


def test_another_run_is_no_sweep(make_run: Make) -> None:
    with pytest.raises(Refusal) as caught:
        look_at(read_facts(make_run().done().run), Look(), NOW)
    assert caught.value.code == "E-SWEEP-007"


def decided(make: Make) -> tuple[RunMaker, RunMaker]:
    """A sweep of two, of which one has decided at a rung."""
    spec = {"apiVersion": "tuneplane/v1", "metadata": {"name": "sft"}, "spec": {"slurm": {"array": "0-1"}}}
    maker = make(spec=spec).package().admit().submit(array={"offset": 0, "tasks": "0-1"})
    for index in range(2):
        part = maker.element(index)
        part.start().nodes(0, 0, 0)
        if index:
            record = {"step": 2, "value": 1.0, "decision": "go on"}
            part.run.rungs.mkdir()
            write_json_new(part.run.rungs / "2.json", record)
            part.events("rungs-0").append("training", "running", "rung 2", step=2, rung_sha256=digest_json(record))
        part.end()
    return maker, part


def test_a_decision_that_was_changed_or_removed_is_tampered(make_run: Make) -> None:
    maker, part = decided(make_run)
    assert audit(maker.run).verdict == "verified"
    path = part.run.rungs / "2.json"
    before = path.read_bytes()
    path.write_bytes(before.replace(b"go on", b"stop!"))
    assert [(f.level, f.path) for f in audit(maker.run).findings] == [("tampered", "array/1/rungs/2.json")]
    path.unlink()
    assert [(f.level, f.path) for f in audit(maker.run).findings] == [("tampered", "array/1/rungs/2.json")]
    path.write_bytes(before)
    (part.run.rungs / "4.json").write_bytes(before)
    assert [(f.level, f.path) for f in audit(maker.run).findings] == [("incomplete", "array/1/rungs/4.json")]


def commanded(tp: Tp) -> RunMaker:
    maker = tp.live()
    sweep = Sweep(tuple({"lr": n / 10, "seed": n} for n in range(3)), Stopping("loss", "min", (2, 4), 2))
    maker.run.variants.write_text(json.dumps(sweep.as_json()))
    record = json.loads((maker.run.submissions / "0.json").read_text())
    (maker.run.submissions / "0.json").write_text(json.dumps(record | {"array": {"offset": 0, "tasks": "0-2"}}))
    trained(maker.element(0), 3.0, 2.0, 1.5, 1.25, cls="done")
    trained(maker.element(1), 4.0, 3.5, cls="done", stopped_at_rung=2)
    return maker


def test_the_command_shows_the_best_first_and_how_to_train_it_alone(tp: Tp) -> None:
    maker = commanded(tp)
    shown = tp("sweep", "status", maker.run.exp)
    lines = shown.out.splitlines()
    assert lines[0].startswith(f"{maker.run.run_id}  sft  3 variants: 1 done, ")
    assert lines[1].split() == ["#", "lr", "seed", "STATE", "STEP", "loss", "BEST"]
    assert lines[2].split() == ["0", "0.0", "0", "done", "4/4", "1.25", "1.25"]
    assert "stopped at 2" in lines[3]
    assert "tp submit sft --set lr=0.0 --set seed=0" in shown.err
    told = tp("sweep", "status", "--json").json()
    assert (told["metric"], told["mode"], told["stopping"]["rungs"]) == ("loss", "min", [2, 4])
    assert [v["stopped_at_rung"] for v in told["variants"]] == [None, 2, None]
    assert tp("sweep", "status", "-n", "1").err.count("1 of 3 variants") == 1


def test_all_variants_in_one_plot(tp: Tp, tmp_path: Path) -> None:
    commanded(tp)
    text = tp("sweep", "plot").out
    assert "loss of 2 variants; best 1.25: #0 lr=0.0 seed=0" in text.splitlines()[0]
    assert len(text.splitlines()) == 17
    done = tp("sweep", "plot", "--png", str(tmp_path / "all.png"))
    assert done.code == 0
    assert (tmp_path / "all.png").read_bytes()[:4] == b"\x89PNG"
    assert [line["index"] for line in tp("sweep", "plot", "--json").json()["lines"]] == [0, 1]
    assert tp("sweep", "plot", "--metric", "none", "--json").json()["errors"][0]["code"] == "E-RUNS-040"


def test_stopping_a_sweep_cancels_every_part(tp: Tp) -> None:
    maker = commanded(tp)
    other = str(
        tp.fake.add(name=f"sft.{maker.run.run_id}.1000", comment=f"tp:{maker.run.run_id}:{maker.nonce}", user=ME)
    )
    maker.submit(1000, job_id=other, array={"offset": 3, "tasks": "0-1"})
    done = tp("sweep", "stop", maker.run.run_id)
    assert done.code == 0, done.err
    assert [tp.fake.job(j)["state"] for j in (maker.job_id, other)] == ["CANCELLED", "CANCELLED"]


def test_stopping_a_sweep_never_stops_another_run(tp: Tp) -> None:
    maker = tp.live()
    done = tp("sweep", "stop", maker.run.exp, "--json")
    assert (done.code, done.json()["errors"][0]["code"]) == (1, "E-SWEEP-007")
    assert tp.fake.job(maker.job_id)["state"] != "CANCELLED"
    assert tp("job", "stop", maker.run.exp).code == 0


def test_a_run_that_is_no_sweep_has_no_table(tp: Tp) -> None:
    tp.make().done()
    assert tp("sweep", "status", "--json").json()["errors"][0]["code"] == "E-SWEEP-007"
