"""`tp plan` as it is typed: what it says, what it refuses, and that it writes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpc.slurm.forecast import Start, parse

TP = Path(sys.executable).parent / "tp"
GIT = {f"GIT_{who}_{what}": "t@example.invalid" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
sys.path.insert(0, str(Path(__file__).parents[1] / "sif"))


class Lab:
    """A storage root, a project with one experiment of deepspeed/sft, a model without weights, and 100 rows."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder, self.storage, self.project, self.model = folder, folder / "storage", folder / "lab", model
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "LC_ALL": "C.UTF-8",
            "TUNEPLANE_STORAGE_ROOT": str(self.storage),
            **GIT,
        }
        self.env["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
        self.rows = folder / "rows.jsonl"
        self.rows.write_text("".join(json.dumps({"prompt": "a", "completion": "b" * 39}) + "\n" for _ in range(100)))
        self.tp("site", "init", str(self.storage), "--name", "lab", "--fleet", "local")
        self.tp("init", str(self.project), "--name", "lab")
        self.tp("new", "job", "--method", "deepspeed/sft")
        subprocess.run("git add -A && git commit -q -m x", shell=True, cwd=self.project, env=self.env, check=True)

    def tp(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        cwd = self.project if self.project.exists() else self.folder
        done = subprocess.run(
            [TP, *words], cwd=cwd, env=self.env, text=True, capture_output=True, timeout=120, check=False
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def plan(self, *words: str, code: int = 0) -> dict[str, Any]:
        given = ["--model", str(self.model), "--train-data", str(self.rows)]
        value: dict[str, Any] = json.loads(self.tp("plan", "job", "--json", *given, *words, code=code).stdout)
        return value


@pytest.fixture
def lab(tmp_path: Path, make_model: Callable[..., Path]) -> Lab:
    return Lab(tmp_path, make_model())


def test_a_plan_says_what_a_submission_would_be_and_writes_nothing(lab: Lab) -> None:
    before = {p: p.stat().st_mtime_ns for p in lab.folder.rglob("*") if "digests.json" not in p.name and not p.is_dir()}
    found = lab.plan("--profile", "cpu", "--time", "30", "--set", "lora_rank=4", "--set", "epochs=2")
    assert {
        p: p.stat().st_mtime_ns for p in lab.folder.rglob("*") if "digests.json" not in p.name and not p.is_dir()
    } == before
    assert (found["verdict"], found["errors"], found["method"], found["ranks"], found["gpus"]) == (
        "admit",
        [],
        "deepspeed/sft",
        2,
        0,
    )
    assert (found["model"]["layers"], found["parameters_trained"]) == (2, 2 * 4 * (128 + 96 + 96 + 128 + 192 * 3))
    assert (found["rows"]["rows"], found["rows"]["mean_tokens"]) == (100, 10)
    assert (found["batches"]["global_batch"], found["batches"]["total_steps"], found["tokens"]) == (8, 25, 2000)
    assert (found["limit_s"], found["start"], found["time"]) == (1800, None, None)
    terms = found["memory_per_rank"]["terms"]
    assert terms["total"] > terms["weights"] == 4 * (found["model"]["parameters"] + found["parameters_trained"])
    assert (found["memory_per_rank"]["available"], found["memory_per_rank"]["verdict"]) == (2 << 30, "ready")
    assert any("no earlier run" in text for text in found["unknown"])


def test_every_fault_of_a_submission_is_named_at_once(lab: Lab) -> None:
    (lab.project / "experiments/job/new.py").write_text("x = 1\n")
    config = lab.project / "experiments/job/config.yaml"
    config.write_text(config.read_text() + "\nextra: 1\n")
    found = lab.plan("--profile", "cpu", "--set", "learning_rate=7", "--dependency", "afterok:x", code=1)
    assert {e["code"] for e in found["errors"]} >= {"E-SUBMIT-036", "E-SPEC-043", "E-CATALOG-012", "E-PROJECT-015"}
    dry = json.loads(lab.tp("submit", "job", "--dry-run", "--json", "--profile", "cpu", code=1).stdout)
    assert {e["code"] for e in dry["errors"]} <= {e["code"] for e in found["errors"]}
    assert "everything else: the submission cannot be prepared" in found["unknown"]


def test_a_person_reads_the_terms_the_sources_and_what_is_not_known(lab: Lab) -> None:
    said = lab.tp("plan", "job", "--profile", "cpu", "--model", str(lab.model), "--train-data", str(lab.rows)).stdout
    for words in (
        "job: deepspeed/sft, 1 node, no GPU, 2 ranks",
        "a rank of 2.0 GiB: fits",
        "backward",
        "rows counted",
        "not known    time and GPU-hours",
    ):
        assert words in said
    assert "is assumed" in said  # no tokenizer came with this model


def test_a_model_that_cannot_be_read_costs_the_memory_forecast_alone(lab: Lab) -> None:
    (lab.model / "config.json").write_text("{}")
    found = lab.plan("--profile", "cpu")
    assert (found["verdict"], found["memory_per_rank"], found["batches"]["total_steps"]) == ("admit", None, 13)
    assert any(text.startswith("memory: config.json") for text in found["unknown"])


def test_p51_with_packing_steps_and_tokens_count_sequences(lab: Lab) -> None:
    """100 rows of 10 tokens each: twelve fill a sequence of 128."""
    words = ["--profile", "cpu", "--set", "packing=true", "--set", "max_length=128"]
    found = lab.plan(*words)
    assert (found["packed"]["sequences"], found["batches"]["global_batch"], found["batches"]["total_steps"]) == (
        9,
        8,
        2,
    )
    assert found["tokens"] == round(2 * 8 * 1000 / 9)
    longer = lab.plan(*words, "--set", "max_steps=9")
    assert (longer["tokens"], longer["batches"]["epochs"]) == (8000, 8)
    given = ["--model", str(lab.model), "--train-data", str(lab.rows)]
    said = lab.tp("plan", "job", *given, *words).stdout
    assert "into about 9 sequences, 87 % full" in said
    assert (lab.plan("--profile", "cpu")["packed"], lab.plan("--profile", "cpu")["batches"]["total_steps"]) == (
        None,
        13,
    )


def test_pairs_count_both_answers_and_what_a_model_draws_is_not_known(lab: Lab) -> None:
    pair = {"prompt": "a", "chosen": "b" * 39, "rejected": "c"}
    lab.rows.write_text("".join(json.dumps(pair) + "\n" for _ in range(100)))
    for method in ("dpo", "grpo"):
        lab.tp("new", method, "--method", f"deepspeed/{method}")
    subprocess.run("git add -A && git commit -q -m x", shell=True, cwd=lab.project, env=lab.env, check=True)
    words = ["--json", "--profile", "cpu", "--model", str(lab.model), "--train-data", str(lab.rows)]
    dpo, grpo = (json.loads(lab.tp("plan", m, *words).stdout) for m in ("dpo", "grpo"))
    assert (dpo["rows"]["mean_tokens"], "for both answers" in dpo["rows"]["how"]) == (
        2 * grpo["rows"]["mean_tokens"],
        True,
    )
    steps, batch = dpo["batches"]["total_steps"], dpo["batches"]["global_batch"]
    assert (steps * batch >= 100, dpo["tokens"]) == (True, steps * batch * dpo["rows"]["mean_tokens"])
    assert (grpo["tokens"], grpo["time"]) == (None, None)
    assert any("before they are drawn" in text for text in grpo["unknown"])


def test_groups_that_a_rank_s_answers_do_not_fill_are_refused_by_plan_and_submit(lab: Lab) -> None:
    lab.tp("new", "grpo", "--method", "deepspeed/grpo")
    subprocess.run("git add -A && git commit -q -m x", shell=True, cwd=lab.project, env=lab.env, check=True)
    words = ["--json", "--profile", "cpu", "--model", str(lab.model), "--train-data", str(lab.rows)]
    words += ["--set", "micro_batch_size=1", "--set", "gradient_accumulation=2"]
    for command in (["plan", "grpo"], ["submit", "grpo", "--dry-run"]):
        found = json.loads(lab.tp(*command, *words, code=1).stdout)
        assert [(e["code"], e["field"]) for e in found["errors"]] == [
            ("E-TRAIN-016", "spec.hyperparams.micro_batch_size")
        ]


def test_what_a_config_contradicts_is_told_by_validate(lab: Lab) -> None:
    config = lab.project / "experiments/job/config.yaml"
    config.write_text(config.read_text().replace("  zero_stage: 2", "  load_in_4bit: true\n  zero_stage: 3"))
    found = json.loads(lab.tp("validate", "job", "--json", code=1).stdout)
    assert [(e["code"], e["field"]) for e in found["errors"]] == [("E-TRAIN-016", "spec.hyperparams.zero_stage")]


def test_a_recipe_without_the_engine_s_parameters_is_not_forecast(lab: Lab) -> None:
    lab.tp("new", "own", "--method", "custom/custom")
    subprocess.run("git add -A && git commit -q -m x", shell=True, cwd=lab.project, env=lab.env, check=True)
    found = json.loads(lab.tp("plan", "own", "--json", "--profile", "cpu").stdout)
    assert (found["verdict"], found["batches"], found["memory_per_rank"]) == ("admit", None, None)
    assert any("custom/custom has not the parameters" in text for text in found["unknown"])


def test_on_slurm_the_start_is_slurm_s_word_and_its_refusal_a_fault(
    lab: Lab, make_fake_slurm: Callable[..., Any]
) -> None:
    from sifs import small_sif

    fake = make_fake_slurm()
    site = lab.storage / "site/site.yaml"
    fleet = f'  local: {{kind: local}}\n  batch: {{kind: slurm, bin_dir: "{fake.bin}", conf: "{fake.conf}"}}'
    profile = "profiles:\n  h200: {fleet: batch, series: h200, nodes: 1, gpus_per_node: 8, gpu_memory_gb: 141}\n"
    site.write_text(site.read_text().replace("  local: {kind: local}", fleet).replace("profiles:\n", profile, 1))
    small_sif(lab.folder / "train.sif")
    lab.tp("runtime", "add", "deepspeed-0.19.8", str(lab.folder / "train.sif"), "--copy")
    found = lab.plan("--profile", "h200:16", "--time", "30")
    assert (found["verdict"], found["gpus"], found["ranks"], found["memory_per_rank"]["verdict"]) == (
        "admit",
        16,
        16,
        "ready",
    )
    assert (found["start"]["partition"], found["start"]["at"][:2]) == ("batch", "20")
    assert (fake.jobs(), [c["tool"] for c in fake.calls("sbatch")]) == ([], ["sbatch"])
    fake.faults("sbatch fail partition")
    refused = lab.plan("--profile", "h200:16", "--time", "30", "--partition", "nowhere", code=1)
    assert [e["code"] for e in refused["errors"]] == ["E-SLURM-010"]
    fake.faults("sbatch fail timeout")
    over = lab.plan("--profile", "h200:32", "--dependency", "afterok:999", code=1)
    assert any(text.startswith("Slurm's start: ") for text in over["unasked"])
    assert {e["code"] for e in over["errors"]} >= {"E-SUBMIT-072", "E-SUBMIT-063"}


def test_slurm_s_estimate_is_read_from_its_words() -> None:
    said = "sbatch: Job 5 to start at 2026-11-30T09:30:00 using 2 processors on nodes n[1-2] in partition batch"
    assert parse(said) == Start("2026-11-30T09:30:00", "n[1-2]", "batch")
    assert parse("sbatch: Job 5 to start at 2026-11-30T09:30:00") == Start("2026-11-30T09:30:00", "", "")
    assert parse("sbatch: error: nothing") is None


def test_a_few_tokens_are_not_nought_millions() -> None:
    from hpc.cli.plan import _tokens

    assert [_tokens(n) for n in (864, 99_999, 100_000, 4_260_000)] == ["864", "99 999", "0.10 M", "4.26 M"]
