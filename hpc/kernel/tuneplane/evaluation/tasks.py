"""A benchmark's folder as the job reads it: the declaration, its tasks and their rows. No network, no code of the folder's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuneplane.contract.benchmark_rows import read_rows
from tuneplane.contract.benchmarks import (
    DECLARATION,
    RUNNER,
    TASKS,
    Benchmark,
    Measured,
    declaration_faults,
    declared,
    example_faults,
    fewshot_of,
    full_key,
    measured,
    rows_of,
    shared_keys,
    task_faults,
)
from tuneplane.evaluation.loading import folder_digest
from tuneplane.record.files import read_bytes
from tuneplane.training.refusals import Reason, Refused, refuse

_LARGEST = 1 << 20
_LARGEST_ROWS = 1 << 30
Rows = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class Tasks:
    """A benchmark that can be asked: each task as lm-eval has it but for where its rows are, and the rows by split."""

    benchmark: Benchmark
    folder: Path
    tasks: Mapping[str, Mapping[str, Any]]
    rows: Mapping[str, Rows]
    metrics: Mapping[str, Measured]
    digest: str

    @property
    def decides(self) -> str:
        return full_key(self.benchmark.primary.key, dict.fromkeys(shared_keys(self.tasks)))

    def asked(self, name: str) -> list[dict[str, Any]]:
        """The rows that a task asks: its test split, else its validation split."""
        task = self.tasks[name]
        return self.rows[name][str(task.get("test_split") or task["validation_split"])]


def read_tasks(folder: Path, shots: int = -1) -> Tasks:
    """`shots`: what `num_fewshot` was set to, -1 for nothing.

    Raises Refused E-EVAL-060 (no benchmark that runs here), E-EVAL-061 (a task that cannot be asked), E-EVAL-062 (rows).
    """
    value = _yaml(folder, DECLARATION, "E-EVAL-060")
    try:
        benchmark = declared(value if isinstance(value, dict) else {})
    except ValueError as exc:
        raise refuse("E-EVAL-060", str(exc), field=os.fspath(folder)) from exc
    if benchmark.runner != RUNNER or not benchmark.suites:
        raise refuse(
            "E-EVAL-060", "is not run here", field=f"{DECLARATION}: runner", found=benchmark.runner, allowed=RUNNER
        )
    wrong = [
        Reason("E-EVAL-060", f.message, f"{DECLARATION}: {f.field}", str(f.found), f.allowed)
        for f in declaration_faults(value)
    ]
    tasks: dict[str, dict[str, Any]] = {}
    for name in benchmark.suites if not wrong else ():
        path = f"{TASKS}/{name}.yaml"
        task = _yaml(folder, path, "E-EVAL-061")
        faults = list(task_faults(task, name))
        wrong += [Reason("E-EVAL-061", f.message, f"{path}: {f.field}", str(f.found), f.allowed) for f in faults]
        tasks[name] = task
    if wrong:
        raise Refused(wrong)
    try:
        numbers = measured(benchmark, tasks)
    except ValueError as exc:
        raise refuse("E-EVAL-060", str(exc), field=f"{DECLARATION}: metrics") from exc
    rows = {name: {split: _rows(folder, file) for split, file in rows_of(task).items()} for name, task in tasks.items()}
    for name, task in tasks.items():
        wrong += [
            Reason("E-EVAL-061", f.message, f"{TASKS}/{name}.yaml: {f.field}", str(f.found), f.allowed)
            for f in example_faults(task, fewshot_of(benchmark, task, shots), rows[name])
        ]
    if wrong:
        raise Refused(wrong)
    return Tasks(benchmark, folder, tasks, rows, numbers, folder_digest(folder))


def _yaml(folder: Path, name: str, code: str) -> Any:
    """A file's value by the safe loader: a tag such as !function, which would be code, is refused."""
    import yaml

    try:
        return yaml.safe_load(read_bytes(folder / name, limit=_LARGEST))
    except FileNotFoundError as exc:
        hint = (
            "a task of lm-eval's own takes its rows from a hub, and nothing is downloaded: copy the task and its rows"
        )
        raise refuse(
            code, "is not there", field=os.fspath(folder / name), hint=hint if code == "E-EVAL-061" else ""
        ) from exc
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as exc:
        message = " ".join(str(exc).split())
        raise refuse(code, f"cannot be read: {message}"[:300], field=os.fspath(folder / name)) from exc


def _rows(folder: Path, file: str) -> list[dict[str, Any]]:
    try:
        data = read_bytes(folder / TASKS / file, limit=_LARGEST_ROWS)
    except (OSError, ValueError) as exc:
        raise refuse("E-EVAL-062", f"cannot be read: {exc}", field=f"{TASKS}/{file}") from exc
    rows, faults = read_rows(data)
    if faults:
        raise Refused(
            Reason("E-EVAL-062", f.message, f"{TASKS}/{file}{f':{f.line}' if f.line else ''}", f.found, f.allowed)
            for f in faults
        )
    return rows
