"""An environment's folder: manifest.json says how it is reached and who judges, tasks.jsonl what is asked. Nothing of it is run.

    {"id": "t1", "prompt": "What is 2 + 3?", "reference": "5", "metadata": {…}, "split": "train"}

Standard library only. Both rooms need this: the login node for `tp env push`, a job for the tasks of its split.
A split is never stood in for by the other one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from tuneplane.contract.datarows import MAX_FAULTS, DataFault, DataFaults, parse_row, read_lines

SCHEMA: Final = "tuneplane/environment/v1"
MANIFEST: Final = "manifest.json"
TASKS: Final = "tasks.jsonl"
SPLITS: Final = ("train", "eval")
PORT: Final = 8900
"""The documented port of an environment whose manifest states none."""
_KEYS: Final = ("id", "prompt", "reference", "metadata", "split")
_ROLES: Final = ("system", "user", "assistant", "tool")


@dataclass(frozen=True)
class Task:
    """One task. `prompt` is text or a list of `{role, content}`; `reference` is whatever the verifier compares with, None where there is none."""

    id: str
    prompt: Any
    reference: Any
    metadata: dict[str, Any] = field(default_factory=dict)
    split: str = "train"


def parse_task(row: dict[str, Any], where: str) -> Task:
    """One row as a task. Raises DataFault E-DATA-060."""
    if unknown := [key for key in row if key not in _KEYS]:
        raise _no(where, f"unknown key {unknown[0]!r:.80}", ", ".join(_KEYS))
    if not isinstance(row.get("id"), str) or not row["id"].strip():
        raise _no(f"{where}: id", "is no text", "a text of its own for each task")
    if not _is_prompt(row.get("prompt")):
        raise _no(f"{where}: prompt", "is no prompt", "a text, or [{role, content}, …]")
    if not isinstance(row.get("metadata", {}), dict):
        raise _no(f"{where}: metadata", "is no object", "an object")
    if row.get("split") not in SPLITS:
        raise _no(f"{where}: split", f"is {row.get('split')!r:.80}", " or ".join(SPLITS))
    return Task(row["id"], row["prompt"], row.get("reference"), row.get("metadata", {}), row["split"])


def _no(where: str, message: str, allowed: str) -> DataFault:
    return DataFault("E-DATA-060", message, field=where, allowed=allowed)


def _is_prompt(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value.strip())
    return isinstance(value, list) and bool(value) and all(map(_is_message, value))


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and value.get("role") in _ROLES and isinstance(value.get("content"), str)


def read_tasks(folder: str | os.PathLike[str]) -> Iterator[Task]:
    """Every task, in order of the file.

    Raises DataFaults E-DATA-003, E-DATA-060: all that is wrong is told after the last row, an id that comes twice and a prompt that stands in
    both splits among it. OSError where the file cannot be read.
    """
    ids: set[str] = set()
    prompts: dict[bytes, str] = {}
    faults: list[DataFault] = []
    with open(os.path.join(folder, TASKS), "rb", buffering=1 << 20) as stream:
        try:
            for number, line in read_lines(stream, TASKS):
                try:
                    task = parse_task(parse_row(line, f"{TASKS}:{number}"), f"{TASKS}:{number}")
                    _judge(task, ids, prompts, f"{TASKS}:{number}")
                except DataFault as fault:
                    faults.append(fault)
                    if len(faults) >= MAX_FAULTS:
                        break
                else:
                    yield task
        except DataFault as fault:
            faults.append(fault)
    if faults:
        raise DataFaults(faults)


def _judge(task: Task, ids: set[str], prompts: dict[bytes, str], where: str) -> None:
    """Raises DataFault E-DATA-060 for what is no fault of the row alone."""
    if task.id in ids:
        raise _no(f"{where}: id", f"{task.id!r:.80} is an earlier task's", "a text of its own for each task")
    ids.add(task.id)
    key = hashlib.sha256(json.dumps(task.prompt, sort_keys=True).encode()).digest()[:16]
    if prompts.setdefault(key, task.split) != task.split:
        raise _no(
            f"{where}: prompt", "stands in both splits: the model would be measured on what it learned", "one split"
        )


def count_tasks(folder: str | os.PathLike[str]) -> dict[str, int]:
    """Tasks of each split that has any. Raises as `read_tasks`."""
    out: dict[str, int] = {}
    for task in read_tasks(folder):
        out[task.split] = out.get(task.split, 0) + 1
    return dict(sorted(out.items(), reverse=True))
