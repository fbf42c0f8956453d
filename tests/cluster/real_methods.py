"""Every training method once with real weights: SmolLM2-135M, LoRA, in the SIF, on two and four nodes of the test cluster.

    make methods                     (one to two hours on two cores; not part of `make test`)

The data are sums with known answers. Losses must fall, and on rows that were never trained on exact match or pair accuracy must rise: exact
match from what the model said before, pair accuracy from the first validation of the run. What was measured is printed as a table, and written
to the file that TP_METHODS_TABLE names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from lab import ROOT, Lab, Person, Run

pytestmark = [pytest.mark.cluster, pytest.mark.train, pytest.mark.timeout(3600)]

FOUR = "  four: {nodes: 4, cpus: 2, memory_gb: 4, ranks_per_node: 1, partition: batch, env: {OMP_NUM_THREADS: '1'}}\n"
TWO = "  pair: {nodes: 2, cpus: 2, memory_gb: 6, ranks_per_node: 1, partition: batch, env: {OMP_NUM_THREADS: '1'}}\n"
COMMON = {
    "lora_rank": 8, "zero_stage": 2, "max_length": 96, "seed": 3, "save_steps": 0, "log_steps": 10, "learning_rate": 0.001,
}  # fmt: skip
CWD = Path("/")
FORMS = {name: (name, "near") for name in ("answer", "preference", "judged", "prompt")} | {"far": ("preference", "far")}
"""Files of rows by name: their form, and how wrong the wrong sums are. A fresh reward head learns far ones in a few steps."""
HELD_OUT = 50
"""Questions that are asked of what sft, distill and grpo made."""
NUDGE = {"learning_rate": 0.0003, "max_steps": 24, "micro_batch_size": 2, "gradient_accumulation": 2, "eval_steps": 6}
"""Settings of the methods over pairs: eight answers a step."""


@pytest.fixture(scope="module")
def real(lab: Lab, alice: Person) -> Lab:
    """The site with profiles of its own, the real model, the rows of all forms, and the table at the end."""
    text = lab.root.site_file.read_text("utf-8").replace("  one:", f"{TWO}{FOUR}  one:", 1)
    lab.root.site_file.write_text(text, "utf-8")
    lab.admin("site", "check")
    lab.admin("site", "sync")
    cache = os.environ.get("TP_BUILD_CACHE") or "/var/cache/tuneplane-hpc"
    lab.as_user(ROOT, "python", "-m", "tuneplane.training.smollm", base(lab), "--cache", cache, cwd=CWD)
    for name, (form, wrong) in FORMS.items():
        words = ("--rows", "400", "--seed", "11", "--form", form, "--wrong", wrong)
        lab.as_user(ROOT, "python", "-m", "tuneplane.training.sums", rows(lab, name), *words, cwd=CWD)
    return lab


@pytest.fixture(scope="module")
def table() -> Iterator[list[dict[str, Any]]]:
    """Lines of the table; printed when all is done."""
    lines: list[dict[str, Any]] = []
    yield lines
    text = "| method | nodes | steps | loss | held out | seconds |\n|---|---|---|---|---|---|\n"
    for line in lines:
        text += f"| {' | '.join(map(str, line.values()))} |\n"
    print("\n" + text)
    if kept := os.environ.get("TP_METHODS_TABLE"):
        Path(kept).write_text(text, "utf-8")


def base(lab: Lab) -> Path:
    return lab.root.cache / "models" / "smollm2-135m"


def rows(lab: Lab, name: str) -> Path:
    return lab.root.cache / f"real-{name}.jsonl"


def held_out(path: Path) -> Path:
    return path.with_name(f"{path.stem}.heldout.jsonl")


class Bench:
    """Trains by one method and tells what came of it."""

    def __init__(self, lab: Lab, who: Person, table: list[dict[str, Any]]) -> None:
        self.lab, self.who, self.table = lab, who, table
        self.exact: dict[str, float] = {}

    def train(
        self, method: str, form: str, *, profile: str = "pair", model: Path | None = None, **settings: object
    ) -> Run:
        exp = method.replace("/", "-")
        if not (self.lab.project(self.who) / "experiments" / exp).is_dir():
            self.lab.tp(self.who, "new", exp, "--method", method)
            self.lab.sh(self.who, f"git add -A && git commit -q -m '{method}'")
        data = rows(self.lab, form)
        words = [word for name, value in (COMMON | settings).items() for word in ("--set", f"{name}={value}")]
        inputs = (
            "--model",
            str(model or base(self.lab)),
            "--train-data",
            str(data),
            "--validation-data",
            str(held_out(data)),
        )
        run = self.lab.submit(self.who, exp, "--profile", profile, "--time", "55", *inputs, *words)
        assert run.wait_end(seconds=3000)["class"] == "done", run.story()
        return run

    def note(self, method: str, run: Run, held: str, told: str = "loss") -> None:
        result, first, last = run.read("report.json")["result"], *self.ends(run, told)
        self.table.append(
            {
                "method": method, "nodes": len(run.read("attempts", "0", "start.json")["hosts"]), "steps": result["steps"],
                "loss": f"{'' if told == 'loss' else told + ' '}{first:.3f} → {last:.3f}", "held_out": held, "seconds": round(result["seconds"]),
            }
        )  # fmt: skip

    def rises(self, method: str, run: Run, model: Path, *, by: float, told: str = "loss") -> None:
        """The run's adapter answers more held-out sums than the model it began with, and its loss fell where it is one."""
        before, after = self.asked(model), self.asked(model, run.paths.attempt(0).out / "final")
        self.note(method, run, f"exact match {before:.2f} → {after:.2f}", told)
        first, last = self.ends(run, told)
        assert last < first / 2 or told != "loss"
        assert after >= before + by

    @staticmethod
    def first(run: Run, name: str) -> float:
        text = (run.paths.attempt(0).out / "metrics.jsonl").read_text("utf-8")
        return next(float(row[name]) for row in map(json.loads, text.splitlines()) if name in row)

    @staticmethod
    def ends(run: Run, name: str) -> tuple[float, float]:
        """Mean of a metric over the first and over the last five steps."""
        text = (run.paths.attempt(0).out / "metrics.jsonl").read_text("utf-8")
        values = [row[name] for row in map(json.loads, text.splitlines()) if name in row]
        return fmean(values[:5]), fmean(values[-5:])

    def asked(self, model: Path, adapter: Path | None = None) -> float:
        """Exact match on held-out sums, by plain transformers and peft."""
        if adapter is None and str(model) in self.exact:
            return self.exact[str(model)]
        words = [model, held_out(rows(self.lab, "answer")), "--rows", str(HELD_OUT), "--json"]
        words += ["--adapter", adapter] if adapter else []
        done = self.lab.as_user(ROOT, "python", "-m", "tuneplane.training.answers", *words, cwd=CWD, seconds=900)
        said = float(done.json["exact_match"])
        if adapter is None:
            self.exact[str(model)] = said
        return said

    def merged(self, run: Run, name: str, model: Path) -> Path:
        """The run's adapter in its model, as a folder of its own."""
        out = self.lab.root.cache / "models" / name
        script = (
            "import sys; from peft import PeftModel; from transformers import AutoModelForCausalLM as M, AutoTokenizer as T; b, a, o = sys.argv[1:];"
            "PeftModel.from_pretrained(M.from_pretrained(b, dtype='float32'), a).merge_and_unload().save_pretrained(o);"
            "T.from_pretrained(b).save_pretrained(o)"
        )
        self.lab.as_user(ROOT, "python", "-c", script, model, run.paths.attempt(0).out / "final", out, cwd=CWD)
        self.lab.as_user(ROOT, "chmod", "-R", "a+rX", out, cwd=CWD)
        return out


