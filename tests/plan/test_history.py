"""Time and GPU-hours come from earlier runs of the same kind, with a band, or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tuneplane.contract.layout import RunPaths, StorageRoot

from hpc.plan.history import Band, Past, similar, walltime

LAUNCH: dict[str, Any] = {
    "shape": {"pools": [{"nodes": 2, "ranks_per_node": 1, "gpus_per_node": 0}]},
    "hyperparams": {
        "lora_rank": 8,
        "zero_stage": 2,
        "precision": "fp32",
        "gradient_checkpointing": False,
        "max_length": 64,
    },
    "inputs": {"model": {"path": "/m", "files": [{"path": "w", "sha256": "sha256:aa"}]}},
}
Make = Callable[..., None]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A finished run of `LAUNCH` with some steps at a speed."""

    def run(
        number: int, speed: float = 100.0, *, recipe: str = "deepspeed/sft", launch: Any = None, status: str = "done"
    ) -> None:
        paths = StorageRoot(tmp_path).run("alice", "exp", f"run-{number:04x}")
        attempt = paths.attempt(0)
        for folder in (attempt.out, paths.jobspec.parent, paths.root / "cache" / "tokens" / "k"):
            folder.mkdir(parents=True)
        paths.launch.write_text(json.dumps(launch or LAUNCH))
        paths.jobspec.write_text(json.dumps({"spec": {"recipe": {"name": recipe}}}))
        steps = [
            {"step": s, "tokens": 200, "tokens_per_s": speed * (0.5 if s == 1 else 1 + s / 100)} for s in range(1, 11)
        ]
        (attempt.out / "metrics.jsonl").write_text("".join(json.dumps(s) + "\n" for s in steps))
        attempt.start.write_text(json.dumps({"started_at": "2026-03-01T12:00:00.000000Z"}))
        attempt.end.write_text(json.dumps({"ended_at": "2026-03-01T12:02:00.000000Z"}))
        paths.report.write_text(json.dumps({"status": status, "result": {"memory": {"rss_peak": 5}}}))

    return run


def test_only_finished_runs_of_the_same_recipe_model_shape_and_settings_count(make: Make, tmp_path: Path) -> None:
    make(1)
    make(2, recipe="deepspeed/dpo")
    make(3, status="failed")
    make(4, launch={**LAUNCH, "hyperparams": {**LAUNCH["hyperparams"], "zero_stage": 3}})
    make(5, launch={**LAUNCH, "inputs": {"model": {"path": "/m", "files": [{"path": "w", "sha256": "sha256:bb"}]}}})
    make(6, launch={**LAUNCH, "shape": {"pools": [{"nodes": 4, "ranks_per_node": 1, "gpus_per_node": 0}]}})
    make(7, launch={"no": "launch"})
    make(8, launch={**LAUNCH, "hyperparams": {**LAUNCH["hyperparams"], "lora_rank": 16}})
    make(9, launch={**LAUNCH, "hyperparams": {**LAUNCH["hyperparams"], "packing": True}})
    found = similar(StorageRoot(tmp_path), LAUNCH, "deepspeed/sft")
    assert sorted(p.run_id for p in found) == ["run-0001", "run-0008"]
    (first,) = [p for p in found if p.run_id == "run-0001"]
    assert (first.memory, first.owner, [c.name for c in first.caches]) == ({"rss_peak": 5}, "alice", ["k"])
    assert first.tokens_per_s == pytest.approx(106)  # the first step, which loads and compiles, is left out
    stepping = 200 / 50 + sum(200 / (100 + s) for s in range(2, 11))
    assert first.beside_s == pytest.approx(120 - stepping)


def test_of_many_such_runs_the_newest_twenty_are_read(make: Make, tmp_path: Path) -> None:
    for number in range(1, 24):
        make(number)
    assert len(similar(StorageRoot(tmp_path), LAUNCH, "deepspeed/sft")) == 20
    assert len(similar(StorageRoot(tmp_path), LAUNCH, "deepspeed/sft", most=5)) == 5


def attempt(run: RunPaths, number: int, start: str, end: str, steps: list[dict[str, Any]], **more: Any) -> None:
    paths = run.attempt(number)
    paths.out.mkdir(parents=True, exist_ok=True)
    (paths.out / "metrics.jsonl").write_text("".join(json.dumps(s) + "\n" for s in steps))
    paths.start.write_text(json.dumps({"started_at": f"2026-03-0{start}.000000Z"}))
    paths.end.write_text(json.dumps({"ended_at": f"2026-03-0{end}.000000Z", **more}))


def test_the_wait_for_a_node_after_one_died_is_no_time_that_the_run_took(make: Make, tmp_path: Path) -> None:
    """The end of an attempt that died with its node is written when the next one begins, here 33 hours later."""
    make(1)
    run = StorageRoot(tmp_path).run("alice", "exp", "run-0001")
    speed = {"tokens": 100, "tokens_per_s": 10.0}
    died = [{"step": s, "time": f"2026-03-01T01:00:{s * 10}.000000Z", **speed} for s in (1, 2, 3)]
    attempt(run, 0, "1T00:59:30", "2T10:00:00", died, job_id=None)
    attempt(run, 1, "2T10:00:00", "2T10:01:00", [{"step": s, **speed} for s in (2, 3, 4)], job_id="7")
    (found,) = similar(StorageRoot(tmp_path), LAUNCH, "deepspeed/sft")
    assert found.beside_s == pytest.approx((60 - 30) + (60 - 30))  # steps that were done twice are no time beside them
    attempt(run, 0, "1T00:59:30", "2T10:00:00", [], job_id=None)
    (found,) = similar(StorageRoot(tmp_path), LAUNCH, "deepspeed/sft")
    assert found.beside_s == pytest.approx(30)


def test_a_run_of_which_no_attempt_says_when_it_began_tells_nothing(make: Make, tmp_path: Path) -> None:
    make(1)
    StorageRoot(tmp_path).run("alice", "exp", "run-0001").attempt(0).start.unlink()
    assert similar(StorageRoot(tmp_path), LAUNCH, "deepspeed/sft") == []


def test_a_step_that_was_validated_counts_with_its_speed(make: Make, tmp_path: Path) -> None:
    make(1)
    out = StorageRoot(tmp_path).run("alice", "exp", "run-0001").attempt(0).out / "metrics.jsonl"
    lines = out.read_text().splitlines(keepends=True)
    out.write_text(
        "".join(f"{line}{json.dumps({'step': s, 'validation_loss': 1.0})}\n" for s, line in enumerate(lines, 1))
    )
    (found,) = similar(StorageRoot(tmp_path), LAUNCH, "deepspeed/sft")
    assert found.tokens_per_s == pytest.approx(106)


def past(speed: float, beside: float = 10.0) -> Past:
    return Past("r", "a", speed, speed * 0.8, speed * 1.25, beside, {}, {}, ())


def test_p26_a_forecast_of_time_is_a_band() -> None:
    assert walltime([past(100), past(50), past(200)], 10_000) == Band(60, 110, 210, 3)


def test_a_single_earlier_run_gives_the_spread_of_its_steps() -> None:
    assert walltime([past(100)], 10_000) == Band(90, 110, 135, 1)


def test_without_an_earlier_run_there_is_no_number() -> None:
    assert walltime([], 10_000) is None
