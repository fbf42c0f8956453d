"""The probe script and its batch job: what is asked, how long is waited, what is left behind."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hpc.cli.doctor_node import Answer, ask_nodes, submit_arguments
from hpc.errors import Refusal
from hpc.site.nodeprobe import ROUNDS, SCRIPT, Ask, batch_script, contest_won, parse_facts
from hpc.slurm.commands import Slurm

if TYPE_CHECKING:
    from fakeslurm import FakeSlurm


def run_script(folder: Path, ask: Ask, *before: str) -> dict[str, dict[str, str]]:
    """Run the script here; reports by host."""
    script = folder / "probe.sh"
    script.write_text(SCRIPT)
    env = {"HOME": str(folder), "TMPDIR": str(folder), **ask.variables()}
    subprocess.run([*before, "/bin/bash", str(script), str(folder)], env=env, check=True, timeout=60)
    return {p.stem: parse_facts(p.read_text()) for p in folder.glob("*.facts")}


def test_scripts_pass_shellcheck(tmp_path: Path, shellcheck: str) -> None:
    (tmp_path / "probe.sh").write_text(SCRIPT)
    (tmp_path / "batch.sh").write_text(batch_script(Ask("/a b", "", "/x.sif", 2), "/f o", "/usr/bin/srun"))
    for name in ("probe.sh", "batch.sh"):
        done = subprocess.run([shellcheck, str(tmp_path / name)], capture_output=True, text=True, check=False)
        assert done.stdout == ""


def test_this_machine_reports_the_same_as_its_kernel(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "site.yaml").write_text("name: lab\n")
    (facts,) = run_script(tmp_path, Ask(str(tmp_path), apptainer="/bin/false")).values()
    assert facts["host"] == socket.gethostname()
    assert facts["uid"] == str(os.getuid())
    assert facts["kernel"] == f"Linux {os.uname().release}"
    assert facts["site_sha256"] == hashlib.sha256(b"name: lab\n").hexdigest()
    assert facts["tmp_path"] == str(tmp_path)
    assert facts["gpu_visible"] == "unset"
    assert facts["apptainer"] == "/bin/false"
    assert int(facts["shm"].split()[0]) > 0
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([f"{facts['host']}.facts", "probe.sh", "site"])


@pytest.mark.two_users
def test_p62_between_hosts_each_name_is_linked_once(tmp_path: Path) -> None:
    script = tmp_path / "probe.sh"
    script.write_text(SCRIPT)
    env = {"PATH": os.environ["PATH"], "HOME": "/", **Ask("", nodes=2).variables()}
    children = [
        subprocess.Popen(
            ["unshare", "--uts", "/bin/bash", "-c", f"hostname host{n}; exec /bin/bash {script} {tmp_path}"], env=env
        )
        for n in (1, 2)
    ]
    assert [c.wait(timeout=60) for c in children] == [0, 0]
    facts = {p.stem: parse_facts(p.read_text()) for p in tmp_path.glob("*.facts")}
    assert sorted(facts) == ["host1", "host2"]
    assert [f["contenders"] for f in facts.values()] == ["2", "2"]
    assert contest_won(facts) == (ROUNDS, 2)


def test_facts_keep_plain_lines_only() -> None:
    assert parse_facts("host=n1\nno line\n=x\na b=c\nsaid=x\x1b[31my=z\n") == {"host": "n1", "said": "x[31my=z"}


def test_values_are_quoted_for_the_shell() -> None:
    script = batch_script(Ask("/a'; rm -rf /;'", sif="$(id)"), "/folder", "/opt/slurm/bin/srun")
    lines = [line for line in script.splitlines() if line.startswith("export TP_PROBE")]
    assert "export TP_PROBE_SIF='$(id)'" in lines
    done = subprocess.run(
        ["/bin/bash", "-c", "\n".join([*lines, 'printf "%s" "$TP_PROBE_ROOT"'])],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "/a'; rm -rf /;'"


def test_only_what_is_stated_is_asked_of_sbatch() -> None:
    arguments = submit_arguments(Ask("/r", nodes=2), "/f", {"partition": "gpu", "account": ""}, ["--gres=gpu:h200:1"])
    assert arguments[:2] == ["--parsable", "--no-requeue"]
    assert {"--nodes=2", "--partition=gpu", "--gres=gpu:h200:1", "--export=NIL", "--time=00:05:00"} <= set(arguments)
    assert not any(a.startswith("--account") for a in arguments)


class Steps:
    """A clock that moves when it is slept on, and calls `then` at the first sleep."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self.now, self.then, self.said = 0.0, then, []  # type: ignore[var-annotated]

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        if self.now == 0.0:
            self.then()
        self.now += seconds

    def ask(self, fake: FakeSlurm, home: Path, **kwargs: int) -> Answer:
        slurm = Slurm(str(fake.bin), fake.conf)
        fake.reset_ids(1)
        values = {"wait_s": 60, **kwargs}
        return ask_nodes(
            slurm,
            home,
            Ask(str(home), apptainer="/bin/false"),
            options={"partition": "batch"},
            gpus=[],
            wait_s=values["wait_s"],
            tell=self.said.append,
            clock=self.clock,
            sleep=self.sleep,
        )


