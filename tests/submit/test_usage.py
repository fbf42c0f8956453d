"""Usage: what counts against the quota, without a look at runs that the queue does not name."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tuneplane.contract.layout import RunPaths, StorageRoot

from hpc.submit.admission import Usage
from hpc.submit.usage import holds, newest_number, queued_jobs, recent_runs, usage_of


def make(root: StorageRoot, exp: str, run_id: str, job_id: str, gpus: int = 2, *, ended: bool = False) -> RunPaths:
    run = root.run("alice", exp, run_id)
    for folder in (run.launch.parent, run.submissions, run.attempt(0).root):
        folder.mkdir(parents=True)
    run.launch.write_text(json.dumps({"shape": {"pools": [{"nodes": 1, "gpus_per_node": gpus}]}}))
    (run.submissions / "0.json").write_text(json.dumps({"kind": "slurm", "job_id": job_id}))
    if ended:
        run.attempt(0).end.write_text(json.dumps({"class": "done", "requeue": False}))
    return run


@pytest.fixture
def root(tmp_path: Path) -> StorageRoot:
    root = StorageRoot(tmp_path)
    make(root, "a.b", "run-0001", "11", 2)
    make(root, "a.b", "run-0002", "12", 4, ended=True)
    make(root, "c", "run-0003", "13", 8)
    return root


QUEUE = {"11": "a.b.run-0001.0", "12": "a.b.run-0002.0", "90": "somebody's own job", "91": "gone.run-00ff.0"}


def test_only_open_runs_that_the_queue_names_count(root: StorageRoot) -> None:
    assert usage_of(root, "alice", QUEUE, local=False) == Usage(2, 1)
    assert usage_of(root, "alice", {}, local=False) == Usage(0, 0)


def test_a_name_alone_holds_nothing(root: StorageRoot) -> None:
    """A job that borrowed a run's name is not the run's job."""
    assert usage_of(root, "alice", {"99": "c.run-0003.0"}, local=False) == Usage(0, 0)


def test_every_open_run_counts_when_slurm_cannot_be_asked(root: StorageRoot) -> None:
    assert usage_of(root, "alice", None, local=False) == Usage(10, 2)


def test_runs_on_a_local_fleet_count_although_no_queue_names_them(root: StorageRoot) -> None:
    from hpc.store.owners import start_ticks

    run = make(root, "d", "run-0004", "local-1", 1)
    pid = os.getpid()
    record = {"kind": "local", "job_id": f"local-{pid}", "pid": pid, "pid_start": start_ticks(pid)}
    (run.submissions / "0.json").write_text(json.dumps(record))
    assert usage_of(root, "alice", QUEUE, local=True) == Usage(3, 2)
    assert usage_of(root, "alice", QUEUE, local=False) == Usage(2, 1)


def test_the_queue_is_asked_once_and_names_survive_blanks_and_arrays(fake_slurm) -> None:
    from hpc.slurm.commands import Slurm

    fake_slurm.add(name="a.b.run-0001.0", user="alice", id=5)
    slurm = Slurm(bin_dir=str(fake_slurm.bin), conf=fake_slurm.conf)
    assert queued_jobs(slurm, "alice") == {"5": "a.b.run-0001.0"}
    assert len(fake_slurm.calls()) == 1
    fake_slurm.faults("squeue fail timeout")
    assert queued_jobs(slurm, "alice") is None


def test_a_run_whose_fleet_has_forgotten_the_job_holds_nothing(root: StorageRoot) -> None:
    run = root.run("alice", "a.b", "run-0001")
    assert [holds(run, queue) for queue in (QUEUE, {}, None)] == [True, False, True]


def test_old_folders_are_not_recent(root: StorageRoot) -> None:
    old = root.run("alice", "a.b", "run-0001").root
    os.utime(old, (1000, 1000))
    assert [r.run_id for r in recent_runs(root, "alice", "a.b", since=2000)] == ["run-0002"]
    assert recent_runs(root, "alice", "none", since=0) == []


DAMAGE = ["", "null", "[]", '{"shape": 1}', '{"shape": {"pools": [1]}}', '{"shape": {"pools": [{"nodes": "x", "gpus_per_node": 1}]}}']  # fmt: skip


@pytest.mark.parametrize("text", DAMAGE)
def test_a_damaged_record_of_one_run_does_not_stop_the_counting_of_others(root: StorageRoot, text: str) -> None:
    root.run("alice", "a.b", "run-0001").launch.write_text(text)
    assert usage_of(root, "alice", None, local=False) == Usage(8, 2)


@pytest.mark.parametrize("record", [{"pid": "x"}, {"pid": []}, {"pid": None, "pid_start": None}, {"pid": -1}, {}])
def test_a_local_submission_without_a_process_is_not_alive(root: StorageRoot, record: dict[str, object]) -> None:
    run = make(root, "d", "run-0004", "x")
    (run.submissions / "0.json").write_text(json.dumps({"kind": "local", "job_id": "local-1", **record}))
    assert not holds(run, None)


def test_odd_names_in_a_folder_of_numbers_are_no_numbers(root: StorageRoot) -> None:
    run = root.run("alice", "a.b", "run-0001")
    for name in ("²", "٣", "9" * 5000 + "x", "99999999999999", "7.sh", ".9.json"):
        (run.submissions / name[:200]).write_text("")
    assert newest_number(run, "submissions") == 7
