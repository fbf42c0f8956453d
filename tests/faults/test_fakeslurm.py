"""The fake Slurm behaves as the real one was seen to behave; what it answers is what the tests of every room build on (P80)."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from fakeslurm import TOOLS, FakeSlurm
from fakeslurm.options import split_script
from fakeslurm.world import parse_faults

from hpc.slurm.commands import Completed, Slurm

SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=tp-x --comment='a b'
#SBATCH --nodes=2 # a remark
#SBATCH -p short
# a comment
echo "job $SLURM_JOB_ID restart ${SLURM_RESTART_COUNT:-none}"
#SBATCH --time=3
"""


def run(fake: FakeSlurm, tool: str, *args: str, stdin: str | None = None, deadline_s: float = 30) -> Completed:
    return Slurm(bin_dir=str(fake.bin), conf=fake.conf, deadline_s=deadline_s).run(tool, list(args), stdin=stdin)


def submit(fake: FakeSlurm, *args: str) -> str:
    return run(fake, "sbatch", "--parsable", *(args or ("--wrap=true",))).out.strip()


def test_directives_are_read_up_to_the_first_command(fake_slurm: FakeSlurm) -> None:
    job = fake_slurm.job(run(fake_slurm, "sbatch", "--parsable", stdin=SCRIPT).out.strip())
    assert (job["name"], job["comment"], job["num_nodes"], job["partition"], job["time_limit"]) == (
        "tp-x",
        "a b",
        2,
        "short",
        "1:00:00",
    )
    assert job["script"] == SCRIPT


