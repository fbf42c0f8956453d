"""Starting Slurm's commands: environment, paths, deadlines."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from fakeslurm import FakeSlurm

from hpc.errors import Refusal
from hpc.slurm.commands import KEPT, Slurm, scrub


def script(folder: Path, tool: str, body: str) -> Slurm:
    path = folder / tool
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return Slurm(bin_dir=str(folder), deadline_s=10)


def test_p07_the_outer_allocation_does_not_leak() -> None:
    outer = {
        "HOME": "/home/a", "USER": "a", "LANG": "C.UTF-8", "TZ": "Europe/Berlin", "SLURM_JOB_ID": "9", "SLURM_CPU_BIND": "mask:0x1",
        "SBATCH_MEM_PER_CPU": "1", "SRUN_CPUS_PER_TASK": "4", "SLURM_CONF": "/inner/slurm.conf", "PMI_RANK": "0",
        "SLURM_TIME_FORMAT": "relative", "SQUEUE_FORMAT": "%i", "SECRET_TOKEN": "x", "PYTHONPATH": "/p", "LD_PRELOAD": "/x.so",
    }  # fmt: skip
    scrubbed = scrub(outer, conf="/etc/slurm/slurm.conf")
    assert scrubbed.env == {
        "HOME": "/home/a", "USER": "a", "LANG": "C.UTF-8", "TZ": "Europe/Berlin", "LC_ALL": "C", "PATH": "/usr/bin:/bin",
        "SLURM_CONF": "/etc/slurm/slurm.conf",
    }  # fmt: skip
    assert scrubbed.removed == (
        "PMI_RANK", "SBATCH_MEM_PER_CPU", "SLURM_CONF", "SLURM_CPU_BIND", "SLURM_JOB_ID", "SLURM_TIME_FORMAT", "SQUEUE_FORMAT",
        "SRUN_CPUS_PER_TASK",
    )  # fmt: skip


def test_p07_the_child_sees_the_scrubbed_environment(tmp_path: Path) -> None:
    slurm = script(tmp_path, "sbatch", "/usr/bin/env")
    slurm = Slurm(bin_dir=slurm.bin_dir, environ={"SLURM_JOB_ID": "9", "HOME": "/h", "X": "1"})
    names = {line.partition("=")[0] for line in slurm.run("sbatch", []).out.splitlines()}
    assert names - {"PWD", "_", "SHLVL"} == {"HOME", "LC_ALL", "PATH"}
    assert names <= KEPT | {"LC_ALL", "PATH", "SLURM_CONF", "PWD", "_", "SHLVL"}


def test_queries_run_in_utc_and_sbatch_keeps_the_users_zone() -> None:
    zone = {"TZ": "Asia/Tokyo"}
    assert scrub(zone, reader=True).env["TZ"] == "UTC"
    assert scrub(zone).env["TZ"] == "Asia/Tokyo"
    slurm = Slurm(environ=zone)
    assert slurm.scrubbed("squeue").env["TZ"] == "UTC"
    assert slurm.scrubbed("sbatch").env["TZ"] == "Asia/Tokyo"


def test_p24_works_without_a_path(fake_slurm: FakeSlurm) -> None:
    slurm = Slurm(bin_dir=str(fake_slurm.bin), conf=fake_slurm.conf, environ={})
    assert slurm.run("squeue", ["--version"]).out == "slurm 24.05.4\n"


@pytest.mark.parametrize("bin_dir", ["/nonexistent", "relative/bin", ""])
def test_p24_a_missing_command_is_a_refusal_that_names_the_path(bin_dir: str) -> None:
    with pytest.raises(Refusal) as caught:
        Slurm(bin_dir=bin_dir).run("squeue", [])
    assert caught.value.code == "E-SLURM-001"
    assert "squeue" in caught.value.message


def test_a_file_without_the_exec_bit_is_no_command(tmp_path: Path) -> None:
    slurm = script(tmp_path, "sinfo", "echo x")
    os.chmod(tmp_path / "sinfo", stat.S_IRUSR)
    with pytest.raises(Refusal, match="E-SLURM-001"):
        slurm.run("sinfo", [])


def test_only_slurms_commands_are_started() -> None:
    with pytest.raises(ValueError, match="not a Slurm command"):
        Slurm(bin_dir="/bin").run("sh", ["-c", "true"])


def test_output_and_exit_code_come_back_whole(tmp_path: Path) -> None:
    slurm = script(
        tmp_path, "sacct", "head -c 300000 /dev/zero | tr '\\0' x; head -c 300000 /dev/zero | tr '\\0' y >&2; exit 3"
    )
    done = slurm.run("sacct", [])
    assert (done.rc, len(done.out), len(done.err), done.timed_out, done.tool) == (3, 300000, 300000, False, "sacct")


def test_bytes_that_are_no_utf8_do_no_harm(tmp_path: Path) -> None:
    assert script(tmp_path, "squeue", "printf 'a\\377b'").run("squeue", []).out == "a�b"


def test_stdin_is_given_or_empty_and_never_a_terminal(tmp_path: Path) -> None:
    slurm = script(tmp_path, "sbatch", 'cat; [ -t 0 ] && echo terminal; echo "in $PWD"')
    assert slurm.run("sbatch", [], stdin="#!/bin/sh\n", cwd=tmp_path).out == f"#!/bin/sh\nin {tmp_path}\n"
    assert slurm.run("sbatch", []).out == "in /\n"


def test_p24_a_hanging_command_and_its_children_are_ended(tmp_path: Path) -> None:
    slurm = script(
        tmp_path,
        "sacct",
        f"echo early; sleep 600 & echo $! > {tmp_path}/child; trap '' TERM; while :; do sleep 1; done",
    )
    done = slurm.run("sacct", [], deadline_s=0.5)
    assert done.timed_out
    assert done.out == "early\n"
    child = int((tmp_path / "child").read_text())
    assert not running(child)


def test_p24_a_child_that_left_the_session_cannot_hold_us(tmp_path: Path) -> None:
    slurm = script(tmp_path, "squeue", f"setsid sh -c 'echo $$ > {tmp_path}/escaped; exec sleep 600' & sleep 600")
    done = slurm.run("squeue", [], deadline_s=0.5)
    assert done.timed_out
    escaped = int((tmp_path / "escaped").read_text())
    assert running(escaped)  # that is why the pipe stays open
    os.kill(escaped, 9)


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
