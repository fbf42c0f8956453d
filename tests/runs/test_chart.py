"""The terminal chart: its extremes and its shape."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tuneplane.contract.layout import RunPaths

from hpc.errors import Refusal
from hpc.runs.chart import chart, write_png
from hpc.runs.metrics import read_metrics, series


def test_a_falling_line_falls_from_the_top_left_to_the_bottom_right() -> None:
    title, *body, axis, ends = chart([(0, 4.0), (10, 0.0)], title="t", width=4, height=3).split("\n")
    assert (title, axis, ends) == ("t", "  └────", "   0 10")
    rows = [line.split("┤")[1] for line in body]
    assert [line.split("┤")[0] for line in body] == ["4 ", "  ", "0 "]
    filled = [[i for i, c in enumerate(row) if c != "\u2800"] for row in rows]
    assert (filled[0][0], filled[-1][-1]) == (0, 3)
    assert [min(f) for f in filled] == sorted(min(f) for f in filled)


def test_one_point_and_a_flat_line_are_drawn() -> None:
    assert "5 ┤" in chart([(1, 5.0)], title="t")
    flat = chart([(0, 1.0), (5, 1.0)], title="t", width=3, height=2)
    assert flat.count("⠉") + flat.count("⣀") == 3


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


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    write_png([(0, 1.0), (1, 0.5)], tmp_path / "x.png", title="t", name="loss")
    assert (tmp_path / "x.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
