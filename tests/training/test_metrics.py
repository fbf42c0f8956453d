from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from tuneplane.training.metrics import Reporter, clock_text, progress_line, thousands
from tuneplane.training.writing import Saved


def test_the_progress_line_is_as_documented() -> None:
    assert progress_line(12, 80, 1.2341, 1e-4, 1234.4, 70) == (
        "step 12/80  loss 1.234  lr 1.0e-04  1 234 tokens/s  eta 0:01:10"
    )


def test_times_and_numbers_for_people() -> None:
    assert [clock_text(s) for s in (0, 59.6, 3600, 360_000)] == ["0:00:00", "0:01:00", "1:00:00", "100:00:00"]
    assert [thousands(n) for n in (7, 1234, 1234567)] == ["7", "1 234", "1 234 567"]


def test_every_step_is_a_line_of_json_and_only_some_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reporter = Reporter(tmp_path / "out", True, log_steps=4, total_steps=9)
    for step in range(1, 10):
        reporter.step(step, 2.0, 1e-3, 0.5, 64, {"accuracy": 0.25})
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 10))
    assert set(lines[0]) == {
        "step", "total_steps", "loss", "lr", "grad_norm", "tokens", "tokens_per_s", "elapsed_s", "time", "accuracy",
    }  # fmt: skip
    assert (lines[0]["tokens"], lines[0]["accuracy"], lines[0]["time"][-1]) == (64, 0.25, "Z")
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ["1/9", "4/9", "8/9", "9/9"]


def test_saves_and_validation_have_their_own_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Reporter(tmp_path, True, 1, 9)
    reporter.saved(Saved(4, 1.5, 1.45, 2_000_000, "warning"))
    reporter.saved(Saved(6, 1.5, 0.04, 2_000_000, "every save_steps"))
    reporter.validation(4, {"loss": 1.25, "accuracy": 0.5})
    saves = [json.loads(line) for line in (tmp_path / "saves.jsonl").read_text().splitlines()]
    assert [{k: v for k, v in save.items() if k != "time"} for save in saves] == [
        {"step": 4, "seconds": 1.5, "blocked_s": 1.45, "bytes": 2_000_000, "reason": "warning"},
        {"step": 6, "seconds": 1.5, "blocked_s": 0.04, "bytes": 2_000_000, "reason": "every save_steps"},
    ]
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["validation_accuracy"] == 0.5
    assert capsys.readouterr().out == (
        "step 4/9  saved (warning), 2.0 MB in 1.50 s\n"
        "step 6/9  saved (every save_steps), 2.0 MB in 1.50 s (training stood still for 0.04 s)\n"
        "step 4/9  validation loss 1.250  accuracy 0.500\n"
    )


def test_other_ranks_write_and_say_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Reporter(tmp_path / "out", False, 1, 9)
    reporter.step(1, 2.0, 1e-3, 0.5, 64, {})
    reporter.saved(Saved(1, 1.0, 1.0, 1, "warning"))
    reporter.result({})
    reporter.say("x")
    assert not (tmp_path / "out").exists()
    assert capsys.readouterr().out == ""


def test_what_is_no_number_is_null_in_the_files_and_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reporter = Reporter(tmp_path, True, 100, 9)
    reporter.step(2, 2.0, 1e-3, 0.5, 64, {"reward_margin": math.inf})
    reporter.step(3, 2.0, 1e-3, 0.5, 64, {"reward_margin": -math.inf})
    reporter.validation(3, {"loss": math.nan})
    reporter.result({"final_loss": 2.0, "validation_loss": math.nan})
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line.get("reward_margin", "absent") for line in lines] == [None, None, "absent"]
    assert (lines[0]["loss"], lines[2]["validation_loss"]) == (2.0, None)
    assert json.loads((tmp_path / "result.json").read_text()) == {"final_loss": 2.0, "validation_loss": None}
    assert (reporter.newest["reward_margin"], math.isnan(reporter.newest["validation_loss"])) == (-math.inf, True)
    assert capsys.readouterr().out == (
        "reward_margin is no number at step 2 (inf): metrics.jsonl and result.json have null there\n"
        "validation_loss is no number at step 3 (nan): metrics.jsonl and result.json have null there\n"
        "step 3/9  validation loss nan\n"
    )
