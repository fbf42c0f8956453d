"""The terminal chart: its extremes and its shape."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

from tuneplane.contract.layout import RunPaths

from hpc.cli.runview import run_text
from hpc.runs.chart import chart, running_mean, write_png
from hpc.runs.state import RunState


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


def test_the_steps_at_which_an_attempt_went_on_are_ticks_of_the_axis() -> None:
    axis = chart([(0, 1.0), (10, 0.0)], title="t", width=11, height=2, marks=[5, 99]).split("\n")[-2]
    assert axis == "  └─────┬─────"


def test_a_running_mean_does_not_lag_behind() -> None:
    assert running_mean([1, 5, 3, 7, 9], 1) == [1, 3, 5, 19 / 3, 9]
    assert running_mean([float(x) for x in range(9)], 3) == [float(x) for x in range(9)]
    assert running_mean([4], 3) == [4]


def test_the_picture_has_a_panel_a_metric(tmp_path: Path) -> None:
    many = [(float(s), 1 / (s + 1)) for s in range(200)]
    write_png({"loss": many, "lr": [(0, 1.0), (1, 0.5)]}, tmp_path / "two.png", title="t", marks=[100])
    write_png({"loss": [(0, 1.0)]}, tmp_path / "one.png", title="t")
    heads = [(tmp_path / name).read_bytes()[:24] for name in ("two.png", "one.png")]
    assert [head[:8] for head in heads] == [b"\x89PNG\r\n\x1a\n"] * 2
    assert [struct.unpack(">II", head[16:]) for head in heads] == [(1000, 640), (1000, 380)]


def test_the_command_draws_what_the_run_has_or_what_is_asked(make_run: Any) -> None:
    maker = make_run().package().admit().submit().start()
    out = maker.run.attempt(0).out / "metrics.jsonl"
    out.write_text(
        "".join(
            json.dumps({"step": s, "loss": 5.0 - s, "lr": 0.1, "grad_norm": s, "validation_loss": None}) + "\n"
            for s in range(1, 4)
        )
    )
    tp = Path(sys.executable).parent / "tp"

    def plot(*words: str) -> str:
        env = {"PATH": os.environ["PATH"], "TUNEPLANE_STORAGE_ROOT": str(maker.root.path), "LC_ALL": "C.UTF-8"}
        env["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
        return subprocess.run([tp, "job", "plot", *words], env=env, capture_output=True, text=True, check=True).stdout

    maker.root.site_file.parent.mkdir(parents=True, exist_ok=True)
    maker.root.site_file.write_text("schema: tuneplane-hpc/site/v1\nname: lab\n")
    shown = plot(maker.run_id, "--owner", maker.owner)
    assert f"{maker.run_id}  loss: 4 at step 1, 2 at step 3" in shown
    assert "\n\nlr: 0.1 at step 1" in shown
    assert "tokens_per_s" not in shown
    assert "validation_loss" not in shown  # it was never a number
    value = json.loads(plot(maker.run_id, "--owner", maker.owner, "--metric", "grad_norm", "--json"))
    assert (value["metrics"], value["attempts_begin_at"]) == ({"grad_norm": [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]}, [])


def test_a_run_s_paragraph_has_speed_and_share_of_the_peak_where_they_are_known() -> None:
    state = RunState("running", "squeue", "", job_id="7", kind="slurm")
    run = RunPaths(Path("/r/runs/alice/sft/run-0001"))

    def progress(**more: float) -> str:
        metrics = {"step": 3, "total_steps": 9, "loss": 1.25, **more}
        lines = run_text(run, state, 0.0, age_s=None, metrics=metrics).split("\n")
        return next(line.split(maxsplit=1)[1] for line in lines if line.startswith("  progress"))

    assert progress() == "step 3 of 9, loss 1.25"
    assert progress(tokens_per_s=5120.0, mfu=0.4123) == "step 3 of 9, loss 1.25, tokens/s 5120, mfu 41.2 %"