def test_a_node_that_answers_is_read_and_nothing_is_left(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    home = tmp_path / "state"
    home.mkdir()
    steps = Steps(then=lambda: fake_slurm.execute(1).wait(timeout=60))
    answer = steps.ask(fake_slurm, home)
    assert answer.trouble is None
    assert list(answer.facts) == [socket.gethostname()]
    assert answer.facts[socket.gethostname()]["slurm_job"] == answer.job_id == "1"
    assert answer.batch["batch_memlock"] == answer.facts[socket.gethostname()]["memlock"]
    assert list(home.iterdir()) == []
    assert fake_slurm.calls("scancel") == []


def test_a_job_that_waits_too_long_is_cancelled(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    steps = Steps()
    answer = steps.ask(fake_slurm, tmp_path, wait_s=35)
    assert answer.trouble is not None
    assert (answer.trouble.status, answer.trouble.message[:35]) == ("warn", "no report within 35 s: PENDING Prio")
    assert [c["args"] for c in fake_slurm.calls("scancel")] == [["1"]]
    assert len(fake_slurm.calls("squeue")) == 3  # once in ten seconds
    assert list(tmp_path.glob("doctor-*")) == []


def test_a_job_that_ends_without_a_report_fails_with_its_log(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    def die() -> None:
        (folder,) = tmp_path.glob("doctor-*")
        (folder / "job.log").write_text("slurmstepd: error: no such file\n")
        fake_slurm.finish(1, "FAILED", 1)
        fake_slurm.purge(1)

    answer = Steps(then=die).ask(fake_slurm, tmp_path)
    assert answer.trouble is not None
    assert (answer.trouble.status, answer.trouble.message) == ("fail", "job 1 ended without a report")
    assert answer.trouble.found == "slurmstepd: error: no such file"


def test_ctrl_c_cancels_the_job_and_leaves_nothing(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Steps(then=interrupt).ask(fake_slurm, tmp_path)
    assert [c["args"] for c in fake_slurm.calls("scancel")] == [["1"]]
    assert list(tmp_path.glob("doctor-*")) == []


@pytest.mark.parametrize(("fault", "code"), [("fail partition", "E-SLURM-010"), ("garbage hello", "E-SITE-051")])
def test_a_refused_probe_is_a_refusal(fake_slurm: FakeSlurm, tmp_path: Path, fault: str, code: str) -> None:
    fake_slurm.faults(f"sbatch {fault}")
    with pytest.raises(Refusal) as caught:
        Steps().ask(fake_slurm, tmp_path)
    assert caught.value.code == code
    assert list(tmp_path.glob("doctor-*")) == []


def test_a_banner_around_the_job_id_does_not_matter(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    fake_slurm.faults("sbatch banner Welcome to the cluster!")
    answer = Steps(then=lambda: fake_slurm.execute(1).wait(timeout=60)).ask(fake_slurm, tmp_path)
    assert answer.job_id == "1"
