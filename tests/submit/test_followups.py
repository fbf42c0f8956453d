"""What follows a run: on the local fleet with a recipe that needs no framework, and what Slurm and admission are told."""

from __future__ import annotations

import getpass
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tuneplane.contract.layout import RunPaths

TP = Path(sys.executable).parent / "tp"
GIT = {f"GIT_{who}_{what}": "t@example.invalid" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
sys.path.insert(0, str(Path(__file__).parents[1] / "sif"))

RECIPE = """\
name: maker
version: "1.0.0"
contract_version: "1.0.0"
framework: toy
template: template
adapter_options: {observability: platform, orchestrator: process-group}
entrypoint: {kind: experiment, value: train.py}
lifecycle:
  export: {kind: file, value: export.py}
  eval: {kind: module, value: tuneplane.evaluation}
lifecycle_resources: {export: 1, eval: 1}
metrics: {primary: [], aliases: {}}
artifacts: {version: tuneplane/artifacts/v1, exports: [final, export]}
validation: {sample_kind: none, reward_semantics: none}
runtime:
  default_version: "1.0.0"
  versions:
    "1.0.0": {runtime_id: general-1, deployment_artifact: true}
params: {}
"""
TRAIN = """\
import os, pathlib, time
time.sleep(float((pathlib.Path(os.environ["TUNEPLANE_EXP_DIR"]) / "seconds").read_text()))
if os.path.exists("unlucky") and os.environ["TUNEPLANE_ATTEMPT"] == "0":
    raise SystemExit("no luck today")
if os.environ["RANK"] != "0":
    raise SystemExit
final = pathlib.Path(os.environ["TUNEPLANE_OUT_DIR"]) / "final"
final.mkdir()
(final / "weights").write_text("trained")
"""
EXPORT = """\
import os, pathlib
made = pathlib.Path(os.environ["TUNEPLANE_OUT_DIR"]) / "export" / "model"
made.mkdir(parents=True)
(made / "weights").write_text((pathlib.Path(os.environ["TUNEPLANE_CANDIDATE_PATH"]) / "weights").read_text() + ", exported")
"""


class Lab:
    """A storage root with the recipe, and a project; each test works in an experiment of its own, `exp`."""

    exp = ""

    def __init__(self, folder: Path) -> None:
        self.storage, self.project = folder / "storage", folder / "lab"
        self.env = {
            "PATH": os.environ["PATH"], "HOME": str(folder), "LC_ALL": "C.UTF-8", "TUNEPLANE_STORAGE_ROOT": str(self.storage), **GIT,
        }  # fmt: skip
        self.tp("site", "init", str(self.storage), "--name", "lab", "--fleet", "local")
        template = self.storage / "registry/recipes/toy/maker/template"
        template.mkdir(parents=True)
        (template.parent / "recipe.yaml").write_text(RECIPE)
        (template / "train.py").write_text(TRAIN)
        (template / "export.py").write_text(EXPORT)
        self.tp("init", str(self.project), "--name", "lab")

    def begin(self, exp: str) -> Lab:
        self.exp = exp
        self.tp("new", exp, "--method", "toy/maker")
        self.write("seconds", "0")
        return self

    def tp(self, *words: str, ok: bool = True) -> subprocess.CompletedProcess[str]:
        cwd = self.project if self.project.exists() else self.storage.parent
        done = subprocess.run(
            [TP, *words], cwd=cwd, env=self.env, text=True, capture_output=True, timeout=120, check=False
        )
        assert not ok or done.returncode == 0, done.stdout + done.stderr
        return done

    def json(self, *words: str, ok: bool = True) -> Any:
        return json.loads(self.tp(*words, "--json", ok=ok).stdout)

    def write(self, name: str, text: str) -> None:
        (self.project / "experiments" / self.exp / name).write_text(text)
        for words in (("add", "-A"), ("commit", "-q", "--allow-empty", "-m", "x")):
            subprocess.run(["git", *words], cwd=self.project, env=self.env, check=True, capture_output=True)

    def refused(self, *words: str) -> list[tuple[str, str]]:
        done = self.tp("submit", self.exp, "--json", *words, ok=False)
        assert done.returncode == 1, done.stdout + done.stderr
        return [(e["code"], e["field"]) for e in json.loads(done.stdout)["errors"]]

    def run(self, followed: dict[str, Any]) -> RunPaths:
        return RunPaths(self.storage / "runs" / getpass.getuser() / followed["exp"] / followed["run_id"])

    def end(self, run: RunPaths, attempt: int = 0) -> dict[str, Any]:
        for _ in range(1200):
            if run.attempt(attempt).end.exists() and not self.open(run, attempt):
                value: dict[str, Any] = json.loads(run.attempt(attempt).end.read_text())
                return value
            time.sleep(0.05)
        raise AssertionError(f"{run.root} attempt {attempt} never ended")

    @staticmethod
    def open(run: RunPaths, attempt: int) -> bool:
        return not (run.events / f"batch-{attempt}.jsonl").exists()

    def status(self, run_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.json("job", "status", run_id)["runs"][0]
        return found


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("followups"))


@pytest.fixture
def lab(shared: Lab) -> Lab:
    return shared.begin(f"job{len(list((shared.project / 'experiments').iterdir()))}")


def test_an_export_waits_for_its_run_and_works_on_what_that_run_recorded(lab: Lab) -> None:
    lab.write("seconds", "3")
    done = lab.json("submit", lab.exp, "--then", "export")
    (followed,) = done["followups"]
    parent, child = lab.run(done), lab.run(followed)
    assert (followed["action"], followed["after"], followed["exp"]) == ("export", done["run_id"], f"{lab.exp}.export")
    waiting = lab.status(done["run_id"])
    assert (waiting["gates"], [f["run_id"] for f in waiting["followups"]]) == (None, [child.run_id])
    assert waiting["followups"][0]["message"] == f"waits for {done['run_id']} to end"
    assert not child.attempt(0).root.exists()
    assert lab.end(child)["class"] == "done"
    assert (child.attempt(0).out / "export/model/weights").read_text() == "trained, exported"
    begun, ended = (json.loads(p.read_text()) for p in (child.attempt(0).start, parent.attempt(0).end))
    assert begun["started_at"] >= ended["ended_at"]
    late = json.loads((child.attempt(0).root / "late.json").read_text())["inputs"]["candidate"]
    assert (late["run_id"], [f["path"] for f in late["files"]]) == (parent.run_id, ["weights"])
    assert json.loads(child.report.read_text())["follows"]["package_digest"] == late_digest(parent)
    assert lab.status(child.run_id)["follows"]["state"] == "done"
    assert [lab.json("runs", "audit", r.run_id)["verdict"] for r in (parent, child)] == ["verified"] * 2
    assert lab.json("again", child.run_id)["verdict"] == "identical"

    by_hand = lab.json("model", "export", parent.run_id)
    assert (lab.end(lab.run(by_hand))["class"], by_hand["after"]) == ("done", parent.run_id)
    (parent.attempt(0).out / "final/weights").write_text("changed")
    tampered = lab.json("model", "export", parent.run_id)
    assert lab.end(lab.run(tampered))["message"].startswith("E-JOB-052 input candidate: ")
    parent.report.chmod(0o644)
    parent.report.write_text(parent.report.read_text().replace('"done"', '"done" '))
    findings = lab.json("runs", "audit", child.run_id, ok=False)["findings"]
    assert any(f["check"] == "late inputs" and f["level"] == "tampered" for f in findings)


def late_digest(run: RunPaths) -> str:
    digest: str = json.loads(run.admission.read_text())["package_digest"]
    return digest


def test_p15_a_run_that_fails_leaves_followups_that_say_so_and_a_retry_brings_them_back(lab: Lab) -> None:
    lab.write("unlucky", "")
    done = lab.json("submit", lab.exp, "--then", "export", "--requeue-on", "none")
    child = lab.run(done["followups"][0])
    end = lab.end(child)
    assert end["class"] == "refused"
    assert "E-JOB-051" in end["message"]
    why = lab.json("job", "why", child.run_id)
    assert (why["follows"]["run_id"], why["follows"]["state"]) == (done["run_id"], "error")
    alone = lab.json("job", "retry", child.run_id, ok=False)["errors"][0]
    assert (alone["code"], alone["hint"].split("`")[1]) == ("E-SUBMIT-063", f"tp job retry {done['run_id']}")
    again = lab.json("job", "retry", done["run_id"])
    assert [(f["action"], f["run_id"], f["fault"]) for f in again["followups"]] == [("export", child.run_id, None)]
    assert lab.end(lab.run(done), 1)["class"] == "done"
    assert lab.end(child, 1)["class"] == "done"


def test_stopping_a_run_stops_what_waits_for_it_and_says_so(lab: Lab) -> None:
    lab.write("seconds", "60")
    done = lab.json("submit", lab.exp, "--then", "export")
    child = lab.run(done["followups"][0])
    for _ in range(400):
        if lab.run(done).attempt(0).start.exists():
            break
        time.sleep(0.05)
    (said,) = lab.json("job", "stop", done["run_id"])["followups"]
    assert said.startswith(f"export {child.run_id}: process ")
    assert lab.end(lab.run(done))["class"] == "cancelled"
    for _ in range(100):
        if (state := lab.status(child.run_id))["state"] == "cancelled":
            break
        time.sleep(0.1)
    assert (state["state"], state["message"]) == ("cancelled", f"stopped while it waited for {done['run_id']}")


def test_what_cannot_follow_is_refused_before_anything_is_written(lab: Lab) -> None:
    def config(text: str) -> None:
        lab.write("config.yaml", text)

    evaluation = "eval: {{suites: [{}], {}}}\n"
    config(evaluation.format("gsm8k", ""))
    assert lab.refused() == [("E-SUBMIT-096", "spec.evaluation.suites")]
    gates = "gates: [{metric: bleu, min: 0.1}, {metric: exact_match, min: 60}, {metric: tokens, max: 60}]"
    config(evaluation.format("behaviour", gates))
    assert lab.refused() == [
        ("E-SUBMIT-061", "spec.data.validation"), ("E-EVAL-064", "spec.evaluation.gates[0].metric"),
        ("E-EVAL-065", "spec.evaluation.gates[1].min"),
    ]  # fmt: skip
    config(evaluation.format("behaviour", "on_checkpoint: {every_steps: 100}"))
    assert ("E-SUBMIT-098", "spec.evaluation.on_checkpoint") in lab.refused()
    config(evaluation.format("behaviour", "gates: [{metric: score, max_regression: 0.02}]"))
    assert ("E-SUBMIT-096", "spec.evaluation.baseline") in lab.refused()
    config("behaviour: {max_new_tokns: 8, max_new_tokens: many}\n")
    assert lab.refused("--dry-run") == [
        ("E-PROJECT-015", "config.yaml: behaviour.max_new_tokns"), ("E-CATALOG-012", "spec.hyperparams.max_new_tokens"),
    ]  # fmt: skip
    config("")
    assert lab.refused("--then", "export", "--then", "eval") == [("E-SUBMIT-061", "spec.data.validation")]
    lab.tp("new", "own", "--method", "custom/custom")
    lab.write("../own/train.sh", "true\n")
    errors = lab.json("submit", "own", "--then", "export", ok=False)["errors"]
    assert [(e["code"], e["found"], e["allowed"]) for e in errors] == [("E-SUBMIT-095", "export", "nothing")]
    assert not [*(lab.storage / "runs").glob(f"*/{lab.exp}*/run-*"), *(lab.storage / "runs").glob("*/own*/run-*")]


def test_a_baseline_that_could_only_fail_after_the_training_is_refused_before_it(lab: Lab) -> None:
    lab.write("held.jsonl", '{"prompt": "1+1", "completion": "2"}\n')
    rows = ("--validation-data", str(lab.project / "experiments" / lab.exp / "held.jsonl"))
    lab.tp("new", "bare", "--method", "custom/custom")
    lab.write("../bare/train.sh", "true\n")
    bare = lab.json("submit", "bare")
    assert lab.end(lab.run(bare))["class"] == "done"
    lab.write("seconds", "60")
    going = lab.json("submit", lab.exp, "--then", "export")
    before = sorted((lab.storage / "runs").glob("*/*/run-*"))
    for named, code in (
        (f"run/{going['followups'][0]['run_id']}", "E-SUBMIT-096"),
        (f"run/{going['run_id']}", "E-SUBMIT-096"),
        (f"run/{bare['run_id']}", "E-SUBMIT-096"),
        ("someword", "E-SPEC-026"),
    ):
        lab.write("config.yaml", f"eval: {{suites: [behaviour], baseline: {named}}}\n")
        for words in (rows, (*rows, "--dry-run")):
            assert lab.refused(*words) == [(code, "spec.evaluation.baseline")]
    lab.tp("job", "stop", going["run_id"])
    assert sorted((lab.storage / "runs").glob("*/*/run-*")) == before


FORGED: dict[str, Callable[[dict[str, Any], dict[str, Any]], object]] = {
    "spec": lambda spec, launch: spec["spec"]["resources"]["pools"][0].update(nodes=4),
    "launch.late": lambda spec, launch: launch["late"]["candidate"].update(artefact="export"),
    "launch.follows": lambda spec, launch: launch["follows"].update(run_id="run-00000000"),
    "launch.follows.asked": lambda spec, launch: launch["follows"].update(asked={"suites": ["x"]}),
    "launch.env": lambda spec, launch: launch.update(env={"X": "1"}),
}


def test_a_package_that_only_claims_to_follow_a_run_is_not_admitted(lab: Lab) -> None:
    from hpc.submit.package import write_package

    done = lab.json("submit", lab.exp, "--then", "export")
    child = lab.run(done["followups"][0])
    lab.tp("admit", "--check", str(child.work))
    spec, launch, recipe = (json.loads(p.read_text()) for p in (child.jobspec, child.launch, child.recipe))
    for number, (field, forge) in enumerate(FORGED.items()):
        own = RunPaths(child.root.with_name(f"run-0000000{number}"))
        forged_spec, forged = (
            json.loads(json.dumps(spec)),
            json.loads(json.dumps(launch).replace(child.run_id, own.run_id)),
        )
        forge(forged_spec, forged)
        records = {"jobspec.json": forged_spec, "launch.json": forged, "recipe.json": recipe}
        write_package(own, [], records, max_bytes=1 << 20, created_at="")
        errors = lab.json("admit", "--check", str(own.work), ok=False)["errors"]
        assert field in [e["field"] for e in errors if e["code"] == "E-SUBMIT-097"], (field, errors)
    lab.end(child)


class TestOnSlurm:
    """Last: with its runtime registered, the local fleet would take the container, too."""

    @pytest.fixture
    def slurm(self, lab: Lab, make_fake_slurm: Callable[..., Any]) -> Iterator[Any]:
        from sifs import small_sif

        fake, site = make_fake_slurm(), lab.storage / "site/site.yaml"
        before = site.read_text()
        text = before.replace(
            "  local: {kind: local}",
            f'  local: {{kind: local}}\n  batch: {{kind: slurm, bin_dir: "{fake.bin}", conf: "{fake.conf}"}}',
        )
        shape = "  h200: {fleet: batch, series: h200, nodes: 2, gpus_per_node: 8, cpus_per_gpu: 2, gres_type: h200}\n"
        site.write_text(text.replace("profiles:\n", f"profiles:\n{shape}", 1))
        small_sif(lab.storage.parent / "general.sif")
        lab.tp("site", "check")
        if "general-1" not in lab.tp("runtime", "ls").stdout:
            lab.tp("runtime", "add", "general-1", str(lab.storage.parent / "general.sif"), "--copy")
        yield fake
        site.write_text(before)

    def test_p15_the_job_waits_for_success_and_dies_without_it_with_one_gpu_beyond_no_quota(
        self, lab: Lab, slurm: Any
    ) -> None:
        done = lab.json("submit", lab.exp, "--then", "export", "--profile", "h200:16", "--time", "30", "--qos", "high")
        child = lab.run(done["followups"][0])
        script = (child.batch / "0.sh").read_text()
        for line in (f"--dependency=afterok:{done['job_id']}", "--kill-on-invalid-dep=yes", "--nodes=1", "--gres=gpu:h200:1",
                     "--cpus-per-task=2", "--qos=high", "--time=00:30:00"):  # fmt: skip
            assert f"#SBATCH {line}\n" in script
        assert "--dependency" not in (lab.run(done).batch / "0.sh").read_text()
        assert lab.json("again", child.run_id)["verdict"] == "identical"
        again = lab.refused("--then", "export", "--profile", "h200:8", "--array", "0-3")
        assert ("E-SUBMIT-095", "spec.slurm.array") in again

    def test_a_followup_that_slurm_refuses_leaves_the_run_submitted_and_is_named(self, lab: Lab, slurm: Any) -> None:
        slurm.faults("sbatch#2+ fail dependency")
        done = lab.tp("submit", lab.exp, "--then", "export", "--profile", "h200:8", "--json")
        value = json.loads(done.stdout)
        (followed,) = value["followups"]
        assert (value["job_id"].isdigit(), followed["job_id"]) == (True, None)
        assert f"export {followed['run_id']} was not submitted" in done.stderr
        slurm.faults("")
        retried = lab.json("job", "retry", followed["run_id"])
        assert f"afterok:{value['job_id']}" in (lab.run(followed).batch / "1.sh").read_text()
        assert retried["job_id"] != value["job_id"]

    def test_evaluations_of_checkpoints_are_one_held_array_that_the_runs_own_script_knows(
        self, lab: Lab, slurm: Any
    ) -> None:
        if "deepspeed-0.19.8" not in lab.tp("runtime", "ls").stdout:
            lab.tp("runtime", "add", "deepspeed-0.19.8", str(lab.storage.parent / "general.sif"), "--copy")
        exp = f"{lab.exp}c"
        lab.tp("new", exp, "--method", "deepspeed/sft")
        model, rows = lab.storage.parent / "model", lab.storage.parent / "rows.jsonl"
        model.mkdir()
        for name in ("config.json", "model.safetensors"):
            (model / name).write_text("{}")
        rows.write_text('{"prompt": "1+1", "completion": "2"}\n')
        config = f"eval: {{on_checkpoint: {{every_steps: 20, suites: [behaviour]}}}}\nmodel: {{base: {model}}}\n"
        config += f"data: {{train: {{path: {rows}}}, validation: {{path: {rows}}}}}\n"
        lab.write(f"../{exp}/config.yaml", config)
        words = (exp, "--profile", "h200:8", "--set", "max_steps=60", "--set", "save_steps=10")
        done = lab.json("submit", *words)
        (followed,) = done["followups"]
        run, child = lab.run(done), lab.run(followed)
        assert (followed["action"], followed["exp"], followed["after"]) == (
            "checkpoints",
            f"{exp}.checkpoints",
            run.run_id,
        )
        own, beside = (run.batch / "0.sh").read_text(), (child.batch / "0.sh").read_text()
        assert f"export TP_EVALUATIONS_DIR={child.root}\n" in own
        assert "export TP_EVALUATED_STEPS='20 40 60'\n" in own
        assert "#SBATCH --hold\n" not in own
        assert {"#SBATCH --hold", "#SBATCH --array=0-2%1", "#SBATCH --nodes=1", "#SBATCH --gres=gpu:h200:1"} <= set(
            beside.splitlines()
        )
        assert "EVALUATED" not in beside
        assert "--dependency" not in beside
        assert [lab.json("again", r.run_id)["verdict"] for r in (run, child)] == ["identical", "identical"]
        listed = lab.json("eval", "ls", exp)["checkpoints"]
        assert (listed["run_id"], [s["step"] for s in listed["steps"]]) == (child.run_id, [20, 40, 60])
        assert lab.json("eval", "ls", child.run_id)["checkpoints"] == listed
        # A run that never began can let nobody go: what waits for it is stopped with it, and a retry brings both back.
        assert lab.json("job", "stop", run.run_id)["followups"] == [
            f"checkpoints {child.run_id}: job {followed['job_id']} is cancelled"
        ]
        again = lab.json("job", "retry", run.run_id)
        assert [(f["action"], f["run_id"], f["fault"]) for f in again["followups"]] == [
            ("checkpoints", child.run_id, None)
        ]
        assert "export TP_EVALUATED_STEPS='20 40 60'\n" in (run.batch / "1.sh").read_text()
        assert "#SBATCH --hold\n" in (child.batch / "1000.sh").read_text()
