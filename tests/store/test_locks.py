"""Locks: two processes exclude each other, a dead owner is found by proof, and age alone never breaks anything."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from tuneplane.record.canonical import canonical_bytes

from hpc.errors import Refusal
from hpc.store.contest import contest
from hpc.store.locks import break_claims, claims, held
from hpc.store.owners import Owner, is_gone, parse_owner, this_process
from tests.store.holding import hold_in_child


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    lock = tmp_path / "pointer.lock"
    pid = hold_in_child(lock)
    yield lock, pid
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _rewrite_owner(lock: Path, **changes: object) -> None:
    """Make the holder's record look as if it came from elsewhere."""
    record = next(Path(f"{lock}.owners").iterdir())
    record.write_bytes(canonical_bytes({**json.loads(record.read_bytes()), **changes}))


def _make_ancient(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        os.utime(path, (0, 0))


def test_lock_is_free_again_after_the_body(tmp_path: Path) -> None:
    for _ in range(3):
        with held(tmp_path / "a.lock"):
            assert len(claims(tmp_path / "a.lock")) == 2
    assert claims(tmp_path / "a.lock") == []
    assert list((tmp_path / "a.lock.owners").iterdir()) == []


def test_lock_is_free_again_after_an_error_in_the_body(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), held(tmp_path / "a.lock"):
        _ = 1 // 0
    with held(tmp_path / "a.lock"):
        assert claims(tmp_path / "a.lock")[0].pid == os.getpid()


def test_a_busy_lock_refuses_with_exit_75_and_names_its_owner(holder: tuple[Path, int]) -> None:
    lock, pid = holder
    with pytest.raises(Refusal) as caught, held(lock):
        pass
    assert (caught.value.code, caught.value.exit) == ("E-STORE-001", 75)
    assert f"pid {pid} of uid {os.getuid()}" in caught.value.message
    assert "job 77" in caught.value.message
    assert "for a test" in caught.value.message


def test_p61_two_processes_are_never_inside_at_once(tmp_path: Path) -> None:
    def mechanism(path: str, deadline: float) -> AbstractContextManager[None]:
        return held(path, timeout_s=deadline - time.monotonic())

    outcome = contest(mechanism, str(tmp_path / "a.lock"), rounds=15)
    assert (outcome.verdict, outcome.detail) == ("sound", "15 rounds each, never both inside")


def test_p62_a_killed_owner_of_this_machine_is_proved_gone(holder: tuple[Path, int]) -> None:
    lock, pid = holder
    _kill(pid)
    assert [c.gone for c in claims(lock)] == [True, True]
    with held(lock):
        assert {c.pid for c in claims(lock)} == {os.getpid()}
    assert list(Path(f"{lock}.owners").iterdir()) == []


def test_p62_two_rescuers_of_a_dead_claim_do_not_hurt_each_other(holder: tuple[Path, int]) -> None:
    lock, pid = holder
    _kill(pid)

    @contextmanager
    def mechanism(path: str, deadline: float) -> Iterator[None]:
        with held(path, timeout_s=deadline - time.monotonic()):
            yield

    assert contest(mechanism, str(lock), rounds=10).verdict == "sound"


@pytest.mark.parametrize("changes", [{"boot_id": "another-boot"}, {"pid_namespace": 1}, {"start_ticks": 0}])
def test_p62_age_alone_never_breaks_a_lock(holder: tuple[Path, int], changes: dict[str, object]) -> None:
    lock, pid = holder
    _kill(pid)
    _rewrite_owner(lock, since="1999-01-01T00:00:00.000000Z", **changes)
    _make_ancient(lock.parent)
    with pytest.raises(Refusal) as caught, held(lock):
        pass
    assert caught.value.code == "E-STORE-001"
    assert len(claims(lock)) == 2


def test_p62_an_owner_elsewhere_is_gone_when_slurm_says_its_job_ended(holder: tuple[Path, int]) -> None:
    lock, pid = holder
    _kill(pid)
    _rewrite_owner(lock, boot_id="another-boot", cluster="lab")
    asked: list[tuple[str, str]] = []

    def ended(job_id: str, cluster: str) -> bool:
        asked.append((job_id, cluster))
        return len(asked) > 1  # still running when first asked

    with pytest.raises(Refusal), held(lock, ended=lambda job_id, cluster: False):
        pass
    with held(lock, ended=ended, timeout_s=5):
        assert {c.pid for c in claims(lock)} == {os.getpid()}
    assert asked[0] == ("77", "lab")


def test_a_claim_without_an_owner_record_is_never_broken_by_itself(holder: tuple[Path, int]) -> None:
    lock, pid = holder
    _kill(pid)
    next(Path(f"{lock}.owners").iterdir()).unlink()
    with pytest.raises(Refusal, match="without an owner record"), held(lock):
        pass
    break_claims(lock, [c.name for c in claims(lock)])
    with held(lock):
        assert len(claims(lock)) == 2


def test_a_reused_pid_is_not_mistaken_for_the_owner() -> None:
    me = this_process(env={})
    assert is_gone(me) is False
    assert is_gone(Owner(**{**me.as_json(), "start_ticks": me.start_ticks + 1})) is True


def test_a_proc_that_hides_processes_proves_nothing(tmp_path: Path) -> None:
    me = this_process(env={})
    assert is_gone(Owner(**{**me.as_json(), "start_ticks": me.start_ticks + 1}), proc=str(tmp_path)) is False


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"pid": 1}', canonical_bytes({"pid": "1"})])
def test_a_damaged_owner_record_proves_nothing(data: bytes) -> None:
    assert parse_owner(data) is None


def test_owner_record_reads_back() -> None:
    me = this_process("x", env={"SLURM_JOB_ID": "5", "SLURM_CLUSTER_NAME": "lab"}, now=lambda: "2026-01-01T00:00:00Z")
    assert parse_owner(canonical_bytes(me.as_json())) == me
    assert (me.job_id, me.cluster, me.since) == ("5", "lab", "2026-01-01T00:00:00Z")


def test_something_else_at_the_locks_path_is_not_taken_for_a_lock(tmp_path: Path) -> None:
    (tmp_path / "a.lock").write_text("my thesis\n" * 300)
    with pytest.raises(Refusal) as caught, held(tmp_path / "a.lock", timeout_s=0):
        pass
    assert caught.value.code == "E-STORE-003"
    assert (tmp_path / "a.lock").read_text().startswith("my thesis")


def test_p61_without_hard_links_there_is_a_refusal_and_no_weaker_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    def no_links(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    entered = []
    with pytest.raises(Refusal) as caught, held(tmp_path / "a.lock"):
        entered.append(1)
    assert caught.value.code == "E-STORE-002"
    assert entered == []
