"""Evaluations of checkpoints: what may be asked for, the array that is derived, and the script that lets it go, against a Slurm that is not there."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tuneplane.contract.checkpointed import marks_of
from tuneplane.contract.layout import RunPaths, StorageRoot

from hpc.catalog.shelf import Catalogue
from hpc.errors import Refusal
from hpc.spec.jobspec import parse
from hpc.submit import checkpointed, template
from hpc.submit.followups import EVALUATOR, derive
from tests.submit.test_followups_derived import CHILD, RUN, document, parent

STEPS = {"max_steps": 100, "save_steps": 10}


def spec(hyperparams: dict[str, Any] | None = None, **at: Any) -> dict[str, Any]:
    wanted = {"every_steps": 20, **at}
    evaluation = {
        "suites": ["behaviour"],
        "baseline": "base",
        "gates": [{"metric": "behaviour/score", "min": 0.5}],
        "on_checkpoint": wanted,
    }
    return document(evaluation=evaluation, hyperparams={**STEPS, **(hyperparams or {})})


def faults(value: dict[str, Any], recipe: str = "deepspeed/sft", kind: str = "slurm", **options: Any) -> list[Refusal]:
    found = Catalogue.shipped().get(recipe)
    return checkpointed.refusals(parse(value), found, options, fleet="cluster", kind=kind)


def test_the_steps_are_those_that_checkpoints_have_up_to_the_last() -> None:
    assert faults(spec()) == []
    assert checkpointed.steps_of({"every_steps": 20}, STEPS) == [20, 40, 60, 80, 100]
    assert checkpointed.steps_of({"every_steps": 30, "warmup_steps": 31}, STEPS) == [60, 90]
    assert checkpointed.array_of([20]) == "0"
    assert checkpointed.array_of([20, 40, 60]) == "0-2%1"


@pytest.mark.parametrize(
    ("hyperparams", "at", "field", "allowed"),
    [
        ({"max_steps": 0}, {}, "hyperparams.max_steps", "the number of steps"),
        ({"save_steps": 15}, {}, "spec.evaluation.on_checkpoint.every_steps", "save_steps 20, or another that 20 is a multiple of"),
        ({"save_steps": 0}, {}, "spec.evaluation.on_checkpoint.every_steps", "save_steps 20, or another that 20 is a multiple of"),
        ({}, {"every_steps": 200}, "spec.evaluation.on_checkpoint.every_steps", "at most 100"),
        ({}, {"warmup_steps": 101}, "spec.evaluation.on_checkpoint.warmup_steps", "at most 100"),
        ({"max_steps": 75}, {"every_steps": 80}, "spec.evaluation.on_checkpoint.every_steps", "at most 70"),
        ({"max_steps": 1035}, {}, "spec.evaluation.on_checkpoint.every_steps", "at most 50: every_steps 30 or more"),
        ({}, {"repetitions": 2}, "spec.evaluation.on_checkpoint.repetitions", "1"),
        ({}, {"fleet": "elsewhere"}, "spec.evaluation.on_checkpoint.fleet", "cluster"),
        ({}, {"suites": ["gsm8k"]}, "spec.evaluation.on_checkpoint.suites", "behaviour"),
    ],
)  # fmt: skip
def test_what_no_checkpoint_will_answer_is_refused_with_the_mend(
    hyperparams: dict[str, Any], at: dict[str, Any], field: str, allowed: str
) -> None:
    (fault,) = faults(spec(hyperparams, **at))
    assert (fault.code, fault.field, fault.allowed) == ("E-SUBMIT-098", field, allowed)


def test_fleets_arrays_and_methods_that_cannot_are_refused_by_name() -> None:
    assert [f.found for f in faults(spec(), kind="local")] == ["local"]
    assert [f.found for f in faults(spec(), array="0-3")] == ["0-3"]
    assert [f.found for f in faults(spec(), "deepspeed/rm")] == ["deepspeed/rm"]
    assert [f.found for f in faults(spec(), "verl/sft")] == ["verl/sft"]
    by_trl = spec({"save_steps": 15})
    by_trl["spec"]["framework"] = {"kind": "trl", "version": "1.16.0"}
    assert [f.found for f in faults(by_trl, "trl/dpo")] == ["save_steps 15"]
    assert faults(spec(), EVALUATOR, kind="local") == []
    bare = spec()
    del bare["spec"]["data"]["validation"]
    assert [(f.code, f.field) for f in faults(bare)] == [("E-SUBMIT-061", "spec.data.validation")]


def test_the_evaluations_are_an_array_of_one_run_with_a_step_an_element() -> None:
    asked = parent(evaluation=spec(limit=50)["spec"]["evaluation"], hyperparams=STEPS)
    asked.launch["hyperparams"] = STEPS
    derived = derive(asked, "checkpoints", asked.checkpoints, Catalogue.shipped().get(EVALUATOR), CHILD)
    found = parse(derived.document)
    assert found.metadata.name == "sums.checkpoints"
    assert found.spec.recipe.name == EVALUATOR
    assert found.spec.slurm is not None
    assert found.spec.slurm.sparse() == {"time": "12:00:00", "qos": "high", "array": "0-4%1"}
    assert found.spec.hyperparams == {"suite": "behaviour", "max_new_tokens": 8, "max_rows": 50}
    # It informs: neither gates nor baseline go with it.
    evaluation = found.spec.evaluation
    assert (evaluation.suites, evaluation.limit, evaluation.gates, evaluation.baseline) == (("behaviour",), 50, (), "")
    assert derived.given["late"]["candidate"] == {
        "run_id": RUN.run_id, "exp": "sums", "artefact": "checkpoint", "package_digest": "sha256:aa", "steps": [20, 40, 60, 80, 100],
    }  # fmt: skip


# --- the script --------------------------------------------------------------------------------------------------------------


@dataclass
class Job:
    """A batch script with nothing but what lets evaluations go, and commands that log how they are called and answer as they are told."""

    run: RunPaths
    evaluations: RunPaths
    bin: Path

    def answer(self, tool: str, text: str, code: int) -> None:
        (self.bin / f"{tool}.answer").write_text(f"echo '{text}' >&2\nexit {code}\n")

    @property
    def calls(self) -> list[str]:
        log = self.bin / "calls"
        return log.read_text().splitlines() if log.exists() else []

    def submitted(self, first: int, job_id: str) -> None:
        self.evaluations.submissions.mkdir(parents=True, exist_ok=True)
        record = {"job_id": job_id, "nonce": "1_2"}
        (self.evaluations.submissions / f"{first}.json").write_text(json.dumps(record, indent=2))

    def publish(self, step: int) -> None:
        folder = self.run.checkpoints / f"step-{step:09d}"
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text("{}")

    def start(self, body: str, every: str = "0.05") -> subprocess.Popen[str]:
        """`body` is what the rest of a batch script would do, beside a look every so many seconds."""
        settings = {
            "TP_RUN_DIR": str(self.run.root), "TP_SLURM_BIN": str(self.bin), "TP_EVALUATIONS_DIR": str(self.evaluations.root),
            "TP_EVALUATED_STEPS": "20 40 60",
        }  # fmt: skip
        beside = template.find(None, template.CHECKPOINTS).text().replace("EVERY_S=10", f"EVERY_S={every}")
        text = f"#!/bin/bash\n{template.settings_text(settings)}\n\n{beside}\nset -u\n{body}\n"
        command = ["bash", "-c", text]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={"PATH": "/usr/bin:/bin"}
        )

    def ended(self, body: str) -> tuple[int, str]:
        process = self.start(body, "10")  # no look but those that the body and the end take
        said, _ = process.communicate(timeout=30)
        return process.returncode, said

    def marks(self) -> dict[str, str]:
        return {f"{mark.job_id}_{element}": mark.word for element, mark in marks_of(self.run).items()}


@pytest.fixture
def job(tmp_path: Path) -> Job:
    root = StorageRoot(tmp_path / "root")
    made = Job(
        root.run("alice", "sums", "run-0001"), root.run("alice", "sums.checkpoints", "run-0002"), tmp_path / "bin"
    )
    made.run.root.mkdir(parents=True)
    made.bin.mkdir()
    for tool in ("scontrol", "scancel"):
        (made.bin / tool).write_text(
            f'#!/bin/bash\necho "{tool} $*" >>"{made.bin}/calls"\n[ ! -e "$0.answer" ] || . "$0.answer"\n'
        )
        (made.bin / tool).chmod(0o755)
    made.submitted(0, "7")
    return made


def until(look: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not look():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_what_is_published_is_let_go_while_the_run_goes_on_and_the_rest_is_cancelled_at_its_end(job: Job) -> None:
    go = job.bin / "go"
    process = job.start(f'while [ ! -e "{go}" ]; do sleep 0.05; done\nTP_WORD=failed\nexit 7')
    job.publish(20)
    until(lambda: job.marks() == {"7_0": "released"})
    job.publish(40)
    until(lambda: job.marks() == {"7_0": "released", "7_1": "released"})
    go.touch()
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 7
    assert job.calls == ["scontrol release 7_0", "scontrol release 7_1", "scancel 7_2"]
    assert job.marks() == {"7_0": "released", "7_1": "released", "7_2": "cancelled"}
    assert "evaluation of checkpoint 40: released as 7_1\n" in said
    assert "evaluation of checkpoint that never came: cancelled 7_2\n" in said


@pytest.mark.parametrize(
    ("end", "cancelled"),
    [
        ("TP_WORD=done; exit 0", True), ("TP_WORD='no verdict'; exit 1", True), ("exit 2", True), ("exit 0", True),
        ("TP_WORD='Slurm ends the job: CANCELLED' TP_ENDED_BY=CANCELLED; exit 1", True), ("TP_WORD=requeue; exit 85", False),
        ("TP_WORD=superseded; exit 0", False), ("TP_WORD='Slurm ends the job: x' TP_ENDED_BY='NODE FAILURE'; exit 85", False), ("exit 86", False),
        ("exit 75", False),
    ],
)  # fmt: skip
def test_nothing_is_cancelled_where_another_attempt_may_still_come(job: Job, end: str, cancelled: bool) -> None:
    assert job.ended(end)[0] == int(end.rsplit(" ", 1)[1])
    assert job.calls == (["scancel 7_0 7_1 7_2"] if cancelled else [])
    assert set(job.marks().values()) == ({"cancelled"} if cancelled else set())


def test_the_next_attempt_lets_go_what_the_one_before_did_not(job: Job) -> None:
    job.answer("scontrol", "slurm_update error: Unable to contact slurm controller (connect failure)", 1)
    job.publish(20)
    job.publish(40)
    code, said = job.ended("tp_evaluated look\nTP_WORD=requeue\nexit 85")
    assert (code, job.marks()) == (85, {})
    assert "not released, will be tried again (slurm_update error: Unable to contact" in said
    assert "by hand: scontrol release 7_0\n" in said
    (job.bin / "scontrol.answer").unlink()
    job.ended("TP_WORD=done\nexit 0")
    assert job.marks() == {"7_0": "released", "7_1": "released", "7_2": "cancelled"}


def test_what_slurm_does_not_know_any_more_is_asked_once(job: Job) -> None:
    job.publish(20)
    job.answer("scontrol", "7_0: Invalid job id specified", 1)
    job.ended("tp_evaluated look; tp_evaluated look; TP_WORD=requeue; exit 85")
    assert (job.calls, job.marks()) == (["scontrol release 7_0"], {"7_0": "gone"})


def test_the_end_does_not_let_go_once_more_what_a_look_is_letting_go(job: Job) -> None:
    job.publish(20)
    (job.bin / "scontrol.answer").write_text("sleep 0.4\n")
    process = job.start(f"until [ -e {job.bin}/calls ]; do sleep 0.02; done; TP_WORD=done; exit 0")
    said, _ = process.communicate(timeout=30)
    assert (process.returncode, job.calls) == (0, ["scontrol release 7_0", "scancel 7_1 7_2"]), said
    assert job.marks() == {"7_0": "released", "7_1": "cancelled", "7_2": "cancelled"}


def test_a_failed_cancellation_says_how_it_is_done_by_hand_and_changes_no_exit_code(job: Job) -> None:
    job.answer("scancel", "scancel: error: Kill job error: Unable to contact slurm controller", 1)
    code, said = job.ended("TP_WORD=done\nexit 0")
    assert (code, job.marks()) == (0, {})
    assert "by hand: scancel 7_0 7_1 7_2\n" in said


def test_a_retry_is_a_job_of_its_own_and_what_is_done_is_left_alone(job: Job) -> None:
    job.publish(20)
    job.publish(40)
    job.ended("TP_WORD=failed\nexit 1")
    report = job.evaluations.element(0).report
    report.parent.mkdir(parents=True)
    report.write_text("{}")
    job.submitted(1000, "11")
    job.ended("TP_WORD=requeue; tp_evaluated look; exit 85")
    assert job.calls[3:] == ["scontrol release 11_1"]
    assert job.marks() == {"7_0": "released", "11_1": "released", "7_2": "cancelled"}


def test_evaluations_that_were_never_submitted_are_nobodys_concern(job: Job) -> None:
    (job.evaluations.submissions / "0.json").unlink()
    job.publish(20)
    assert job.ended("tp_evaluated look; TP_WORD=done; exit 0") == (0, "")
    assert job.calls == []


def test_the_block_is_clean_bash_in_every_template_and_in_no_script_of_another_run(shellcheck: str) -> None:
    settings = {"TP_RUN_DIR": "/st/runs/a/e/run-1"}
    lines = "#SBATCH --job-name=e.run-1.0\n#SBATCH --hold"
    for name in ("train.sbatch.j2", "custom.sbatch.j2"):
        plain = template.render(None, name, directives=lines, about="e", settings=settings)
        whole = template.render(None, name, directives=lines, about="e", settings=settings, evaluated=True)
        assert "evaluated" not in plain
        assert whole.replace(f"\n\n{template.find(None, template.CHECKPOINTS).text()}", "") == plain
        check = [shellcheck, "-s", "bash", "-S", "warning", "-"]
        done = subprocess.run(check, input=whole, text=True, capture_output=True, check=False)
        assert (done.returncode, done.stdout) == (0, "")
