"""Benchmarks of a few questions with known answers, written as a pack's author writes them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import yaml
from known_sums import SUMS

STRICT, FLEXIBLE = "exact_match,strict-match", "exact_match,flexible-extract"
FILTERS = [
    {"name": "strict-match", "filter": [{"function": "regex", "regex_pattern": "^(-?[0-9]+)$"}, {"function": "take_first"}]},
    {"name": "flexible-extract", "filter": [
        {"function": "regex", "group_select": -1, "regex_pattern": "(-?[0-9]+)"}, {"function": "take_first"},
    ]},
]  # fmt: skip
EXACT = {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}
ACC = [{"metric": m, "aggregation": "mean", "higher_is_better": True} for m in ("acc", "acc_norm")]


def generation(name: str = "sums", **more: Any) -> dict[str, Any]:
    """A task that asks sums as the tiny models learnt them, and reads the answer strictly and leniently."""
    from tuneplane.training.sums import SYSTEM

    return {
        "task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": f"{name}.jsonl"}}, "test_split": "test",
        "output_type": "generate_until", "description": SYSTEM, "doc_to_text": "{{question}}", "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 4}, "filter_list": copy.deepcopy(FILTERS), "metric_list": [EXACT], **more,
    }  # fmt: skip


def choice(name: str = "pick", **more: Any) -> dict[str, Any]:
    return {
        "task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": f"{name}.jsonl"}}, "test_split": "test",
        "output_type": "multiple_choice", "doc_to_text": "{{question}}", "doc_to_choice": "choices", "doc_to_target": "gold",
        "metric_list": ACC, **more,
    }  # fmt: skip


def sum_rows() -> list[dict[str, Any]]:
    """Four sums that `taught` knows, and one whose stated answer it never gives."""
    from tuneplane.training.sums import question

    rows = [{"question": question(a, b), "answer": str(a + b)} for a, b in SUMS]
    return [*rows, {"question": question(11, 11), "answer": "-7"}]


def choice_rows() -> list[dict[str, Any]]:
    return [
        {"question": f"The letter after {a} is", "choices": [b, "nothing at all", a], "gold": 0} for a, b in zip("abcde", "bcdef", strict=True)
    ]  # fmt: skip


def write_benchmark(
    folder: Path, tasks: list[dict[str, Any]], rows: dict[str, list[dict[str, Any]]], primary: str, **more: Any
) -> Path:
    """A benchmark named as its folder; `rows` by task."""
    (folder / "tasks").mkdir(parents=True)
    declaration = {
        "schema": "tuneplane/benchmark/v1", "name": folder.name, "runner": "lm-eval", "suites": [t["task"] for t in tasks],
        "metrics": [{"key": primary, "label": "right answers", "direction": "higher", "ratio": True, "primary": True}], **more,
    }  # fmt: skip
    (folder / "benchmark.yaml").write_text(yaml.safe_dump(declaration))
    for task in tasks:
        (folder / f"tasks/{task['task']}.yaml").write_text(yaml.safe_dump(task))
    for name, listed in rows.items():
        (folder / f"tasks/{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in listed))
    return folder


def sums_benchmark(folder: Path, **more: Any) -> Path:
    return write_benchmark(folder, [generation()], {"sums": sum_rows()}, STRICT, **more)


def two_tasks(folder: Path) -> Path:
    """Two choice tasks of five and two examples."""
    tasks = [choice("pick"), choice("again")]
    return write_benchmark(folder, tasks, {"pick": choice_rows(), "again": choice_rows()[3:]}, "acc")
