"""Early stopping: the rule, and what an element writes down. No torch here."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tuneplane.contract.layout import RunPaths
from tuneplane.contract.sweeps import Stopping, Sweep, variant_of
from tuneplane.record.digest import digest_json
from tuneplane.record.events import read_all
from tuneplane.training.refusals import Refused
from tuneplane.training.rungs import Rungs

STOPPING = Stopping("loss", "min", (10, 30), 3)
VALUES = st.floats(allow_nan=True, allow_infinity=True) | st.integers(-5, 5).map(float)


def run_at(root: Path, sweep: Sweep) -> RunPaths:
    run = RunPaths(root / "runs" / "alice" / "exp" / "run-00aa")
    (run.work / ".tuneplane").mkdir(parents=True)
    run.variants.write_text(json.dumps(sweep.as_json()))
    return run


def element(run: RunPaths, index: int, attempt: int = 0) -> Rungs:
    part = run.element(index)
    out = part.attempt(attempt).out
    for folder in (out, part.events):
        folder.mkdir(parents=True, exist_ok=True)
    found = Rungs.from_env(
        {
            "TUNEPLANE_ARRAY_INDEX": str(index), "TUNEPLANE_WORK_DIR": str(run.work), "TUNEPLANE_RUN_DIR": str(part.root),
            "TUNEPLANE_RUN_ID": run.run_id, "TUNEPLANE_ATTEMPT": str(attempt), "TUNEPLANE_OUT_DIR": str(out),
        }
    )  # fmt: skip
    assert found is not None
    return found


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    return run_at(tmp_path, Sweep(tuple({"lr": n} for n in range(6)), STOPPING))


def test_the_first_goes_on_and_a_worse_second_does_not(run: RunPaths) -> None:
    assert [element(run, i).stops(10, {"loss": loss}) for i, loss in enumerate([2.0, 3.0, 1.0, 1.5, 0.5])] == [
        False, True, False, False, False,
    ]  # fmt: skip


def test_more_is_better_where_the_sweep_says_so(tmp_path: Path) -> None:
    run = run_at(tmp_path, Sweep(({"a": 1}, {"a": 2}), Stopping("reward", "max", (1,), 2)))
    assert [element(run, i).stops(1, {"reward": r}) for i, r in enumerate([1.0, 0.5])] == [False, True]


def test_a_value_that_is_no_number_is_the_worst_and_breaks_nobody(run: RunPaths) -> None:
    assert not element(run, 0).stops(10, {"loss": 9.0})
    assert element(run, 1).stops(10, {"loss": math.nan})
    assert not element(run, 2).stops(10, {"loss": 8.0})
    assert json.loads((run.element(1).rungs / "10.json").read_text())["value"] is None


def test_a_decision_is_made_once_and_stands_for_the_next_attempt(run: RunPaths) -> None:
    element(run, 0).stops(10, {"loss": 1.0})
    assert element(run, 1).stops(10, {"loss": 2.0})
    before = (run.element(1).rungs / "10.json").read_bytes()
    again = element(run, 1, attempt=1)
    assert again.stopped_before() == 10
    assert again.stops(10, {"loss": 0.1})
    assert (run.element(1).rungs / "10.json").read_bytes() == before
    assert element(run, 0, attempt=1).stopped_before() is None


def test_the_event_holds_the_decision_and_the_digest_of_what_was_written(run: RunPaths) -> None:
    element(run, 0).stops(10, {"loss": 1.0})
    element(run, 1).stops(10, {"loss": 2.0})
    record = json.loads((run.element(1).rungs / "10.json").read_text())
    (chain,) = read_all(run.element(1).events)
    (event,) = chain.events
    assert (chain.writer, chain.status, event["message"]) == (
        "rungs-0",
        "verified",
        "rung 10: loss 2, place 2 of 2, 1 go on",
    )
    assert event["details"]["rung_sha256"] == digest_json(record)
    assert (record["others"], record["others_sha256"]) == ("0", digest_json({"0": 1.0}))


def test_what_a_torn_file_says_is_not_there_yet(run: RunPaths) -> None:
    element(run, 0).stops(10, {"loss": 1.0})
    (run.element(0).rungs / "10.json").write_text('{"value": 1.')
    assert not element(run, 1).stops(10, {"loss": 2.0})


def test_an_element_that_stops_says_so_in_its_result(run: RunPaths) -> None:
    element(run, 0).stops(10, {"loss": 1.0})
    weak = element(run, 1)
    weak.stops(10, {"loss": 2.0})
    weak.leave_result(10)
    result = json.loads((weak.out / "result.json").read_text())
    assert (result["stopped_at_rung"], result["metric"], result["value"]) == (10, "loss", 2.0)


def test_a_metric_that_is_not_there_is_refused_with_those_that_are(run: RunPaths) -> None:
    with pytest.raises(Refused) as caught:
        element(run, 0).stops(10, {"reward": 1.0, "step": 10, "time": "now"})
    (reason,) = caught.value.reasons
    assert (reason.code, reason.found, reason.allowed) == ("E-TRAIN-080", "loss", "reward, step")


def test_outside_of_a_sweep_there_are_no_rungs_and_no_variant(tmp_path: Path, run: RunPaths) -> None:
    assert Rungs.from_env({}) is None
    assert variant_of(tmp_path, {"TUNEPLANE_ARRAY_INDEX": "3"}) == {}
    assert variant_of(run.work, {"TUNEPLANE_ARRAY_INDEX": "3"}) == {"lr": 3}


@pytest.mark.parametrize("index", ["", "6", "-1", "x", "²"])
def test_an_index_without_a_variant_is_refused(run: RunPaths, index: str) -> None:
    with pytest.raises(ValueError, match="of a sweep of 6 variants"):
        variant_of(run.work, {"TUNEPLANE_ARRAY_INDEX": index})


@given(VALUES, st.lists(VALUES, max_size=30), st.integers(2, 5), st.sampled_from(["min", "max"]))
def test_the_rule_is_of_values_alone(value: float, others: list[float], keep: int, mode: str) -> None:
    stopping = Stopping("x", mode, (1,), keep)
    found = stopping.judge(value, others)
    assert found == stopping.judge(value, list(reversed(others)))
    assert 1 <= found.place <= found.seen == len(others) + 1
    assert found.places == math.ceil(found.seen / keep)
    best = all(not stopping.beats(other, value) for other in others)
    assert found.goes_on or not best