def test_the_command_line_wins_over_directives(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    (tmp_path / "s.sh").write_text(SCRIPT)
    assert fake_slurm.job(submit(fake_slurm, "--job-name=y", str(tmp_path / "s.sh")))["name"] == "y"


@pytest.mark.parametrize(
    ("args", "stdin", "code", "words"),
    [
        (["--bogus"], None, 255, "unrecognized option '--bogus'"),
        ([], "echo no interpreter\n", 1, "does not look like a batch script"),
        (["/nonexistent.sh"], None, 1, "Unable to open file"),
        ([], "#!/bin/sh\n#SBATCH --bogus=1\n", 255, "unrecognized option '--bogus'"),
        ([], "#!/bin/sh\n#SBATCH stray\n", 255, "Invalid directive found in batch script: stray"),
        (["--time"], None, 255, "requires an argument"),
    ],
)
def test_bad_scripts_and_options_are_refused(
    fake_slurm: FakeSlurm, args: list[str], stdin: str | None, code: int, words: str
) -> None:
    done = run(fake_slurm, "sbatch", *args, stdin=stdin)
    assert (done.rc, fake_slurm.jobs()) == (code, [])
    assert words in done.err


def test_heterogeneous_components(fake_slurm: FakeSlurm) -> None:
    first = run(
        fake_slurm, "sbatch", "--parsable", stdin="#!/bin/sh\n#SBATCH -N1\n#SBATCH hetjob\n#SBATCH -N2\n"
    ).out.strip()
    shown = run(fake_slurm, "squeue", "-h", "-u", fake_slurm.job(first)["user"], "-o", "%i %A %D").out.split("\n")
    assert shown[:2] == [f"{first}+0 {first} 1", f"{first}+1 {int(first) + 1} 2"]
    assert [len(c) for c in split_script("#!/bin/sh\n#SBATCH -N1\n#SBATCH hetjob\n#SBATCH -N2 -n4\n")[0]] == [1, 2]


def test_test_only_makes_no_job(fake_slurm: FakeSlurm) -> None:
    done = run(fake_slurm, "sbatch", "--test-only", "--wrap=true")
    assert (done.rc, done.out, "to start at" in done.err, fake_slurm.jobs()) == (0, "", True, [])


def test_squeue_shows_ended_jobs_only_when_asked_and_until_they_are_purged(fake_slurm: FakeSlurm) -> None:
    job = submit(fake_slurm)
    fake_slurm.finish(job, "TIMEOUT")
    assert run(fake_slurm, "squeue", "-h", "-o", "%A").out == ""
    assert run(fake_slurm, "squeue", "-h", "-t", "all", "-o", "%A %T").out == f"{job} TIMEOUT\n"
    fake_slurm.purge(job)
    assert run(fake_slurm, "squeue", "-h", "-t", "all", "-o", "%A").out == ""
    assert run(fake_slurm, "squeue", "-j", job).err == "slurm_load_jobs error: Invalid job id specified\n"
    assert run(fake_slurm, "sacct", "-nPX", "-j", job, "-o", "JobID,State").out == f"{job}|TIMEOUT\n"
    fake_slurm.purge(job, history=True)
    assert run(fake_slurm, "sacct", "-nPX", "-j", job).out == ""


def test_a_requeue_keeps_the_id_counts_and_moves_the_submit_time(fake_slurm: FakeSlurm) -> None:
    job = submit(fake_slurm)
    fake_slurm.start(job)
    fake_slurm.change(job, submit=1000)
    fake_slurm.node_fail(job)
    now = fake_slurm.job(job)
    assert (now["state"], now["restarts"], now["submit"] > 1000) == ("PENDING", 1, True)
    assert run(fake_slurm, "sacct", "-nPXD", "-j", job, "-o", "State").out == "NODE_FAIL\nPENDING\n"
    assert run(fake_slurm, "squeue", "-h", "-O", "RestartCnt:2|,Name:4|").out == "1 |wrap|\n"


def test_scancel_filters_must_all_fit_and_an_unknown_id_is_silent(fake_slurm: FakeSlurm) -> None:
    job = submit(fake_slurm, "--job-name=a", "--wrap=true")
    assert run(fake_slurm, "scancel", "--name=b", job).rc == 0
    assert fake_slurm.job(job)["state"] == "PENDING"
    assert run(fake_slurm, "scancel", "99999").rc == 0
    assert run(fake_slurm, "scancel", "abc").err == "scancel: error: Invalid job id abc\n"
    run(fake_slurm, "scancel", "--name=a", job)
    assert fake_slurm.job(job)["state"] == "CANCELLED"


def test_another_users_job_cannot_be_cancelled(fake_slurm: FakeSlurm) -> None:
    job = fake_slurm.add(user="somebody")
    assert "Access/permission denied" in run(fake_slurm, "scancel", str(job)).err
    assert fake_slurm.job(job)["state"] == "PENDING"


def test_ids_come_back_after_a_reset(fake_slurm: FakeSlurm) -> None:
    first = submit(fake_slurm)
    fake_slurm.purge(first, history=True)
    fake_slurm.reset_ids(int(first))
    assert submit(fake_slurm) == first
    assert len(fake_slurm.jobs()) == 2


# Faults


def test_accept_then_fails_leaves_a_job_and_no_id(fake_slurm: FakeSlurm) -> None:
    fake_slurm.faults("sbatch#1 accept-then timeout")
    done = run(fake_slurm, "sbatch", "--parsable", "--wrap=true")
    assert (done.rc, done.out, len(fake_slurm.jobs())) == (1, "", 1)
    assert "Socket timed out" in done.err
    assert submit(fake_slurm) == "101"


def test_counts_ranges_and_the_first_rule_that_fits(fake_slurm: FakeSlurm) -> None:
    fake_slurm.faults("# a comment\nsqueue#2-3 empty\n\nsqueue#5+ fail busy\n* warn late")
    seen = [run(fake_slurm, "squeue", "-h") for _ in range(6)]
    assert [(d.rc, "warning: late" in d.err) for d in seen] == [
        (0, True),
        (0, False),
        (0, False),
        (0, True),
        (1, False),
        (1, False),
    ]
    fake_slurm.faults("squeue#1 fail busy")
    assert run(fake_slurm, "squeue", "-h").rc == 1


def test_banner_slow_garbage_and_hang(fake_slurm: FakeSlurm) -> None:
    fake_slurm.faults(
        "sbatch#1 banner WELCOME\nsbatch#2 garbage job maybe\nsbatch#3 hang 60\nsbatch#4 accept-then-hang 60"
    )
    done = run(fake_slurm, "sbatch", "--parsable", "--wrap=true")
    assert (done.out, done.err) == ("WELCOME\n100\n", "WELCOME\n")
    assert run(fake_slurm, "sbatch", "--wrap=true").out == "job maybe\n"
    assert run(fake_slurm, "sbatch", "--wrap=true", deadline_s=0.5).timed_out
    assert len(fake_slurm.jobs()) == 1
    assert run(fake_slurm, "sbatch", "--wrap=true", deadline_s=1).timed_out
    assert len(fake_slurm.jobs()) == 2


def test_a_lagging_job_shows_after_so_many_queries(fake_slurm: FakeSlurm) -> None:
    fake_slurm.faults("sbatch lag 2")
    job = submit(fake_slurm)
    shown = [
        run(fake_slurm, tool, *args).out
        for tool, *args in [("squeue", "-h", "-o", "%A"), ("sacct", "-nPX", "-o", "JobID")] * 2
    ]
    assert [job in s for s in shown] == [False, False, True, True]


def test_a_crash_of_the_caller_after_and_before_the_work(fake_slurm: FakeSlurm) -> None:
    program = textwrap.dedent("""\
        import subprocess, sys
        subprocess.run([sys.argv[1], "--wrap=true"])
        print("survived")
    """)
    for rule, jobs in (("sbatch crash", 0), ("sbatch accept-then-crash", 1)):
        fake_slurm.faults(rule)
        done = subprocess.run(
            [sys.executable, "-c", program, str(fake_slurm.bin / "sbatch")], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout, len(fake_slurm.jobs())) == (-9, "", jobs)


@pytest.mark.parametrize("rule", ["sbatch", "sbatch explode", "sbatch#x fail busy", "SBATCH fail busy"])
def test_a_rule_that_is_none_is_an_error_at_once(rule: str) -> None:
    with pytest.raises(ValueError, match="not a fault rule"):
        parse_faults(rule)


def test_every_call_is_logged_and_the_log_survives_parallel_calls(fake_slurm: FakeSlurm) -> None:
    children = [subprocess.Popen([fake_slurm.bin / "squeue", "-h"], env={"A": "1"}) for _ in range(10)]
    for child in children:
        child.wait()
    calls = fake_slurm.calls("squeue")
    assert len(calls) == 10
    assert calls[0]["args"] == ["-h"]
    assert "A" in calls[0]["env"]


# Running jobs for real


def test_a_script_runs_with_slurms_variables_and_our_srun(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    body = "#!/bin/sh\n#SBATCH --nodes=2\nsrun --ntasks=4 sh -c 'echo \"$SLURM_PROCID $SLURM_LOCALID $SLURM_NODEID\"' | sort\n"
    job = run(fake_slurm, "sbatch", "--parsable", stdin=body).out.strip()
    fake_slurm.change(job, workdir=str(tmp_path))
    child = fake_slurm.execute(job, stdout=subprocess.PIPE)
    out, _ = child.communicate(timeout=30)
    assert (child.returncode, out.decode()) == (0, "0 0 0\n1 1 0\n2 0 1\n3 1 1\n")
    assert fake_slurm.job(job)["state"] == "RUNNING"


def test_a_restarted_job_knows_its_count(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    job = run(fake_slurm, "sbatch", "--parsable", stdin=SCRIPT).out.strip()
    fake_slurm.change(job, workdir=str(tmp_path))
    for said in (f"job {job} restart none\n", f"job {job} restart 1\n"):
        out, _ = fake_slurm.execute(job, stdout=subprocess.PIPE).communicate(timeout=30)
        assert out.decode() == said
        fake_slurm.requeue(job)


def test_p27_srun_passes_signals_on_to_every_task(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    task = "trap 'echo got $SLURM_PROCID; exit 0' USR2; echo up; while :; do sleep 0.05; done"
    env = {"PATH": "/usr/bin:/bin", "SLURM_JOB_NUM_NODES": "2"}
    child = subprocess.Popen([fake_slurm.bin / "srun", "--ntasks=2", "sh", "-c", task], env=env, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert [child.stdout.readline() for _ in range(2)] == [b"up\n"] * 2
    child.send_signal(12)
    assert sorted(child.stdout.read().split(b"\n")[:2]) == [b"got 0", b"got 1"]
    assert child.wait(timeout=30) == 0


def test_all_tools_are_there_and_say_their_version(fake_slurm: FakeSlurm) -> None:
    for tool in set(TOOLS) - {"srun"}:
        assert run(fake_slurm, tool, "--version").out == "slurm 24.05.4\n"
    assert all(os.access(fake_slurm.bin / tool, os.X_OK) for tool in TOOLS)


def test_scontrol_and_sinfo(fake_slurm: FakeSlurm) -> None:
    assert "MaxArraySize            = 1001" in run(fake_slurm, "scontrol", "show", "config").out
    assert run(fake_slurm, "scontrol", "show", "hostnames", "n[08-10],x").out.split() == ["n08", "n09", "n10", "x"]
    job = submit(fake_slurm)
    fake_slurm.start(job)
    assert run(fake_slurm, "scontrol", "requeue", job).rc == 0
    assert fake_slurm.job(job)["restarts"] == 1
    assert run(fake_slurm, "scontrol", "requeue", "999").err == "Invalid job id specified for job 999\n"
    assert run(fake_slurm, "sinfo", "-h", "-o", "%P|%a|%l|%D").out.splitlines()[0] == "batch*|up|7-00:00:00|4"
