"""One `tp submit`: train, export, evaluate base and candidate, judge, and promote or not. On the real cluster, in the SIF, on two nodes."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from lab import Lab, Person, Run
from labcluster import until
from tuneplane.contract.layout import RunPaths

pytestmark = [pytest.mark.cluster, pytest.mark.train, pytest.mark.timeout(600)]

CONFIG = """\
lifecycle: {{on_success: [export, eval]}}
eval:
  suites: [behaviour]
  baseline: base
  gates: [{{metric: behaviour/exact_match, {bound}}}, {{metric: behaviour/score, max_regression: 0}}]
behaviour: {{max_new_tokens: 4, batch_size: 8}}
"""
CURVE = """\
eval:
  on_checkpoint: {every_steps: 2, suites: [behaviour], limit: 4}
behaviour: {max_new_tokens: 4, batch_size: 8}
"""
WAITS = """\
    inner = method.step
    def step(engine, number, rate):
        while number == 5 and warning.given() is None:
            job.watchdog.beat("waiting for the stop", 600)
            __import__("time").sleep(0.1)
        return inner(engine, number, rate)
    method.step = step
    progress = loop.run(resumed)
"""
"""A training that goes on with step 5 when it is stopped."""
LEARNT = {
    "max_steps": 120, "save_steps": 0, "seed": 5, "max_length": 64, "zero_stage": 1, "micro_batch_size": 4, "learning_rate": 0.004,
    "log_steps": 20,
}  # fmt: skip


@dataclass
class Judged:
    """A training with all that follows it."""

    run: Run
    export: Run
    evaluation: Run

    def finished(self) -> Judged:
        for one in (self.run, self.export, self.evaluation):
            assert one.wait_end()["class"] == "done", one.story()
        return self


class Trainings:
    """`good` learns eight sums by heart and keeps its gates; `planted` is an adapter with a bound that nobody keeps; `failed` cannot train;
    `curve` has its checkpoints evaluated, and never comes to the last."""

    def __init__(self, lab: Lab, who: Person) -> None:
        self.lab, self.who = lab, who
        rows = lab.root.cache / "eight.jsonl"
        with open(lab.root.cache / "sums.jsonl", encoding="utf-8") as stream:
            rows.write_text("".join(list(stream)[:8]), "utf-8")
        self.rows = str(rows)
        self._experiment("good", CONFIG.format(bound="min: 0.7"))
        self._experiment("planted", CONFIG.format(bound="max: -1"))
        program = self._experiment("watched", CURVE) / "train.py"
        text = program.read_text("utf-8")
        assert text.count("    progress = loop.run(resumed)\n") == 1
        program.write_text(text.replace("    progress = loop.run(resumed)\n", WAITS), "utf-8")
        lab.sh(who, "git add -A && git commit -q -m 'Two experiments with gates'")
        self.curve = self._submit("watched", lora_rank=0, max_steps=6, save_steps=2, keep_checkpoints=1)
        self.failed = self._submit("sums", lora_rank=0, max_length=8, then=("--then", "export"))
        self.good = Judged(*self._submit("good", lora_rank=0))
        self.planted = Judged(*self._submit("planted", lora_rank=8, max_steps=10))

    def _experiment(self, name: str, config: str) -> Path:
        self.lab.tp(self.who, "new", name, "--from", "sums")
        path = self.lab.project(self.who) / "experiments" / name / "config.yaml"
        path.write_text(path.read_text("utf-8") + config, "utf-8")
        return path.parent

    def _submit(self, exp: str, *, then: tuple[str, ...] = (), **settings: Any) -> list[Run]:
        flags = [
            "--model",
            str(self.lab.root.cache / "models" / "tiny"),
            "--train-data",
            self.rows,
            "--validation-data",
            self.rows,
        ]
        flags += [w for name, value in (LEARNT | settings).items() for w in ("--set", f"{name}={value}")]
        said = self.lab.tp(self.who, "submit", exp, "--profile", "cpu", *flags, *then, "--json").json
        followed = [self._run(said["owner"], one) for one in said["followups"]]
        return [Run(self.lab, RunPaths(Path(said["run_dir"])), said["job_id"]), *followed]

    def _run(self, owner: str, one: dict[str, Any]) -> Run:
        assert one["job_id"], one["fault"]
        return Run(self.lab, self.lab.root.run(owner, one["exp"], one["run_id"]), one["job_id"])


@pytest.fixture(scope="module")
def trainings(lab: Lab, alice: Person) -> Trainings:
    return Trainings(lab, alice)


def status(lab: Lab, who: Person, run: Run) -> dict[str, Any]:
    found: dict[str, Any] = lab.tp(who, "job", "status", run.id, "--json").json["runs"][0]
    return found


def test_checkpoints_are_evaluated_while_the_run_goes_on_and_what_never_comes_is_cancelled(
    lab: Lab, alice: Person, trainings: Trainings
) -> None:
    run, evaluations = trainings.curve
    elements = [evaluations.paths.element(n) for n in range(3)]
    until("steps 2 and 4 are evaluated", lambda: all(e.report.exists() for e in elements[:2]), seconds=300)
    assert status(lab, alice, run)["state"] == "running"
    last = lab.tp(alice, "eval", "ls", run.id, "--json").json["checkpoints"]["steps"][2]
    assert (last["step"], last["state"], last["held"]) == (6, "queued", True)
    lab.tp(alice, "job", "stop", run.id)
    assert run.wait_end()["class"] == "cancelled", run.story()
    until(
        "the last is cancelled",
        lambda: not lab.cluster.job_state(f"{evaluations.job_id}_2").startswith("PEND"),
        seconds=60,
    )
    rows = lab.tp(alice, "eval", "ls", run.id, "--json").json["checkpoints"]["steps"]
    assert [(r["step"], r["state"], r["mark"]) for r in rows] == [
        (2, "done", "released"),
        (4, "done", "released"),
        (6, "cancelled", "cancelled"),
    ]
    assert [(r["tier"], set(r["metrics"]) >= {"score", "exact_match"}) for r in rows[:2]] == [("screening", True)] * 2
    for step, element in zip((2, 4), elements, strict=False):
        late = json.loads((element.attempt(0).root / "late.json").read_text("utf-8"))["inputs"]["candidate"]
        assert (late["run_id"], late["step"]) == (run.id, step)
        assert sorted(p.name for p in element.attempt(0).out.iterdir() if p.name.startswith(".")) == []
    # Step 2 was kept for its evaluation beside the one newest that stays; both went when they had been read.
    assert [p.name for p in sorted(run.paths.checkpoints.glob("step-*"))] == ["step-000000005"]
    found = lab.tp(alice, "runs", "audit", evaluations.id, "--json", code=None).json
    assert [f for f in found["findings"] if f["level"] == "tampered"] == []


def test_a_run_that_keeps_its_gates_is_exported_evaluated_and_promoted(
    lab: Lab, alice: Person, trainings: Trainings
) -> None:
    good = trainings.good.finished()
    exported, result = good.export.read("report.json"), good.evaluation.read("report.json")["result"]
    assert exported["late_inputs"]["candidate"]["run_id"] == good.run.id
    assert exported["result"]["artefact"]["logits"]["files"] == 0.0
    assert result["metrics"]["exact_match"] > 0.7
    assert result["baseline"]["exact_match"] == 0.0
    found = status(lab, alice, good.run)
    assert [(f["action"], f["run_id"], f["state"]) for f in found["followups"]] == [
        ("export", good.export.id, "done"), ("eval", good.evaluation.id, "done"),
    ]  # fmt: skip
    assert (found["gates"]["verdict"], found["gates"]["evaluation"]) == ("passed", good.evaluation.id)
    for run in (good.run, good.export, good.evaluation):
        assert lab.tp(alice, "runs", "audit", run.id, "--json").json["verdict"] == "verified"
        assert lab.tp(alice, "again", run.id, "--json").json["verdict"] == "identical"
    registered = lab.tp(alice, "model", "register", good.run.id, "adder", "1.0", "--json").json
    assert registered["lineage"]["export"]["run_id"] == good.export.id
    promoted = lab.tp(alice, "model", "promote", "tpalice/adder@1.0", "--to", "production", "--json").json
    assert (promoted["version"], [v["verdict"] for v in promoted["verdicts"]]) == ("1.0", ["passed"])


def test_the_export_answers_in_plain_transformers(lab: Lab, trainings: Trainings) -> None:
    model = trainings.good.finished().export.paths.attempt(0).out / "export/model"
    program = (
        "import sys; from transformers import AutoModelForCausalLM as M, AutoTokenizer as T; t = T.from_pretrained(sys.argv[1]);"
        "m = M.from_pretrained(sys.argv[1]); row = __import__('json').loads(open(sys.argv[2]).readline())['messages'];"
        "ids = t.apply_chat_template(row[:-1], add_generation_prompt=True, return_tensors='pt', return_dict=True);"
        "out = m.generate(**ids, max_new_tokens=4, do_sample=False)[0][ids['input_ids'].shape[1]:];"
        "print(t.decode(out, skip_special_tokens=True).strip(), row[-1]['content'])"
    )
    sif = lab.root.path / json.loads((trainings.good.run.paths.launch).read_text())["runtime"]["sif"]
    command = [
        shutil.which("apptainer"),
        "exec",
        "--bind",
        str(lab.root.path),
        sif,
        "python3",
        "-c",
        program,
        model,
        trainings.rows,
    ]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=True, timeout=120)
    answer, expected = done.stdout.split()
    assert answer == expected


def test_a_planted_gate_fails_and_promotion_is_refused(lab: Lab, alice: Person, trainings: Trainings) -> None:
    planted = trainings.planted.finished()
    result = planted.export.read("report.json")["result"]
    assert (result["artefact"]["merged"], result["gguf"]["state"]) == (True, "absent")
    assert 0.0 <= result["artefact"]["logits"]["merge"] < 1e-5
    gates = status(lab, alice, planted.run)["gates"]
    assert (gates["verdict"], [g["passed"] for g in gates["gates"]]) == ("failed", [False, True])
    lab.tp(alice, "model", "register", planted.run.id, "adder-b", "1.0")
    refused = lab.tp(alice, "model", "promote", "tpalice/adder-b@1.0", "--to", "production", "--json", code=1)
    assert refused.codes == ["E-MODEL-050"]
    words = ("--to", "staging", "--override-gates", "only to look at", "--json")
    kept = lab.tp(alice, "model", "promote", "tpalice/adder-b@1.0", *words).json["verdicts"]
    assert [(v["verdict"], v["overridden"]) for v in kept] == [("failed", "only to look at")]


def test_p15_what_waits_for_a_failed_run_is_ended_by_slurm_and_says_why(
    lab: Lab, alice: Person, trainings: Trainings
) -> None:
    run, export = trainings.failed
    assert run.wait_end()["class"] == "error"
    until(
        "Slurm ends the export",
        lambda: lab.cluster.job_state(export.job_id) not in ("PENDING", "CONFIGURING"),
        seconds=60,
    )
    until("the export is cancelled", lambda: status(lab, alice, export)["state"] == "cancelled", seconds=90)
    assert export.attempts() == []
    why = lab.tp(alice, "job", "why", export.id, "--json").json
    assert (why["follows"]["run_id"], why["follows"]["state"]) == (run.id, "error")
    again = lab.tp(alice, "job", "retry", run.id, "--json").json
    assert [(f["run_id"], f["fault"]) for f in again["followups"]] == [(export.id, None)]
    script = (export.paths.batch / "1.sh").read_text("utf-8")
    assert f"#SBATCH --dependency=afterok:{again['job_id']}\n" in script
    stopped = lab.tp(alice, "job", "stop", run.id, "--json", code=None)
    if stopped.code == 0:
        assert [line.split()[1].rstrip(":") for line in stopped.json["followups"]] == [export.id]
