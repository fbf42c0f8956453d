"""What the batch script does when Slurm is in its way: warnings in the middle of its last acts, an answer that does not come, a full disk."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from hpc.spec.signals import WARNINGS
from hpc.submit.template import find

FUNCTIONS = find(None, "functions.sh.j2").text()
HEAD = """
set -u
exec 2>>"$LOG"
TP_ATTEMPT=0 TP_STEP= TP_WARNED= TP_STEP_CODE=0 TP_JOB_ID=41 TP_SLURM_BIN=$HERE/bin TP_SCRATCH_BASE=$HERE TP_RUN_DIR=$HERE/run TP_DIR=$HERE/run
TP_RUN_ID=run-1 TP_FIRST_ATTEMPT=0 TP_RESTART=0 TP_NONCE=n TP_HOSTS=a SLURM_JOB_ID=41
trap 'tp_warned USR2' USR2
trap 'tp_warned TERM' TERM
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    scontrol(
        tmp_path,
        'echo "JobId=41 JobName=x JobState=RUNNING TimeLimit=1-02:03:04 TimeMin=N/A StartTime=2026-11-29T21:56:56 EndTime=2026-11-30T00:00:00"',
    )
    return tmp_path


def scontrol(here: Path, body: str) -> None:
    path = here / "bin/scontrol"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def start(here: Path, body: str) -> subprocess.Popen[str]:
    """The functions and `body`, in a process group of its own as a batch step has it. `sleep` of the script takes a hundredth of its time."""
    sleep = 'sleep() { command sleep "$(printf "%s\\n" "$1" | awk \'{print $1 / 100}\')"; }\n'
    text = FUNCTIONS + HEAD + sleep + body
    env = {"PATH": os.environ["PATH"], "HERE": str(here), "LOG": str(here / "log"), "TZ": "UTC"}
    return subprocess.Popen(["bash", "-c", text], env=env, stdout=subprocess.PIPE, text=True, start_new_session=True)


def ran(here: Path, body: str) -> tuple[int, list[str]]:
    """Exit code, and what the script said without the times."""
    process = start(here, body)
    out, _ = process.communicate(timeout=60)
    return process.returncode, [line.partition(" tp: ")[2] or line for line in out.splitlines()]


@pytest.mark.parametrize("given", [signal.SIGTERM, signal.SIGUSR2])
def test_a_signal_to_the_whole_batch_step_does_not_take_the_verdict_with_it(here: Path, given: signal.Signals) -> None:
    judging = (
        'tp_kernel() { touch "$HERE/judging"; command sleep 1; echo requeue; }\ntp_decide\necho "$TP_WORD $TP_WARNED"\n'
    )
    process = start(here, judging)
    while not (here / "judging").exists():
        time.sleep(0.01)
    os.killpg(process.pid, given)
    out, _ = process.communicate(timeout=60)
    assert out.splitlines()[-1] == f"requeue {given.name[3:]}"


def test_a_node_s_full_disk_does_not_take_the_verdict_with_it(here: Path) -> None:
    """A directory that is not there stands for one that takes no more."""
    judging = (
        'TP_SCRATCH_BASE=$HERE/none TP_DIR=$HERE\ntp_kernel() { [ -d "$TP_SCRATCH" ] && echo requeue; }\ntp_decide\n'
    )
    assert ran(here, judging + 'echo "$TP_WORD ${TP_SCRATCH%.*}"; ls "$HERE"\n') == (
        0,
        ["attempt 0: requeue", f"requeue {here}/tp-41", "bin", "log"],
    )


@pytest.mark.parametrize("why", ["PREEMPTION", "NODE FAILURE", "JOB REQUEUE"])
def test_a_job_that_slurm_puts_back_is_not_requeued_by_us_as_well(here: Path, why: str) -> None:
    scontrol(here, 'echo asked >>"$HERE/asked"')
    assert ran(here, f"TP_ENDED_BY='{why}'\ntp_requeue\n") == (85, [])
    assert not (here / "asked").exists()


