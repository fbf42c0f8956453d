"""What a method can do with an environment is known before the queue."""

from __future__ import annotations

from typing import Any

import pytest

from hpc.submit.engine import engine_faults


def spec(name: str, **hyperparams: Any) -> dict[str, Any]:
    return {"spec": {"framework": {"kind": "deepspeed"}, "recipe": {"name": name}, "hyperparams": hyperparams}}


def environment(kind: str = "plugin") -> dict[str, Any]:
    return {"environment": {"path": "/e", "environment": {"ref": "alice/sums@1", "verifier": {"kind": kind}}}}


ROWS = {"train": {"path": "/rows.jsonl", "files": []}}


@pytest.mark.parametrize(
    ("body", "inputs", "wanted"),
    [
        (spec("deepspeed/grpo"), environment(), []),
        (spec("deepspeed/grpo"), ROWS, []),
        (spec("deepspeed/grpo"), {**ROWS, **environment()}, []),
        (spec("deepspeed/grpo"), {}, ["spec.data.train"]),
        (spec("deepspeed/sft"), {**ROWS, **environment()}, ["spec.data.environment"]),
        (spec("deepspeed/grpo"), environment("rubric"), ["spec.data.environment"]),
        (spec("deepspeed/grpo", reward_functions="short, verifier"), environment("self"), ["spec.data.environment"]),
        (spec("deepspeed/grpo", reward_functions="short"), environment("rubric"), []),
    ],
)
def test_rows_tasks_and_verifier_fit_the_method(body: Any, inputs: Any, wanted: list[str]) -> None:
    assert [(f.code, f.field) for f in engine_faults(body, inputs)] == [("E-DATA-015", field) for field in wanted]
