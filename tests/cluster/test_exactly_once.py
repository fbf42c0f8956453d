"""One wish, one job: two commands at once, Ctrl-C at any moment, an sbatch that hangs after accepting, a second copy of the script."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from lab import Lab, Person, Run
from labcluster import until

pytestmark = pytest.mark.cluster

HELD = ("--begin", "now+1hour")


def test_two_submissions_in_the_same_second_are_one_job(lab: Lab, alice: Person) -> None:
    lab.experiments(alice, {"twice": "true"})
    both = [lab.start(alice, "tp", "submit", "twice", *HELD, "--json") for _ in range(2)]
    said = [(*process.communicate(timeout=120), process.returncode) for process in both]
    refused = [out for out, _, code in said if code != 0]
    assert len(refused) == 1, said
    assert any(code in refused[0] for code in ("E-STORE-001", "E-SUBMIT-052")), refused
    assert len(lab.cluster.jobs_named("twice.")) == 1
    assert len(lab.runs(alice, "twice")) == 1


def whole_runs(lab: Lab, who: Person, exp: str) -> dict[str, str]:
    """Run id -> job id; every run of the experiment must be whole, and nothing hidden may lie beside them."""
    found = {}
    for name in lab.runs(who, exp):
        run = Run(lab, lab.root.run(who.name, exp, name), "")
        submission = run.read("submissions", "0.json")
        assert submission is not None, f"{name} has no submission"
        assert run.read("admission.json")["verdict"] == "admitted"
        assert (run.paths.batch / "0.sh").stat().st_mode & 0o777 == 0o555
        found[name] = submission["job_id"]
    return found


def test_ctrl_c_at_any_moment_leaves_one_job_or_none_and_no_half_written_run(lab: Lab, alice: Person) -> None:
    lab.experiments(alice, {"broken-off": "true"})
    began = time.monotonic()
    lab.submit(alice, "broken-off", *HELD)
    whole = time.monotonic() - began
    ends = []
    for moment in (0.1, 0.3, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95):
        process = lab.start(alice, "tp", "submit", "broken-off", *HELD, "--again")
        time.sleep(whole * moment)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=120)
        ends.append((moment, process.returncode))
        assert "Traceback" not in err, err
        lab.tp(alice, "submit", "broken-off", "--dry-run", "--again")
        runs, jobs = whole_runs(lab, alice, "broken-off"), lab.cluster.jobs_named("broken-off.")
        assert sorted(runs.values()) == jobs, ends
    assert 130 in {code for _, code in ends}, ends


def test_p05_an_sbatch_that_hangs_after_accepting_is_adopted(lab: Lab, alice: Person) -> None:
    lab.experiments(alice, {"adopted": "true"})
    run = lab.submit(alice, "adopted", "--profile", "moody")
    assert lab.cluster.jobs_named("adopted.") == [run.job_id]
    assert run.wait_end()["class"] == "done"
    assert run.read("submissions", "0.json")["job_id"] == run.job_id != "4711"
    assert list(whole_runs(lab, alice, "adopted")) == [run.id]


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file with its size and time of change."""
    return {
        str(p.relative_to(folder)): (p.stat().st_size, p.stat().st_mtime_ns)
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


def test_p05_a_second_copy_of_the_script_ends_with_86_and_writes_nothing(lab: Lab, alice: Person) -> None:
    lab.experiments(alice, {"copied": "echo once; sleep 2"})
    run = lab.submit(alice, "copied")
    run.wait_line("once")
    before = tree(run.paths.attempt(0).logs)
    said = lab.slurm(alice, "sbatch", "--parsable", run.paths.batch / "0.sh", cwd=run.paths.root)
    second = said.out.strip()
    assert lab.cluster.wait_state(second, "FAILED", "COMPLETED") == "FAILED"
    assert lab.cluster.job(second)["ExitCode"] == "86:0"
    assert before.keys() == tree(run.paths.attempt(0).logs).keys()
    assert run.wait_end()["job_id"] == run.job_id
    after = tree(run.paths.root)
    third = lab.slurm(alice, "sbatch", "--parsable", run.paths.batch / "0.sh", cwd=run.paths.root).out.strip()
    lab.cluster.wait_state(third, "FAILED")
    log = f"batch{os.sep}0.log"
    assert {k: v for k, v in tree(run.paths.root).items() if k != log} == {k: v for k, v in after.items() if k != log}
    assert f"attempt 0 is claimed by job {run.job_id}; this copy does nothing" in run.batch_log()
    assert run.log(0) == ["once"]
    assert lab.tp(alice, "runs", "audit", run.id, "--json").json["verdict"] == "verified"


def test_p05_a_job_that_slurm_requeues_after_its_end_does_nothing(lab: Lab, alice: Person) -> None:
    """A slurmd that was killed while the job ended well: Slurm takes the node for dead, and queues the job again."""
    lab.experiments(alice, {"ended": "echo once"})
    run = lab.submit(alice, "ended")
    assert run.wait_end()["class"] == "done"
    lab.cluster.wait_state(run.job_id, "COMPLETED")
    before = tree(run.paths.root)
    lab.slurm(alice, "scontrol", "requeue", run.job_id)
    said = "attempt 1 does nothing: attempt 0 ended well"
    until(said, lambda: said in run.batch_log())
    assert lab.cluster.wait_state(run.job_id, "COMPLETED") == "COMPLETED"
    log = f"batch{os.sep}0.log"
    assert {k: v for k, v in tree(run.paths.root).items() if k != log} == {k: v for k, v in before.items() if k != log}
    assert lab.tp(alice, "job", "status", run.id, "--json").json["runs"][0]["state"] == "done"
    assert lab.tp(alice, "runs", "audit", run.id, "--json").json["verdict"] == "verified"


def test_retry_is_the_next_attempt_of_the_same_run(lab: Lab, alice: Person) -> None:
    lab.experiments(alice, {"again": '[ "$TUNEPLANE_ATTEMPT" = 1 ] || exit 4'})
    run = lab.submit(alice, "again")
    assert run.wait_end()["exit_code"] == 4
    said = lab.tp(alice, "job", "retry", run.id, "--json").json
    assert (said["run_id"], said["job_id"] != run.job_id) == (run.id, True)
    until("attempt 1 has ended", lambda: run.end(1))
    assert (run.end(1)["class"], run.end(1)["job_id"], run.attempts()) == ("done", said["job_id"], [0, 1])
    assert lab.tp(alice, "job", "retry", run.id, "--json", code=1).codes == ["E-RUNS-012"]
    assert lab.tp(alice, "runs", "audit", run.id, "--json").json["verdict"] == "verified"
