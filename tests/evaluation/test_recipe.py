"""evalkit/behaviour: the recipe says what the program reads, and a job of it starts the module with one rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from known_sums import KNOWN, write_rows
from tuneplane.evaluation import benchmark_settings
from tuneplane.evaluation.settings import FIELDS, parse
from tuneplane.evaluation.tasks import read_tasks

from hpc.catalog.shelf import Catalogue
from hpc.submit.kernelzip import PARTS
from hpc.submit.launchplan import entry_of


def test_the_recipe_declares_exactly_what_the_program_reads() -> None:
    recipe = Catalogue.shipped().get("evalkit/behaviour")
    declared = {
        n: (p.type, p.default, p.min, p.max, p.exclusive_min, tuple(p.choices), p.doc)
        for n, p in recipe.typed.params.items()
    }
    assert declared == {f.name: (f.kind, f.default, f.low, f.high, f.above, f.choices, f.doc) for f in FIELDS}
    assert all(p.path == f"behaviour.{n}" and p.group for n, p in recipe.typed.params.items())
    assert parse(recipe.resolve({})) == parse({})
    assert (recipe.required_inputs, recipe.typed.category) == (["model", "validation"], "evaluation")


def test_the_benchmark_recipe_declares_exactly_what_its_program_reads() -> None:
    recipe = Catalogue.shipped().get("evalkit/benchmark")
    declared = {
        n: (p.type, p.default, p.min, p.max, p.exclusive_min, tuple(p.choices), p.doc)
        for n, p in recipe.typed.params.items()
    }
    fields = benchmark_settings.FIELDS
    assert declared == {f.name: (f.kind, f.default, f.low, f.high, f.above, f.choices, f.doc) for f in fields}
    assert all(p.path == f"benchmark.{n}" and p.group for n, p in recipe.typed.params.items())
    assert benchmark_settings.parse(recipe.resolve({})) == benchmark_settings.parse({})
    assert (recipe.required_inputs, recipe.typed.category, recipe.runtime_id()) == (
        ["model"],
        "evaluation",
        "lm-eval-0.4.13",
    )
    argv = ["$PYTHON", "-u", "-m", "tuneplane.evaluation.suites"]
    assert entry_of(recipe, "1.0.0", "/w") == {"kind": "rank", "argv": argv}


def test_the_benchmark_to_copy_can_be_asked() -> None:
    folder = Catalogue.shipped().get("evalkit/benchmark").template / "benchmarks/small-sums"
    tasks = read_tasks(folder)
    assert (len(tasks.asked("sums")), tasks.decides) == (40, "exact_match,strict-match")
    assert all(row["answer"] == str(sum(map(int, row["question"][8:-1].split(" + ")))) for row in tasks.asked("sums"))


def test_a_job_starts_the_module_once_a_rank_and_the_kernel_carries_it() -> None:
    recipe = Catalogue.shipped().get("evalkit/behaviour")
    assert entry_of(recipe, "1.0.0", "/w") == {"kind": "rank", "argv": ["$PYTHON", "-u", "-m", "tuneplane.evaluation"]}
    assert "evaluation" in PARTS["training"]
    assert "evaluation" not in PARTS["verifier"]


@pytest.mark.parametrize("name", ["README.md", "config.yaml"])
def test_the_template_is_whole(name: str) -> None:
    assert name in Catalogue.shipped().get("evalkit/behaviour").template_files()


def tp(cwd: Path, env: dict[str, str], *words: str) -> Any:
    """`tp` with `--json`; it must end with 0."""
    command = [str(Path(sys.executable).parent / "tp"), *words]
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout) if "--json" in words else done.stdout


@pytest.mark.train
def test_an_evaluation_is_a_job_of_its_own(taught: Path, tmp_path: Path) -> None:
    names = {f"GIT_{a}_{b}": "t@example.invalid" for a in ("AUTHOR", "COMMITTER") for b in ("NAME", "EMAIL")}
    env = {**os.environ, **names, "TUNEPLANE_STORAGE_ROOT": str(tmp_path / "root"), "XDG_CONFIG_HOME": str(tmp_path)}
    rows = write_rows(tmp_path / "rows.jsonl", KNOWN)
    tp(tmp_path, env, "site", "init", str(tmp_path / "root"), "--name", "lab", "--fleet", "local")
    tp(tmp_path, env, "init", str(tmp_path / "lab"), "--name", "lab")
    lab = tmp_path / "lab"
    tp(lab, env, "new", "my-eval", "--method", "evalkit/behaviour")
    given = ("--model", str(taught), "--validation-data", str(rows), "--set", "max_new_tokens=4", "--profile", "cpu:1")
    run = tp(lab, env, "submit", "my-eval", *given, "--allow-dirty", "--json")
    tp(lab, env, "job", "wait", run["run_id"], "--timeout", "200")
    out = next((tmp_path / "root/runs").glob(f"*/my-eval/{run['run_id']}/attempts/0/out"))
    report = json.loads((out / "eval_report.json").read_text())
    assert report["metrics"]["exact_match"]["value"] == 1.0
    assert tp(lab, env, "runs", "audit", run["run_id"], "--json")["verdict"] == "verified"
    written = json.loads((out.parents[2] / "report.json").read_text())
    assert {a["path"] for a in written["artifacts"]} >= {"eval_report.json", "scores.jsonl", "predictions.jsonl"}
