#!/usr/bin/env python3
"""Holds the memory forecast of `tp plan` against what runs took: two ranks on the CPU, a few steps, peak resident memory of the worst rank.

    memory_forecast.py WORK_DIR [--model FOLDER] [--only NAME …]

Without a model it makes one of about 30 million weights. Prints a table for docs/plan.md; the forecast is for the rows' true longest length.
`error` is (forecast - measured) / measured. The last two columns leave out what the process holds before there is a model.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "training"), str(ROOT), str(ROOT / "hpc" / "kernel")]

from ranks import Run  # noqa: E402

from hpc.plan.memory import CPU_PROCESS, Setting, forecast  # noqa: E402
from hpc.plan.model_facts import read_model  # noqa: E402
from hpc.plan.rows import from_caches  # noqa: E402

FULL, LORA = {"lora_rank": 0}, {"lora_rank": 16}
CASES: dict[str, dict[str, Any]] = {
    "zero2-lora-fp32": {"zero_stage": 2, **LORA},
    "zero2-lora-fp32-recompute": {"zero_stage": 2, **LORA, "gradient_checkpointing": True},
    "zero2-lora-bf16": {"zero_stage": 2, **LORA, "precision": "bf16"},
    "zero0-full-fp32": {"zero_stage": 0, **FULL},
    "zero1-full-fp32": {"zero_stage": 1, **FULL},
    "zero2-full-fp32": {"zero_stage": 2, **FULL},
    "zero2-full-fp32-long": {"zero_stage": 2, **FULL, "words": 350},
    "zero2-full-bf16": {"zero_stage": 2, **FULL, "precision": "bf16"},
    "zero3-full-fp32": {"zero_stage": 3, **FULL},
    "zero3-lora-bf16": {"zero_stage": 3, **LORA, "precision": "bf16"},
}


def rows(path: Path, words: int) -> Path:
    """32 rows of about so many words of plain text."""
    with open(path, "w", encoding="utf-8") as stream:
        for number in range(32):
            text = " ".join(str((number * 7919 + i * 104729) % 1000) for i in range(words))
            stream.write(json.dumps({"prompt": f"{number}: ", "completion": text}) + "\n")
    return path


def measure(
    folder: Path, model: Path, case: dict[str, Any], words: int = 100, warm: Any = None
) -> tuple[float, float, float, Any]:
    """(measured peak, before the model, forecast, its terms) in MiB of one case."""
    settings = {"max_steps": 3, "micro_batch_size": 2, "max_length": 2048, "save_steps": 0, **case}
    words = int(settings.pop("words", words))
    folder.mkdir(parents=True)
    run = Run(folder / "run", model, rows(folder / "rows.jsonl", words), **settings)
    run.warm = warm
    done = run.complete(timeout_s=400)
    taken = done.result()["memory"]
    caches = list((folder / "run" / "cache" / "tokens").glob("*"))
    digests = {json.loads((c / "meta.json").read_text())["source_sha256"] for c in caches}
    known = from_caches(caches, digests, 2048)
    assert known is not None
    hyperparams = {
        "precision": "fp32",
        "gradient_checkpointing": False,
        "gradient_accumulation": 1,
        "lora_targets": "all-linear",
        "lora_dropout": 0.0,
    }
    setting = Setting.of({**hyperparams, **settings}, "sft", world=2, gpu=False, length=known.longest_tokens)
    found = forecast(read_model(model), setting)
    mib = 1 << 20
    return (
        taken["rss_peak"] / mib,
        taken["rss_before"] / mib,
        found.total / mib,
        {k: round(v / mib) for k, v in found.terms().items()},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="memory forecasts against measured peaks")
    parser.add_argument("work", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--words", type=int, default=100, help="length of the rows")
    parser.add_argument("--only", nargs="*", default=[])
    args = parser.parse_args()
    model = args.model
    if model is None:
        model = args.work / "model"
        make = [sys.executable, "-m", "tuneplane.training.tiny", str(model), "--layers", "12", "--hidden", "512"]
        subprocess.run(make, check=True, capture_output=True)
    print("| case | measured | forecast | error | beyond the bare process | its forecast |\n|---|---|---|---|---|---|")
    for name, case in CASES.items():
        if args.only and name not in args.only:
            continue
        peak, before, found, terms = measure(args.work / name, model, case, args.words)
        ours, theirs = found - CPU_PROCESS / (1 << 20), peak - before
        totals = f"{peak:.0f} MiB | {found:.0f} MiB | {(found - peak) / peak:+.0%}"
        print(f"| {name} | {totals} | {theirs:.0f} MiB | {ours:.0f} MiB |", flush=True)
        print(f"{before:.0f} {terms}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
