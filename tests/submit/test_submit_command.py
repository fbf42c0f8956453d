"""`tp submit` as it is typed: on the embedded local fleet for real, and against a Slurm with faults."""

from __future__ import annotations

import getpass
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TP = Path(sys.executable).parent / "tp"
GIT = {f"GIT_{who}_{what}": "t@example.invalid" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
sys.path.insert(0, str(Path(__file__).parents[1] / "sif"))


class Lab:
    """A storage root, a project and the command, in folders of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.storage, self.project = folder, folder / "storage", folder / "lab"
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "LC_ALL": "C.UTF-8",
            "TUNEPLANE_STORAGE_ROOT": str(self.storage),
            **GIT,
        }

    def tp(self, *words: str, ok: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
        cwd = self.project if self.project.exists() else self.folder
        done = subprocess.run(
            [TP, *words], cwd=cwd, env={**self.env, **env}, text=True, capture_output=True, timeout=120, check=False
        )
        assert not ok or done.returncode == 0, done.stderr
        return done

    def git(self, *words: str) -> None:
        subprocess.run(["git", *words], cwd=self.project, env=self.env, check=True, capture_output=True)

    def commit(self) -> None:
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "x")

    def script(self, text: str) -> None:
        (self.project / "experiments/job/train.sh").write_text(text)
        self.commit()

    def runs(self) -> list[Path]:
        base = self.storage / "runs" / getpass.getuser() / "job"
        return sorted(base.iterdir()) if base.exists() else []

    def refused(self, *words: str) -> list[dict[str, Any]]:
        done = self.tp("submit", "job", "--json", *words, ok=False)
        assert done.returncode in (1, 75), done.stdout + done.stderr
        errors: list[dict[str, Any]] = json.loads(done.stdout)["errors"]
        return errors

    def submit(self, *words: str) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.tp("submit", "job", "--json", *words).stdout)
        return value

    def end(self, run: str, attempt: int = 0) -> dict[str, Any]:
        path = self.storage / "runs" / getpass.getuser() / "job" / run / "attempts" / str(attempt) / "end.json"
        for _ in range(600):
            if path.exists():
                value: dict[str, Any] = json.loads(path.read_text())
                return value
            time.sleep(0.05)
        raise AssertionError(f"{path} never came")


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    made = Lab(tmp_path)
    made.tp("site", "init", str(made.storage), "--name", "lab", "--fleet", "local")
    made.tp("init", str(made.project), "--name", "lab")
    made.tp("new", "job", "--method", "custom/custom")
    made.script('echo "hello from $RUN_USER"\n')
    return made


def test_a_job_on_this_machine_from_submit_to_audit(lab: Lab) -> None:
    done = lab.submit("--label", "team=x")
    assert lab.end(done["run_id"])["class"] == "done"
    run = Path(done["run_dir"])
    assert f"hello from {getpass.getuser()}" in (run / "attempts/0/logs/rank-00000.log").read_text()
    spec = json.loads((run / "work/.tuneplane/jobspec.json").read_text())
    assert spec["metadata"]["labels"] == {"team": "x"}
    for _ in range(100):
        audit = lab.tp("runs", "audit", done["run_id"], "--json", ok=False)
        if json.loads(audit.stdout)["verdict"] == "verified":
            break
        time.sleep(0.1)
    assert (audit.returncode, json.loads(audit.stdout)["verdict"]) == (0, "verified")


def test_the_owner_is_the_kernels_word_not_the_environments(lab: Lab) -> None:
    done = json.loads(lab.tp("submit", "job", "--json", USER="mallory", LOGNAME="mallory", SUDO_USER="mallory").stdout)
    assert done["owner"] == getpass.getuser()
    assert json.loads((Path(done["run_dir"]) / "admission.json").read_text())["owner"] == getpass.getuser()


def test_a_dry_run_prints_the_script_and_writes_nothing(lab: Lab) -> None:
    before = set(lab.folder.rglob("*"))
    script = lab.tp("submit", "job", "--dry-run").stdout
    assert script.startswith("#!/bin/bash\n")
    assert set(lab.folder.rglob("*")) - before == set()


def test_a_missing_train_sh_is_refused_and_leaves_nothing(lab: Lab) -> None:
    (lab.project / "experiments/job/train.sh").unlink()
    lab.commit()
    (error,) = lab.refused()
    assert (error["code"], error["allowed"]) == ("E-SUBMIT-035", "a file train.sh")
    assert lab.runs() == []


def test_a_dirty_tree_needs_a_word(lab: Lab) -> None:
    (lab.project / "experiments/job/extra.py").write_text("x = 1\n")
    (error,) = lab.refused()
    assert (error["code"], error["found"]) == ("E-SUBMIT-036", "experiments/job/extra.py")
    done = lab.submit("--allow-dirty")
    assert (Path(done["run_dir"]) / "work/experiments/job/extra.py").read_text() == "x = 1\n"
    assert (
        json.loads((Path(done["run_dir"]) / "work/.tuneplane/jobspec.json").read_text())["provenance"]["git_dirty"]
        is True
    )


def test_a_secret_looking_file_refuses_the_whole_package(lab: Lab) -> None:
    (lab.project / "experiments/job/id_rsa").write_text("TOKEN=canary-91\n")
    errors = lab.refused("--allow-dirty")
    assert [e["code"][:9] for e in errors] == ["E-PROJECT"]
    assert lab.runs() == []
    assert "canary-91" not in json.dumps(errors)


def test_p79_untracked_files_travel_listed_and_pdfs_do_not(lab: Lab) -> None:
    (lab.project / "common/helper.py").write_text("y = 2\n")
    (lab.project / "experiments/job/paper.pdf").write_bytes(b"%PDF")
    done = lab.submit("--allow-dirty")
    listed = {
        f["path"] for f in json.loads((Path(done["run_dir"]) / "work/.tuneplane/package.json").read_text())["files"]
    }
    assert "common/helper.py" in listed
    assert "experiments/job/paper.pdf" not in listed


def test_the_same_spec_within_a_minute_is_a_slip(lab: Lab) -> None:
    lab.script("sleep 20\n")
    first = lab.submit()
    (error,) = lab.refused()
    assert (error["code"], error["found"]) == ("E-SUBMIT-052", first["run_id"])
    assert len(lab.runs()) == 1
    lab.submit("--again")
    lab.tp("job", "stop", first["run_id"])
    assert lab.end(first["run_id"])["class"] == "cancelled"


def test_a_preview_is_committed_only_unchanged(lab: Lab) -> None:
    preview = json.loads(lab.tp("submit", "job", "--preview", "--json").stdout)["preview"]
    assert Path(preview).stat().st_mode & 0o777 == 0o600
    (error,) = lab.refused("--commit", preview, "--label", "a=b")
    assert error["code"] == "E-SUBMIT-062"
    done = json.loads(lab.tp("submit", "job", "--commit", preview, "--json").stdout)
    assert lab.end(done["run_id"])["class"] == "done"


def test_every_fault_of_a_submission_at_once(lab: Lab) -> None:
    errors = lab.refused("--time", "99-00:00:00", "--signal", "nope", "--mem", "many")
    assert [e["field"] for e in errors] == ["spec.slurm.signal", "spec.slurm.mem"]


def test_an_admins_template_shows_in_the_dry_run_and_a_bad_one_is_refused(lab: Lab) -> None:
    copy = lab.storage / "site/sbatch_templates/train.sbatch.j2"
    copy.write_text(
        lab.tp("template", "show", "train.sbatch.j2").stdout.replace("set -u\n", "set -u\n#SBATCH --exclusive\n")
    )
    done = lab.tp("template", "lint", "--json", ok=False)
    (error,) = json.loads(done.stdout)["errors"]
    assert (done.returncode, error["code"]) == (1, "E-SUBMIT-024")
    assert error["field"].startswith(f"{copy}:")
    copy.write_text(lab.tp("template", "show", "--shipped", "train.sbatch.j2").stdout)
    assert lab.tp("template", "lint").stdout == "5 templates: no fault\n"
    assert {t["name"]: t["site"] for t in json.loads(lab.tp("template", "ls", "--json").stdout)}[
        "train.sbatch.j2"
    ] is True


def test_a_run_is_retried_as_the_next_attempt(lab: Lab) -> None:
    lab.script('[ "$TUNEPLANE_ATTEMPT" = 1 ] || exit 9\n')
    done = lab.submit()
    assert lab.end(done["run_id"])["exit_code"] == 9
    lab.tp("job", "retry", done["run_id"])
    assert lab.end(done["run_id"], 1)["class"] == "done"


def test_a_package_is_admitted_once_and_judged_as_often_as_one_likes(lab: Lab) -> None:
    run = Path(lab.submit()["run_dir"])
    lab.end(run.name)
    assert lab.tp("admit", str(run / "work"), "--check").returncode == 0
    again = lab.tp("admit", str(run / "work"), "--json", ok=False)
    assert (again.returncode, json.loads(again.stdout)["errors"][0]["code"]) == (1, "E-SUBMIT-082")


def test_of_retries_at_once_one_submits_and_the_others_say_why_not(lab: Lab) -> None:
    lab.script("sleep 2; exit 9\n")
    done = lab.submit()
    lab.end(done["run_id"])
    command = [TP, "job", "retry", done["run_id"], "--json"]
    tries = [
        subprocess.Popen(
            command, cwd=lab.project, env=lab.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(3)
    ]
    said = [(t.communicate(timeout=60)[0], t.returncode) for t in tries]
    codes = sorted(json.loads(text)["errors"][0]["code"] if code else "" for text, code in said)
    assert codes[0] == ""
    assert set(codes[1:]) <= {"E-STORE-001", "E-SUBMIT-090", "E-RUNS-011"}
    assert lab.end(done["run_id"], 1)["exit_code"] == 9
    assert sorted(p.name for p in (Path(done["run_dir"]) / "submissions").iterdir()) == ["0.json", "1.json"]


def test_a_retry_that_died_or_was_refused_after_its_script_was_frozen_does_not_block_the_next(lab: Lab) -> None:
    lab.script('[ "$TUNEPLANE_ATTEMPT" = 2 ] || exit 9\n')
    done = lab.submit()
    lab.end(done["run_id"])
    (Path(done["run_dir"]) / "batch/1.sh").write_text("#!/bin/bash\n")
    lab.tp("job", "retry", done["run_id"])
    assert lab.end(done["run_id"], 2)["class"] == "done"
    start = json.loads((Path(done["run_dir"]) / "attempts/2/start.json").read_text())
    assert start["previous_end"] == "error"


def test_a_local_job_whose_command_died_before_the_record_is_adopted_by_the_next(lab: Lab) -> None:
    done = lab.submit()
    lab.end(done["run_id"])
    record = Path(done["run_dir"]) / "submissions/0.json"
    written = json.loads(record.read_text())
    (Path(done["run_dir"]) / "events/submit-0.jsonl").unlink()
    intents = lab.storage / "state" / getpass.getuser() / "intents"
    settled = intents / "settled" / f"{done['run_id']}-0.json"
    record.unlink()
    (intents / settled.name).write_text(json.dumps({**json.loads(settled.read_text()), "settled": None}))
    settled.unlink()
    lab.tp("submit", "job", "--dry-run")
    adopted = json.loads(record.read_text())
    assert (adopted["adopted"], adopted["job_id"]) == (True, done["job_id"])
    own = {"adopted", "submitted_at", "pid_start"}
    assert {k: v for k, v in adopted.items() if k not in own} == {k: v for k, v in written.items() if k not in own}
    assert json.loads(settled.read_text())["settled"] == "submitted"


class TestOnSlurm:
    """The Slurm of files: what the controller is told, and what the quota counts."""

    @pytest.fixture
    def slurm(self, lab: Lab, make_fake_slurm: Callable[..., Any]) -> Any:
        from sifs import small_sif

        fake = make_fake_slurm()
        site = lab.storage / "site/site.yaml"
        text = site.read_text().replace(
            "  local: {kind: local}",
            f'  local: {{kind: local}}\n  batch: {{kind: slurm, bin_dir: "{fake.bin}", conf: "{fake.conf}"}}',
        )
        text = text.replace(
            "profiles:\n",
            "profiles:\n  h200: {fleet: batch, series: h200, nodes: 1, gpus_per_node: 8, cpus_per_gpu: 2, gres_type: h200}\n",
            1,
        )
        site.write_text(text.replace("  gpus: 16", "  gpus: 12"))
        small_sif(lab.folder / "general.sif")
        lab.tp("site", "check")
        lab.tp("runtime", "add", "general-1", str(lab.folder / "general.sif"), "--copy")
        return fake

    def test_gpus_of_queued_runs_count_and_both_numbers_are_named(self, lab: Lab, slurm: Any) -> None:
        first = lab.submit("--profile", "h200:8")
        (error,) = lab.refused("--profile", "h200:8", "--label", "second=1")
        assert error["code"] == "E-SUBMIT-072"
        assert error["message"].endswith("would hold 16 GPUs (8 queued or running and 8 here)")
        assert (error["found"], error["allowed"]) == (16, "at most 12")
        assert [p.name for p in lab.runs()] == [first["run_id"]]
        lab.submit("--profile", "h200:4", "--label", "third=1")

    def test_a_retry_needs_room_in_the_quota_like_a_submission(self, lab: Lab, slurm: Any) -> None:
        first = lab.submit("--profile", "h200:8")
        attempt = Path(first["run_dir"]) / "attempts/0"
        attempt.mkdir()
        (attempt / "end.json").write_text(json.dumps({"class": "error", "requeue": False, "message": "x"}))
        lab.submit("--profile", "h200:8", "--label", "second=1")
        done = lab.tp("job", "retry", first["run_id"], "--json", ok=False)
        (error,) = json.loads(done.stdout)["errors"]
        assert (done.returncode, error["code"], error["found"]) == (1, "E-SUBMIT-072", 16)
        assert [p.name for p in (Path(first["run_dir"]) / "batch").glob("*.sh")] == ["0.sh"]

    def test_gpu_directives_and_identity_reach_slurm(self, lab: Lab, slurm: Any) -> None:
        done = lab.submit("--profile", "h200:8", "--time", "30", "--qos", "high")
        (job,) = slurm.jobs()
        assert (job["name"], str(job["id"])) == (f"job.{done['run_id']}.0", done["job_id"])
        script = (Path(done["run_dir"]) / "batch/0.sh").read_text()
        for line in (
            "--gres=gpu:h200:8",
            "--nodes=1",
            "--cpus-per-task=16",
            "--qos=high",
            "--time=00:30:00",
            "--export=NIL",
        ):
            assert f"#SBATCH {line}\n" in script

    def test_p07_the_outer_allocation_does_not_reach_sbatch(self, lab: Lab, slurm: Any) -> None:
        words = {
            "SLURM_JOB_ID": "7",
            "SBATCH_PARTITION": "x",
            "SLURM_CPUS_PER_TASK": "4",
            "SRUN_DEBUG": "1",
            "SECRET": "canary-5",
        }
        done = json.loads(lab.tp("submit", "job", "--json", "--profile", "h200:1", **words).stdout)
        (call,) = slurm.calls("sbatch")
        assert not {n for n in call["env"] if n.startswith(("SLURM_", "SBATCH_", "SRUN_", "SECRET"))} - {"SLURM_CONF"}
        record = json.loads((Path(done["run_dir"]) / "submissions/0.json").read_text())
        assert record["removed_environment"] == [
            "SBATCH_PARTITION",
            "SLURM_CPUS_PER_TASK",
            "SLURM_JOB_ID",
            "SRUN_DEBUG",
        ]

    def test_a_refusal_by_slurm_leaves_no_run(self, lab: Lab, slurm: Any) -> None:
        slurm.faults("sbatch fail partition")
        (error,) = lab.refused("--profile", "h200:1")
        assert error["code"].startswith("E-SLURM")
        assert lab.runs() == []
        assert [p.name for p in (lab.storage / "runs" / getpass.getuser() / "job").iterdir()] == []

    def test_p05_an_unclear_answer_is_settled_by_the_next_command(self, lab: Lab, slurm: Any) -> None:
        slurm.faults("sbatch accept-then timeout\nsqueue#2+ fail timeout")
        done = lab.tp("submit", "job", "--json", "--profile", "h200:1", ok=False)
        assert (done.returncode, json.loads(done.stdout)["errors"][0]["code"]) == (75, "E-SUBMIT-050")
        (run,) = lab.runs()
        assert list((run / "submissions").iterdir()) == []
        slurm.faults("")
        lab.tp("submit", "job", "--dry-run", "--profile", "h200:1")
        adopted = json.loads((run / "submissions/0.json").read_text())
        assert (adopted["adopted"], adopted["job_id"]) == (True, str(slurm.jobs()[0]["id"]))
        assert len(slurm.jobs()) == 1


def test_words_not_heeded_here_a_limit_within_the_warning_and_missing_inputs_are_refused_by_name(lab: Lab) -> None:
    words = (
        "--array",
        "0-3",
        "--dependency",
        "afterok:7",
        "--begin",
        "now+2hours",
        "--profile",
        "cpu:8",
        "--time",
        "0:02:00",
    )
    local = ["spec.slurm.array", "spec.slurm.dependency", "spec.slurm.begin", "spec.resources.pools"]
    warned, *others = lab.refused(*words)
    assert (warned["code"], warned["field"], warned["found"]) == ("E-SUBMIT-067", "spec.slurm.time", "00:02:00")
    assert warned["message"] == "the warning comes 120 s before the limit, so at the start"
    assert [(e["code"], e["field"]) for e in others] == [("E-SUBMIT-066", field) for field in local]
    assert lab.runs() == []
    lab.tp("submit", "job", "--dry-run", "--time", "0:02:00", "--signal", "B:USR2@30")
    for name in ("USR1", "INT", "STOP", "10"):
        (fatal,) = lab.refused("--time", "1:00:00", "--signal", f"{name}@300")
        assert (fatal["code"], fatal["field"], fatal["allowed"]) == ("E-SUBMIT-068", "spec.slurm.signal", "USR2@300")
    lab.tp("new", "verl", "--method", "verl/grpo")
    done = lab.tp("submit", "verl", "--allow-dirty", "--json", "--model", str(lab.project), ok=False)
    (fault,) = json.loads(done.stdout)["errors"]
    assert (fault["code"], fault["allowed"]) == ("E-SUBMIT-061", "--train-data, --validation-data")
