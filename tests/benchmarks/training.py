"""Steps of deepspeed/sft against peers, two ranks on a thread each, in turn in one process. `python tests/benchmarks/training.py` runs them."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

from report import Figure, text
from scene import REPO, scratch
from timing import Samples

sys.path.insert(0, str(REPO / "tests/training"))

ROUNDS = 16
WORDS = ["the", "answer", "follows", "the", "question", "and", "the", "loss", "covers", "the", "answer", "only"]
LORA = {"lora_rank": 8, "zero_stage": 2}


def _rows(path: Path, lengths: list[int]) -> Path:
    """Rows of `prompt` and `completion`, half of the words each; `lengths` in words."""
    dice = random.Random(1)
    lines = []
    for count in lengths:
        words = dice.choices(WORDS, k=max(4, count))
        half = len(words) // 2
        lines.append({"prompt": " ".join(words[:half]), "completion": " " + " ".join(words[half:])})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def _measured(folder: Path, name: str, peer: str, rows: Path, **hyperparams: Any) -> dict[str, Any]:
    """pairs.json of one run of two ranks."""
    from ranks import Run

    class Bench(Run):
        def environment(self, rank: int, world: int, port: int) -> dict[str, str]:
            more = {"BENCH_PEER": peer, "BENCH_ROUNDS": str(ROUNDS), "OMP_NUM_THREADS": "1"}
            return super().environment(rank, world, port) | more

    shared = {"max_length": 256, "micro_batch_size": 8, "learning_rate": 1e-4, "max_steps": 1000, "log_steps": 1000}
    run = Bench(folder / name, folder / "model", rows, "sft", **(shared | hyperparams))
    run.entry = Path(__file__).with_name("training_pairs.py")
    attempt = run.complete(timeout_s=900)
    value: dict[str, Any] = json.loads((attempt.out / "pairs.json").read_text())
    return value


def _figure(name: str, value: dict[str, Any], peer: str, limit: float) -> Figure:
    """Our speed over the peer's, pair by pair; both did the same tokens in each."""
    ours, theirs = (Samples(tuple(column)) for column in zip(*value["pairs"], strict=True))
    speed = Samples(tuple(t / ms * 1000 for t, (ms, _) in zip(value["tokens"], value["pairs"], strict=True)))
    return _compared(name, speed, theirs.over(ours), f"{peer}: {theirs.text('ms')} a step", limit)


def _compared(name: str, speed: Samples, ratios: Samples, peer: str, limit: float) -> Figure:
    words = f"≥ {limit:g} x" if limit else ""
    missed = bool(limit) and ratios.median < limit
    return Figure(name, speed.text("tokens/s"), peer, ratios.text("x", 2), words, missed)


def training(folder: Path) -> list[Figure]:
    """LoRA against TRL; each ZeRO stage against a bare DeepSpeed loop and DDP; rows against tensors of noise; packed rows against padded ones."""
    from tuneplane.training.tiny import build

    build(folder / "model", layers=4, hidden=256)
    even = _rows(folder / "even.jsonl", [100] * 2000)
    dice = random.Random(2)
    mixed = _rows(folder / "mixed.jsonl", [min(200, int(dice.lognormvariate(3.4, 0.8))) for _ in range(4000)])
    out = [_figure("sft, LoRA, ZeRO-2", _measured(folder, "trl", "trl", even, **LORA), "TRL SFTTrainer (DDP)", 1.0)]
    for stage in range(4):
        value = _measured(folder, f"zero-{stage}", "deepspeed", even, zero_stage=stage)
        out.append(_figure(f"sft, all weights, ZeRO-{stage}", value, "bare DeepSpeed loop", 0.97))
    value = _measured(folder, "ddp", "ddp", even, zero_stage=0)
    out.append(_figure("sft, all weights, ZeRO-0", value, "bare DDP loop", 0))
    value = _measured(folder, "synthetic", "synthetic", mixed, **LORA)
    out.append(_figure("sft on rows of a file", value, "the same steps on tensors of noise in memory", 0.95))
    value = _measured(folder, "packing", "unpacked", mixed, packing=True, micro_batch_size=4, **LORA)
    ours, theirs = zip(*value["pairs"], strict=True)
    speeds = [
        Samples(tuple(t / ms * 1000 for t, ms in zip(tokens, times, strict=True)))
        for tokens, times in ((value["tokens"], ours), (value["theirs"], theirs))
    ]
    peer = f"padded rows: {speeds[1].text('tokens/s')}"
    out.append(_compared("sft, packing, mixed lengths", speeds[0], speeds[0].over(speeds[1]), peer, 1.0))
    return out


if __name__ == "__main__":
    with scratch() as place:
        figures = training(place)
    print(text(figures))
    sys.exit(any(figure.missed for figure in figures))
