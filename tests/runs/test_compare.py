"""Two runs compared from their records: every difference under its section, numbers with their difference, and what is alike is counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tuneplane.contract.layout import RunPaths

from hpc.errors import Refusal
from hpc.runs.compare import compare_runs

LAUNCH: dict[str, Any] = {
    "hyperparams": {"learning_rate": 1e-4, "seed": 0}, "config": {"training": {"lora_rank": 8}}, "options": {"time": "10"}, "profile": "h200",
    "shape": {"pools": [{"name": "all", "nodes": 2}]}, "inputs": {"train": {"path": "/data/a", "files": [{"path": "", "sha256": "sha256:1"}]}},
    "kernel": {"verifier_sha256": "sha256:v", "training_sha256": "sha256:t"}, "runtime": {"runtime_id": "r", "container": True, "sha256": "sha256:s"},
}  # fmt: skip
SPEC: dict[str, Any] = {
    "spec": {"recipe": {"name": "deepspeed/sft", "version": "1"}, "framework": {"kind": "deepspeed"}, "plugins": []},
    "provenance": {"core_version": "0.4.0", "git_commit": "abc"},
}


def make(tmp_path: Path, name: str, *, launch: dict[str, Any] | None = None, spec: dict[str, Any] | None = None,
         files: dict[str, str] | None = None, losses: tuple[float, ...] = ()) -> RunPaths:  # fmt: skip
    run = RunPaths(tmp_path / "alice" / "exp" / name)
    records = {
        run.launch: LAUNCH | (launch or {}), run.jobspec: SPEC | (spec or {}),
        run.package: {"files": [{"path": p, "sha256": d} for p, d in (files or {"experiments/exp/train.py": "sha256:1"}).items()]},
    }  # fmt: skip
    for path, value in records.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value), "utf-8")
    if losses:
        out = run.attempt(0).out
        out.mkdir(parents=True)
        rows = [{"step": i, "loss": loss, "tokens_per_s": 10.0 * i, "time": "t"} for i, loss in enumerate(losses, 1)]
        (out / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), "utf-8")
        run.attempt(0).end.write_text(json.dumps({"class": "done", "step": len(losses)}), "utf-8")
    return run


def test_a_run_compared_with_itself_has_no_difference(tmp_path: Path) -> None:
    run = make(tmp_path, "run-0a0a", losses=(2.0, 1.0))
    found = compare_runs(run, run)
    assert found.differences == ()
    assert found.same == {"settings": 6, "data": 2, "code": 2, "environment": 9, "result": 3, "metrics": 5}


def test_every_kind_of_difference_stands_in_its_section(tmp_path: Path) -> None:
    a = make(tmp_path, "run-0a0a", losses=(2.0, 1.0))
    changed = {"path": "/data/a", "files": [{"path": "", "sha256": "sha256:2"}]}
    b = make(
        tmp_path, "run-0b0b", losses=(2.0, 0.5),
        launch={"hyperparams": {"learning_rate": 2e-4, "seed": 0}, "inputs": {"train": changed}},
        spec={"spec": SPEC["spec"] | {"plugins": [{"id": "a/x", "version": "1", "digest": "sha256:p"}]}},
        files={"experiments/exp/train.py": "sha256:9", "common/new.py": "sha256:2"},
    )  # fmt: skip
    found = {(d.section, d.key): (d.a, d.b, d.delta) for d in compare_runs(a, b).differences}
    assert found[("settings", "hyperparams.learning_rate")] == (1e-4, 2e-4, pytest.approx(1e-4))
    assert found[("code", "experiments/exp/train.py")] == ("sha256:1", "sha256:9", None)
    assert found[("code", "common/new.py")] == (None, "sha256:2", None)
    assert found[("environment", "plugins.a/x")] == (None, "1 sha256:p", None)
    assert found[("metrics", "loss.last")] == found[("metrics", "loss.min")] == (1.0, 0.5, -0.5)
    assert ("data", "train.path") not in found
    assert ("data", "train.content") in found
    assert {s for s, _ in found} == {"settings", "data", "code", "environment", "metrics"}


def test_a_run_that_never_ran_is_compared_as_far_as_it_goes(tmp_path: Path) -> None:
    a, b = make(tmp_path, "run-0a0a", losses=(1.0,)), make(tmp_path, "run-0b0b")
    found = {d.key: (d.a, d.b) for d in compare_runs(a, b).differences}
    assert found["attempts"] == (1, 0)
    assert found["loss.last"] == (1.0, None)


def test_a_value_that_was_no_number_at_the_end_is_not_the_one_before_it(tmp_path: Path) -> None:
    a, b = make(tmp_path, "run-0a0a", losses=(2.0, 1.0)), make(tmp_path, "run-0b0b", losses=(2.0, 1.0))
    with (b.attempt(0).out / "metrics.jsonl").open("a", encoding="utf-8") as stream:
        stream.write('{"step": 2, "loss": null}\n')
    found = {d.key: (d.a, d.b, d.delta) for d in compare_runs(a, b).differences}
    assert found == {"loss.last": (1.0, None, None), "loss.min": (1.0, 2.0, 1.0)}


def test_records_of_another_form_are_a_refusal(tmp_path: Path) -> None:
    a, b = make(tmp_path, "run-0a0a"), make(tmp_path, "run-0b0b")
    b.launch.write_text("[]", "utf-8")
    with pytest.raises(Refusal) as refused:
        compare_runs(a, b)
    assert refused.value.code == "E-RUNS-042"