def test_a_verdict_that_does_not_come_is_asked_for_again(here: Path) -> None:
    failing = (
        'tp_kernel() { echo >>"$HERE/asked"; [ "$(wc -l <"$HERE/asked")" -lt 3 ] && return 1; echo done; }\ntp_decide\n'
    )
    asked = [f"the end could not be judged; asked again ({n} of 3)" for n in (1, 2)]
    assert ran(here, failing) == (0, [*asked, "attempt 0: done"])
    code, said = ran(here, 'tp_kernel() { return 1; }\ntp_decide\necho "[$TP_WORD]"\n')
    assert (code, said[-2:]) == (0, ["attempt 0: no verdict", "[]"])
    assert len(said) == 5


def test_the_end_of_the_time_is_slurm_s_own_word(here: Path) -> None:
    """By the limit, as an admin may have changed it, and not EndTime, which a preemption brings forward."""
    body = 'tp_kernel() { echo "end $TP_END_S"; }\ntp_decide\n'
    assert ran(here, body) == (0, ["attempt 0: end 1796083200"])
    scontrol(
        here,
        'echo "JobId=41 JobState=RUNNING TimeLimit=UNLIMITED TimeMin=N/A StartTime=2026-11-29T21:56:56 EndTime=Unknown"',
    )
    assert ran(here, body) == (0, ["attempt 0: end "])


def test_a_node_may_have_died_and_slurm_ends_the_job_meanwhile(here: Path) -> None:
    scontrol(here, 'echo "JobId=41 JobState=COMPLETING EndTime=2026-12-01T00:00:00"')
    (here / "log").write_text(
        "slurmstepd: error: *** JOB 41 ON n1 CANCELLED AT 2026-11-30T10:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD ***\n"
    )
    body = "tp_kernel() { echo wait; }\nTP_END_S=5\ntp_decide\n"
    assert ran(here, body) == (0, ["attempt 0: Slurm ends the job: NODE FAILURE"])


def test_a_controller_that_is_away_for_a_moment_still_gets_the_requeue(here: Path) -> None:
    scontrol(here, '[ "$1" = requeue ] || exit 0\necho >>"$HERE/asked"; [ "$(wc -l <"$HERE/asked")" -ge 3 ]')
    again = [f"Slurm did not requeue the job; asked again in {n} s" for n in (5, 10)]
    assert ran(here, "TP_ENDED_BY=\ntp_requeue\n") == (85, again)
    assert (here / "asked").read_text() == "\n" * 3
    scontrol(here, "exit 1")
    code, said = ran(here, "TP_ENDED_BY=\ntp_requeue\n")
    assert (code, len(said)) == (85, 5)


def test_a_warning_that_comes_last_of_all_is_not_taken_for_the_step_s_end(here: Path) -> None:
    """The child ends while the shell is in its trap."""
    body = """
trap 'tp_warned USR2; while kill -0 $child && [ "$(ps -o stat= -p $child)" != Z ]; do :; done; :' USR2
(trap '' USR2; kill -USR2 $$; command sleep 0.2; exit 7) & child=$!
tp_wait $child
"""
    assert ran(here, body) == (0, ["warning: SIGUSR2", "the step ended with exit code 7"])


def test_a_claim_that_a_full_disk_left_empty_is_no_other_job_s(here: Path) -> None:
    """`printf` into /dev/full fails as on a full disk, and leaves nothing."""
    folder = here / "run/attempts/0"
    folder.mkdir(parents=True)
    code, said = ran(here, 'printf() { [ "$1" != "%s\\n" ] && builtin printf "$@"; }\ntp_begin\n')
    assert code == 75
    assert said == [
        f"attempt 0 cannot be claimed: {folder}/claim cannot be written; is the disk full, or over the quota?"
    ]
    assert not (folder / "claim").exists()


@pytest.mark.parametrize("name", [name for name in WARNINGS if name.isalpha()])
def test_what_is_allowed_as_a_warning_is_heard_by_every_script(name: str) -> None:
    for script in ("train.sbatch.j2", "custom.sbatch.j2", "local.sh.j2"):
        assert f"trap 'tp_warned {name}' {name}\n" in find(None, script).text()
