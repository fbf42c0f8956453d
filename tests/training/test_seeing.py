"""What can be seen of a run: the share of the peak, TensorBoard's files over attempts, the memory that it took."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ranks import Run
from tuneplane.training.board import Board
from tuneplane.training.memory import resident
from tuneplane.training.metrics import Reporter, progress_line
from tuneplane.training.report import end, peak
from tuneplane.training.speed import PEAK_FLOPS, Speed, multiplied, speed_of
from tuneplane.training.writing import Saved

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))


def points(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Every scalar of a run as TensorBoard reads it."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def speed(device: str = "NVIDIA H200", **changes: Any) -> Speed:
    values = {"trained": 10**9, "frozen": 0, "ranks": 8, "peak": PEAK_FLOPS.get(device, {}).get("bf16", 0.0)}
    return Speed(**(values | changes), device=device, precision="bf16")  # type: ignore[arg-type]


def test_a_trained_weight_costs_six_operations_a_token_and_a_frozen_one_four() -> None:
    assert (speed().flops_per_token, speed(trained=10**6, frozen=10**9).flops_per_token) == (6e9, 4.006e9)
    assert speed().mfu(791_520) == pytest.approx(0.6)
    assert speed().formula() == (
        "mfu = tokens/s x (6 x 1000.0 M trained + 4 x 0.0 M frozen weights) / (8 x 989 TFLOP/s, NVIDIA H200, bf16)"
    )


def test_only_what_is_multiplied_counts() -> None:
    shapes = {
        "embed.weight": (512, 128),
        "q.weight": (128, 128),
        "q.bias": (128,),
        "norm.weight": (128,),
        "lm_head.weight": (512, 128),
    }
    assert multiplied(shapes, {"embed.weight"}) == 128 * 128 + 512 * 128


@pytest.mark.parametrize(("own", "words"), [(100, "100 steps in 0:01:05"), (20, "20 of 100 steps in 0:01:05")])
def test_the_last_line_says_how_many_of_the_steps_its_seconds_were_for(own: int, words: str) -> None:
    made = {"path": "final", "kind": "adapter", "tensors": 2, "parameters": 8}
    value = {
        "final_loss": 1.0,
        "validation_loss": None,
        "steps": 100,
        "seconds": 65.0,
        "first_batch_s": 3,
        "artefact": made,
    }
    assert f", {words}, first batch" in end({**value, "attempt": {"steps": own, "tokens": 0}})


@pytest.mark.parametrize("device", ["cpu", "NVIDIA H200 MIG 1g.18gb", "NVIDIA GeForce RTX 9999"])
def test_a_device_without_a_known_peak_has_no_mfu_rather_than_a_wrong_one(device: str) -> None:
    unknown = speed(device)
    assert unknown.mfu(1e6) is None
    assert unknown.formula() == f"no mfu: no peak speed is known of {device} in bf16"
    assert "mfu" not in progress_line(1, 2, 1.0, 1e-3, 10.0, 1.0, unknown.mfu(10.0))


@pytest.mark.parametrize("why", ["experts", "four bits"])
def test_weights_that_cannot_be_counted_give_no_mfu(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = SimpleNamespace(
        peers=SimpleNamespace(device=SimpleNamespace(type="cpu"), place=SimpleNamespace(world_size=2)), precision="bf16",
        settings=SimpleNamespace(load_in_4bit=why == "four bits"), lookups=set,
        model=SimpleNamespace(config=SimpleNamespace(num_local_experts=8 if why == "experts" else None)),
        shapes=lambda trainable: {"w": (2, 3)} if trainable else {"w": (2, 3), "f": (4, 5), "b": (7,)},
    )  # fmt: skip
    monkeypatch.setitem(PEAK_FLOPS, "cpu", {"bf16": 1e12})
    found = speed_of(engine)
    assert (found.trained, found.frozen, found.mfu(1.0)) == (6, 20, None)
    engine.settings.load_in_4bit, engine.model.config.num_local_experts = False, None
    assert speed_of(engine).mfu(1e12) == pytest.approx((6 * 6 + 4 * 20) / 2)


def test_the_progress_line_and_the_metrics_have_the_share(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Reporter(tmp_path, True, log_steps=1, total_steps=1)
    reporter.begin(speed(peak=1.0, ranks=1, trained=1))
    reporter.step(1, 2.0, 1e-3, 0.5, 64, {})
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("mfu = tokens/s x (6 x")
    assert " tokens/s  mfu " in said[1]
    assert '"mfu":' in (tmp_path / "metrics.jsonl").read_text()


def test_p36_an_attempt_that_goes_on_shows_no_step_twice(tmp_path: Path) -> None:
    board = tmp_path / "run-4f2a91c0" / "tensorboard"
    first = Reporter(tmp_path / "0", True, log_steps=1, total_steps=8)
    first.begin(board=Board(board, 0))
    for step in range(1, 7):  # the checkpoint is of step 4: 5 and 6 are done again
        first.step(step, 10.0 - step, 1e-3, 0.5, 64, {"accuracy": 0.5})
    first.saved(Saved(4, 1.0, 1.0, 1000, "warning"))
    second = Reporter(tmp_path / "1", True, log_steps=1, total_steps=8)
    second.begin(board=Board(board, 4))
    for step in range(5, 9):
        second.step(step, 20.0 - step, 1e-3, 0.5, 64, {"accuracy": 0.5})
    second.validation(8, {"loss": 1.0})
    seen = points(board)
    assert seen["train/loss"] == [(s, 10.0 - s) for s in range(1, 5)] + [(s, 20.0 - s) for s in range(5, 9)]
    assert seen["validation/loss"] == [(8, 1.0)]
    assert {"train/lr", "train/grad_norm", "train/accuracy", "train/tokens_per_s", "saves/seconds"} < seen.keys()


def test_without_tensorboard_it_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    reporter = Reporter(tmp_path, True, log_steps=1, total_steps=2)
    reporter.begin(board=Board(tmp_path / "tensorboard", 0))
    reporter.step(1, 2.0, 1e-3, 0.5, 64, {})
    reporter.step(2, 2.0, 1e-3, 0.5, 64, {})
    said = capsys.readouterr().out
    assert said.count("no TensorBoard files: the package tensorboard is not installed in this image") == 1
    assert not (tmp_path / "tensorboard").exists()


def test_event_files_that_cannot_be_written_do_not_end_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tensorboard").write_text("a file where the folder should be")
    reporter = Reporter(tmp_path / "out", True, log_steps=1, total_steps=1)
    reporter.begin(board=Board(tmp_path / "tensorboard", 0))
    reporter.step(1, 2.0, 1e-3, 0.5, 64, {})
    assert "no TensorBoard files: " in capsys.readouterr().out


def test_the_process_knows_its_peak(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n")
    assert resident(str(status)) == (1 << 20, 2 << 20)
    held, most = resident()
    assert 1 << 20 < held <= most


def test_the_peak_of_a_run_is_the_worst_rank_s() -> None:
    ranks = [{"rss_before": 10, "rss_peak": 30}, {"rss_before": 12, "rss_peak": 20, "gpu_allocated": 5}]
    assert peak(ranks) == {"gpu_allocated": 5, "rss_before": 12, "rss_peak": 30}


@pytest.mark.train
@pytest.mark.parametrize("rank", [0, 4], ids=["full", "lora"])
def test_a_model_trains_in_training_mode_from_its_first_step(
    tmp_path: Path, tiny: Path, sums: Path, warm: Any, rank: int
) -> None:
    """In the mode in which models are loaded no activation is recomputed, whatever gradient_checkpointing says."""
    run = Run(tmp_path / "run", tiny, sums, lora_rank=rank, gradient_checkpointing=True, max_steps=1, max_length=64)
    run.warm = warm
    run.before_the_loop("assert all(m.training for m in deepspeed.model.modules())")
    attempt = run.complete()
    memory = attempt.result()["memory"]
    assert 1 << 20 < memory["rss_before"] < memory["rss_peak"]
    assert {step for step, _ in points(run.root / "tensorboard")["train/loss"]} == {1}


@pytest.mark.train
def test_p51_the_forecast_of_tp_plan_is_near_what_a_run_takes(tmp_path: Path, warm: Any) -> None:
    from memory_forecast import CASES, measure
    from tuneplane.training.tiny import build

    build(tmp_path / "model", layers=6, hidden=512)
    case = CASES["zero2-full-fp32"] | {"max_steps": 2}
    peak, before, found, terms = measure(tmp_path / "case", tmp_path / "model", case, words=80, warm=warm)
    assert found - terms["process"] == pytest.approx(peak - before, rel=0.4)
