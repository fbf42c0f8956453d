"""Stopping, retrying, resuming and sharing (P16, P30)."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from builder import RunMaker
from conftest import ME
from fakeslurm import FakeSlurm
from tuneplane.contract.checkpointed import Evaluations, marks_of
from tuneplane.contract.layout import StorageRoot
from tuneplane.record.events import read_chain

from hpc.errors import Refusal
from hpc.runs import actions, unreached
from hpc.runs.actions import Actor
from hpc.runs.audit import audit
from hpc.runs.records import read_facts
from hpc.runs.state import Look, RunState, decide
from hpc.slurm.commands import Slurm
from hpc.store.owners import start_ticks

Make = Callable[..., RunMaker]
RUNNING = RunState("running", "squeue", "", job_id="100")


@pytest.fixture
def actor() -> Actor:
    return Actor(ME, os.getuid(), lambda: "2026-03-01T13:00:00.000000Z")


@pytest.fixture
def queued(make_run: Make, fake_slurm: FakeSlurm) -> RunMaker:
    maker = make_run().package().admit().submit()
    fake_slurm.add(id=100, name="sft.run-0a1b2c3d.0", user=ME)
    return maker


def stop(maker: RunMaker, fake: FakeSlurm, actor: Actor, state: RunState = RUNNING) -> str:
    slurm = Slurm(bin_dir=str(fake.bin), conf=fake.conf)
    return actions.stop(maker.run, read_facts(maker.run), state, actor, lambda: slurm)


def test_stop_marks_first_and_then_cancels(queued: RunMaker, fake_slurm: FakeSlurm, actor: Actor) -> None:
    assert stop(queued, fake_slurm, actor) == "job 100 is cancelled"
    assert fake_slurm.job(100)["state"] == "CANCELLED"
    mark = json.loads((queued.run.root / "stop_requested").read_text())
    assert mark == {"at": "2026-03-01T13:00:00.000000Z", "by": ME}
    chain = read_chain(queued.run.events / "job-stop-0.jsonl")
    assert (chain.status, chain.events[0]["message"], chain.events[0]["details"]) == (
        "verified",
        "stop requested",
        {"by": ME},
    )


def test_of_a_stopped_run_only_evaluations_without_a_checkpoint_are_cancelled_and_marked(
    queued: RunMaker, fake_slurm: FakeSlurm, root: StorageRoot, actor: Actor
) -> None:
    trained = root.run(ME, "trained", "run-00000001")
    (trained.checkpoints / "step-000000010").mkdir(parents=True)
    (trained.checkpoints / "step-000000010/manifest.json").write_text("{}")
    trained.evaluations.mkdir()
    (trained.evaluations / "100_1").write_text("released 2026-03-01T12:00:00Z\n")
    asked = Evaluations(queued.run, (10, 20, 30, 40))
    slurm = Slurm(bin_dir=str(fake_slurm.bin), conf=fake_slurm.conf)
    facts = read_facts(queued.run)
    assert unreached.cancel(trained, asked, facts, actor, lambda: slurm) == [30, 40]
    assert {n: m.word for n, m in marks_of(trained).items()} == {1: "released", 2: "cancelled", 3: "cancelled"}
    (call,) = fake_slurm.calls("scancel")
    assert call["args"][-3:] == ["--name=sft.run-0a1b2c3d.0", "100_2", "100_3"]
    assert unreached.cancel(trained, asked, facts, actor, lambda: slurm) == []


def test_stop_twice_is_no_error_and_one_event(queued: RunMaker, fake_slurm: FakeSlurm, actor: Actor) -> None:
    stop(queued, fake_slurm, actor)
    stop(queued, fake_slurm, actor)
    assert [p.name for p in queued.run.events.glob("job-stop-*")] == ["job-stop-0.jsonl"]


def test_p16_stop_never_cancels_a_job_that_has_the_id_now(
    queued: RunMaker, fake_slurm: FakeSlurm, actor: Actor
) -> None:
    fake_slurm.purge(100, history=True)
    stranger = fake_slurm.add(id=100, name="somebody-elses-work", user=ME)
    stop(queued, fake_slurm, actor)
    assert fake_slurm.job(stranger)["state"] == "PENDING"


def test_a_controller_that_is_away_leaves_the_mark_and_exit_75(
    queued: RunMaker, fake_slurm: FakeSlurm, actor: Actor
) -> None:
    fake_slurm.faults("scancel fail timeout")
    with pytest.raises(Refusal) as caught:
        stop(queued, fake_slurm, actor)
    assert (caught.value.code, caught.value.exit) == ("E-SLURM-002", 75)
    assert (queued.run.root / "stop_requested").exists()
    fake_slurm.faults("")
    assert stop(queued, fake_slurm, actor) == "job 100 is cancelled"


def test_a_run_that_has_ended_has_nothing_to_stop(queued: RunMaker, fake_slurm: FakeSlurm, actor: Actor) -> None:
    for state in (RunState("done", "own record", "", final=True), RunState("vanished", "age", "")):
        with pytest.raises(Refusal, match="E-RUNS-010"):
            stop(queued, fake_slurm, actor, state)
    assert not (queued.run.root / "stop_requested").exists()


def test_another_users_run_is_not_mine_to_stop(queued: RunMaker, fake_slurm: FakeSlurm) -> None:
    for actor in (Actor("mallory", os.getuid(), str), Actor(ME, os.getuid() + 1, str)):
        with pytest.raises(Refusal, match="E-RUNS-014"):
            stop(queued, fake_slurm, actor)


def test_a_local_run_is_asked_by_signal(make_run: Make, fake_slurm: FakeSlurm, actor: Actor) -> None:
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    maker = make_run(kind="local").package().admit().submit(pid=child.pid, pid_start=start_ticks(child.pid))
    assert stop(maker, fake_slurm, actor) == f"process {child.pid} was asked to end"
    assert child.wait(timeout=10) == -signal.SIGTERM


def test_a_pid_that_came_back_is_never_signalled(make_run: Make, fake_slurm: FakeSlurm, actor: Actor) -> None:
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    maker = make_run(kind="local").package().admit().submit(pid=child.pid, pid_start=1)
    with pytest.raises(Refusal, match="E-RUNS-016"):
        stop(maker, fake_slurm, actor)
    assert child.poll() is None
    child.kill()
    child.wait()


def test_an_action_after_the_end_leaves_the_audit_verified(make_run: Make, actor: Actor) -> None:
    maker = make_run().done()
    actions.record(maker.run, actor, "note", "noting", "completed", "a note")
    actions.record(maker.run, actor, "note", "noting", "completed", "another")
    assert sorted(p.name for p in maker.run.events.glob("job-note-*")) == ["job-note-0.jsonl", "job-note-1.jsonl"]
    assert audit(maker.run).verdict == "verified"


# Retry and resume


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (RunState("running", "squeue", ""), "E-RUNS-011"),
        (RunState("queued", "squeue", ""), "E-RUNS-011"),
        (RunState("requeued", "squeue", ""), "E-RUNS-011"),
        (RunState("done", "own record", "", final=True), "E-RUNS-012"),
        (RunState("unknown", "squeue", "", job_id="100"), "E-RUNS-015"),
    ],
)
def test_what_may_not_be_started_again(make_run: Make, actor: Actor, state: RunState, code: str) -> None:
    with pytest.raises(Refusal, match=code):
        actions.require_ended(make_run().package().run, state, actor)


@pytest.mark.parametrize("cls", ["error", "timeout", "cancelled", "node_fail", "preempted", "vanished"])
def test_what_may_be_started_again(make_run: Make, actor: Actor, cls: str) -> None:
    actions.require_ended(make_run().package().run, RunState(cls, "own record", "", final=True, job_id="1"), actor)  # type: ignore[arg-type]


def test_resume_needs_a_complete_checkpoint(make_run: Make) -> None:
    run = make_run().package().run
    with pytest.raises(Refusal, match="E-RUNS-013"):
        actions.newest_checkpoint(run)
    (run.checkpoints / "latest.json").write_text('{"step": 40, "path": "step-000000040"}')
    with pytest.raises(Refusal, match="E-RUNS-013"):
        actions.newest_checkpoint(run)
    folder = run.checkpoints / "step-000000040"
    folder.mkdir()
    (folder / "manifest.json").write_text("{}")
    assert actions.newest_checkpoint(run) == 40
    (run.checkpoints / "latest.json").write_text("{")
    with pytest.raises(Refusal, match="E-RUNS-013"):
        actions.newest_checkpoint(run)


# Share


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_share_opens_one_run_and_no_other(root: StorageRoot, make_run: Make, actor: Actor) -> None:
    shared, other, elsewhere = (
        make_run("run-aa01").done(),
        make_run("run-bb01").done(),
        make_run("run-cc01", "eval").done(),
    )
    os.chmod(root.owner_runs(ME), 0o2750)
    (shared.run.attempt(0).env).write_text("{}")
    os.chmod(shared.run.attempt(0).env, 0o600)
    os.chmod(shared.run.attempt(0).out / "adapter.safetensors", 0o600)
    actions.share(shared.run, actor)
    assert mode(root.owner_runs(ME)) == 0o2751
    assert mode(shared.run.root.parent) == 0o751
    assert mode(shared.run.root) & 0o055 == 0o055
    assert mode(shared.run.attempt(0).out / "adapter.safetensors") == 0o644
    assert mode(shared.run.attempt(0).env) == 0o600
    assert mode(other.run.root) == 0o750
    assert mode(elsewhere.run.root) == 0o750
    actions.share(other.run, actor)
    assert mode(shared.run.root) & 0o055 == 0o055
    actions.share(shared.run, actor, undo=True)
    assert mode(shared.run.root) == 0o750
    assert mode(other.run.root) & 0o055 == 0o055
    assert audit(shared.run).verdict == "verified"


@pytest.mark.two_users
def test_a_shared_run_can_be_audited_by_another_user_and_the_rest_cannot_be_seen(
    root: StorageRoot, make_run: Make, actor: Actor, tmp_path: Path
) -> None:
    shared, other = make_run("run-aa01").done(), make_run("run-bb01").done()
    os.chmod(root.owner_runs(ME), 0o2750)
    for folder in (tmp_path, *list(tmp_path.parents)[:3], root.path, root.runs):
        os.chmod(folder, mode(folder) | 0o055)
    actions.share(shared.run, actor)
    os.setegid(65534)
    os.seteuid(65534)
    try:
        assert audit(shared.run).verdict == "verified"
        assert not os.access(other.run.admission, os.R_OK, effective_ids=True)
        with pytest.raises(PermissionError):
            os.listdir(root.owner_runs(ME))
        with pytest.raises(PermissionError):
            os.listdir(shared.run.root.parent)
    finally:
        os.seteuid(0)
        os.setegid(0)


def test_links_in_a_run_do_not_open_what_they_point_at(make_run: Make, actor: Actor, tmp_path: Path) -> None:
    maker = make_run().done()
    secret = tmp_path / "secret"
    secret.write_text("x")
    os.chmod(secret, 0o600)
    (maker.run.root / "link").symlink_to(secret)
    actions.share(maker.run, actor)
    assert mode(secret) == 0o600


def test_a_stopped_pending_job_ends_as_cancelled(queued: RunMaker, fake_slurm: FakeSlurm, actor: Actor) -> None:
    from hpc.slurm import query

    stop(queued, fake_slurm, actor)
    slurm = Slurm(bin_dir=str(fake_slurm.bin), conf=fake_slurm.conf)
    rows = query.jobs(slurm, ME).rows
    end = rows[0].ended_at
    assert end is not None
    state = decide(read_facts(queued.run), Look(rows, polled_at=end + 61), end + 61)
    assert (state.cls, state.final, state.stop_requested) == ("cancelled", True, True)
