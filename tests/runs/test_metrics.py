"""What every reader of metrics.jsonl sees: one row a step, of the steps that the run's model has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tuneplane.contract.layout import RunPaths

from hpc.errors import Refusal
from hpc.runs.chart import chart
from hpc.runs.dossier import curves
from hpc.runs.metrics import is_number, newest, read_metrics, series
from hpc.runs.progress import newest_metrics


def put(run: RunPaths, number: int, rows: list[dict[str, Any]], rest: str = "") -> None:
    out = run.attempt(number).out
    out.mkdir(parents=True)
    (out / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + rest)


def trained(first: int, last: int, *, every: int = 0, loss: float = 5.0) -> list[dict[str, Any]]:
    """The lines of an attempt: one a step, and one more after each validated step."""
    rows: list[dict[str, Any]] = []
    for step in range(first, last + 1):
        rows.append({"step": step, "total_steps": 9, "loss": loss - step / 10, "tokens": 100, "time": "a"})
        if every and step % every == 0:
            rows.append({"step": step, "total_steps": 9, "validation_loss": 9.0 - step, "time": "b"})
    return rows


def test_a_later_attempt_replaces_the_steps_of_an_earlier_one(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    for number, rows in ((0, [(1, 9.0), (2, 8.0), (3, 7.0)]), (1, [(3, 7.5), (4, 6.0)])):
        run.attempt(number).out.mkdir(parents=True)
        lines = [json.dumps({"step": s, "loss": v}) for s, v in rows]
        (run.attempt(number).out / "metrics.jsonl").write_text("\n".join(lines) + '\n{"step": 5, "lo')
    rows = read_metrics(run)
    assert series(rows, "loss") == [(1.0, 9.0), (2.0, 8.0), (3.0, 7.5), (4.0, 6.0)]
    assert [r["attempt"] for r in rows] == [0, 0, 1, 1]
    with pytest.raises(Refusal) as caught:
        series(rows, "los")
    assert (caught.value.code, caught.value.allowed) == ("E-RUNS-040", "loss")


@pytest.mark.parametrize("every", [1, 2])
def test_a_validated_step_has_its_loss_and_what_the_validation_said(tmp_path: Path, every: int) -> None:
    run = RunPaths(tmp_path)
    put(run, 0, trained(1, 4, every=every))
    rows = read_metrics(run)
    assert series(rows, "loss") == [(1.0, 4.9), (2.0, 4.8), (3.0, 4.7), (4.0, 4.6)]
    assert series(rows, "validation_loss")[-1] == (4.0, 5.0)
    assert rows[3] == {
        "step": 4, "total_steps": 9, "loss": 4.6, "tokens": 100, "validation_loss": 5.0, "time": "b", "attempt": 0,
    }  # fmt: skip
    assert [len(points) for points in curves(run).values()] == [4, 4 // every]


def test_steps_that_a_later_attempt_went_back_over_are_of_no_model(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    put(run, 0, trained(1, 100, every=10, loss=50.0))
    put(run, 1, trained(81, 90, loss=40.0))
    rows = read_metrics(run)
    assert [(r["step"], r["attempt"]) for r in rows] == [(s, int(s > 80)) for s in range(1, 91)]
    assert series(rows, "validation_loss")[-1][0] == 80.0
    assert series(rows, "loss")[-2:] == [(89.0, 31.1), (90.0, 31.0)]


def made_up(step: int, loss: float | None) -> dict[str, Any]:
    return {"step": step, "total_steps": 9, "validation_loss": loss, "time": "c"}


def test_a_validation_that_a_later_attempt_made_up_leaves_the_step_its_loss(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    put(run, 0, trained(1, 2))
    put(run, 1, [made_up(2, 7.0), *trained(3, 4)])
    rows = read_metrics(run)
    assert series(rows, "loss") == [(1.0, 4.9), (2.0, 4.8), (3.0, 4.7), (4.0, 4.6)]
    assert series(rows, "validation_loss") == [(2.0, 7.0)]
    assert [(r["attempt"], r["time"]) for r in rows] == [(0, "a"), (0, "a"), (1, "a"), (1, "a")]


def test_a_made_up_validation_takes_back_the_steps_beyond_it_and_stands_where_its_step_is_lost(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    put(run, 0, trained(1, 4))
    put(run, 1, [made_up(2, None)])
    assert [(r["step"], r["loss"]) for r in read_metrics(run)] == [(1, 4.9), (2, 4.8)]
    put(run, 2, [made_up(5, 3.0), *trained(6, 6)])
    assert [(r["step"], r["attempt"], "loss" in r) for r in read_metrics(run)] == [
        (1, 0, True), (2, 0, True), (5, 2, False), (6, 2, True),
    ]  # fmt: skip


def test_an_attempt_that_came_to_no_step_takes_nothing_back(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    put(run, 0, trained(1, 5))
    put(run, 1, [], '{"step": 1, "lo')
    assert [r["step"] for r in read_metrics(run)] == [1, 2, 3, 4, 5]


def test_how_far_a_run_is_says_the_loss_of_a_step_that_was_validated(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    put(run, 0, trained(1, 4, every=2), '{"step": 5')
    assert newest_metrics(run, 0) == {
        "step": 4, "total_steps": 9, "loss": 4.6, "tokens": 100, "validation_loss": 5.0, "time": "b",
    }  # fmt: skip


def test_numbers_whose_difference_is_no_number_are_left_out_of_a_chart(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    put(
        run,
        0,
        [
            {"step": 1, "loss": 1.7e308},
            {"step": 2, "loss": 2.0},
            {"step": 3, "loss": -1.7e308},
            {"step": 4, "loss": 1e300},
        ],
    )
    points = series(read_metrics(run), "loss")
    assert points == [(2.0, 2.0), (4.0, 1e300)]
    assert "1e+300" in chart(points, title="t")
    assert [is_number(v) for v in (-1e300, 10**400, float("nan"), float("-inf"), "1")] == [
        True,
        False,
        False,
        False,
        False,
    ]


def test_a_value_that_was_no_number_has_no_point_and_is_the_newest_all_the_same(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    put(run, 0, [*trained(1, 4, every=2), {"step": 4, "validation_loss": None, "validation_accuracy": None}])
    rows = read_metrics(run)
    assert (len(rows), rows[-1]["validation_loss"]) == (4, None)
    assert series(rows, "validation_loss") == [(2.0, 7.0)]
    assert (newest(rows, "validation_loss"), newest(rows, "loss"), newest(rows, "lr")) == (None, 4.6, None)
    assert list(curves(run)) == ["loss", "validation_loss"]
    told = newest_metrics(run, 0)
    assert told is not None
    assert told["validation_loss"] is None
    with pytest.raises(Refusal) as caught:
        series(rows, "validation_accuracy")
    assert "validation_accuracy" not in caught.value.allowed