@pytest.fixture(scope="module")
def bench(real: Lab, alice: Person, table: list[dict[str, Any]]) -> Bench:
    return Bench(real, alice, table)


@pytest.fixture(scope="module")
def taught(bench: Bench) -> Path:
    """The model after deepspeed/sft on four nodes, and the check of that."""
    run = bench.train("deepspeed/sft", "answer", profile="four", max_steps=80, micro_batch_size=2)
    bench.rises("deepspeed/sft", run, base(bench.lab), by=0.4)
    return bench.merged(run, "taught", base(bench.lab))


@pytest.fixture(scope="module")
def beginner(bench: Bench) -> Path:
    """A model that gets some sums right: where learning from rewards can begin."""
    run = bench.train("deepspeed/sft", "answer", max_steps=8, micro_batch_size=4)
    return bench.merged(run, "beginner", base(bench.lab))


def test_sft_on_four_nodes(taught: Path) -> None:
    assert (taught / "model.safetensors").stat().st_size > 400_000_000


def test_trl_sft(bench: Bench) -> None:
    run = bench.train("trl/sft", "answer", max_steps=30, micro_batch_size=4)
    bench.rises("trl/sft", run, base(bench.lab), by=0.3)


def test_distill(bench: Bench, taught: Path) -> None:
    run = bench.train("deepspeed/distill", "answer", max_steps=60, micro_batch_size=4, teacher=taught)
    bench.rises("deepspeed/distill", run, base(bench.lab), by=0.3)


@pytest.mark.parametrize("family", ["deepspeed", "trl"])
@pytest.mark.parametrize(
    ("method", "form", "settings"),
    [
        ("dpo", "preference", NUDGE),
        ("kto", "judged", NUDGE | {"micro_batch_size": 4, "max_steps": 40, "eval_steps": 10}),
        ("rm", "far", NUDGE | {"max_steps": 12, "learning_rate": 0.001, "eval_steps": 1}),
    ],
)
def test_pairs(bench: Bench, family: str, method: str, form: str, settings: dict[str, Any]) -> None:
    run = bench.train(f"{family}/{method}", form, **settings)
    early, late = bench.first(run, "validation_accuracy"), run.read("report.json")["result"]["validation_accuracy"]
    bench.note(f"{family}/{method}", run, f"pair accuracy {early:.2f} → {late:.2f}")
    first, last = bench.ends(run, "loss")
    assert last < first
    assert late > max(early, 0.65)


@pytest.mark.parametrize(("family", "more"), [("deepspeed", {"num_iterations": 2}), ("trl", {})])
def test_grpo(bench: Bench, beginner: Path, family: str, more: dict[str, int]) -> None:
    """Eight answers to each question, two updates of each batch where the trainer can do that."""
    drawing = {
        "max_completion_length": 8,
        "num_generations": 8,
        "micro_batch_size": 16,
        "gradient_accumulation": 1,
        **more,
    }
    run = bench.train(f"{family}/grpo", "prompt", model=beginner, max_steps=40, learning_rate=0.0005, **drawing)
    bench.rises(f"{family}/grpo", run, beginner, by=0.1, told="reward")
    first, last = bench.ends(run, "reward")
    assert last > first
