"""One query for everybody (P19)."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from fakeslurm import FakeSlurm

from hpc.errors import Refusal
from hpc.slurm.commands import Slurm
from hpc.slurm.poll import Pace, Poll, forget, poll, read_cache
from hpc.store.locks import held

PACE = Pace(interval_s=30, max_s=180, first_wait_s=20)


class World:
    """A fake Slurm, a cache file, and a clock that the test sets."""

    def __init__(self, fake: FakeSlurm, folder: Path) -> None:
        self.fake, self.path, self.time = fake, folder / "poll.json", 1000.0
        self.slurm = Slurm(bin_dir=str(fake.bin), conf=fake.conf)

    def submit(self) -> str:
        job = self.slurm.run("sbatch", ["--parsable", "--wrap=true"]).out.strip()
        self.user = self.fake.job(job)["user"]
        return job

    def poll(self, wanted: Iterable[str] = ()) -> Poll:
        return poll(self.slurm, self.user, self.path, wanted=lambda: wanted, now=lambda: self.time, pace=PACE)

    def asked(self) -> tuple[int, int]:
        return len(self.fake.calls("squeue")), len(self.fake.calls("sacct"))


@pytest.fixture
def world(fake_slurm: FakeSlurm, tmp_path: Path) -> World:
    world = World(fake_slurm, tmp_path)
    world.submit()
    return world


def test_p19_one_query_an_interval(world: World) -> None:
    assert [r.job_id for r in world.poll().queue] == ["100"]
    world.time += 29
    assert world.poll().age_s(world.time) == 29
    assert world.asked() == (1, 0)
    world.time += 2
    assert world.poll().age_s(world.time) == 0
    assert world.asked() == (2, 0)


def test_p19_the_interval_grows_while_nothing_changes_and_falls_back(world: World) -> None:
    intervals = []
    for _ in range(7):
        intervals.append(world.poll().interval_s)
        world.time += intervals[-1] + 1
    assert intervals == [30, 45, 67.5, 101.25, 151.875, 180, 180]
    world.fake.start("100")
    assert world.poll().interval_s == 30


def test_p19_a_failing_controller_is_not_hammered_and_old_rows_serve(world: World) -> None:
    world.poll()
    world.fake.faults("squeue fail timeout")
    world.time += 31
    answer = world.poll()
    assert [r.job_id for r in answer.queue] == ["100"]
    assert answer.error.startswith("E-SLURM-002")
    assert answer.age_s(world.time) == 31
    world.time += 40
    world.poll()
    assert world.asked() == (2, 0)
    world.time += 10
    world.fake.faults("")
    assert world.poll().error == ""


def test_a_first_query_that_fails_is_an_empty_answer_with_its_error(world: World) -> None:
    world.fake.faults("squeue fail refused")
    answer = world.poll()
    assert (answer.queue, answer.polled_at) == ((), 0.0)
    assert answer.error.startswith("E-SLURM-002")


def test_p18_jobs_that_squeue_forgot_are_asked_of_sacct_once(world: World) -> None:
    world.fake.finish("100", "NODE_FAIL")
    world.fake.purge("100")
    answer = world.poll(["100"])
    assert [(r.job_id, r.cls) for r in answer.history] == [("100", "node_fail")]
    world.time += 200
    assert [(r.job_id, r.cls) for r in world.poll(["100"]).history] == [("100", "node_fail")]
    assert world.asked() == (2, 1)


def test_p18_a_record_without_its_name_is_asked_for_again(world: World) -> None:
    world.fake.finish("100", "FAILED")
    world.fake.change("100", name="allocation")
    world.fake.purge("100")
    assert [r.name for r in world.poll(["100"]).history] == [""]
    world.fake.change("100", name="mine")
    world.time += 200
    assert [r.name for r in world.poll(["100"]).history] == ["mine"]


def test_p18_without_accounting_there_is_no_error_but_it_is_said(world: World) -> None:
    world.fake.faults("sacct fail no-accounting")
    world.fake.purge("100")
    answer = world.poll(["100"])
    assert (answer.accounting, answer.error, answer.history, answer.asked) == (False, "", (), ("100",))


def test_a_busy_lock_gives_the_old_answer_with_its_age(world: World) -> None:
    world.poll()
    world.time += 100
    with held(world.path.with_suffix(".lock")):
        assert world.poll().age_s(world.time) == 100
    assert world.asked() == (1, 0)


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", '{"schema": "other"}', "null", '{"schema": "tuneplane-hpc/slurm-poll/v1"}']
)
def test_a_damaged_cache_is_thrown_away(world: World, damage: str) -> None:
    world.poll()
    world.path.write_text(damage)
    assert read_cache(world.path) == Poll()
    assert [r.job_id for r in world.poll().queue] == ["100"]
    assert json.loads(world.path.read_text())["queue"][0]["job_id"] == "100"


def test_a_clock_that_was_set_back_does_not_freeze_the_cache(world: World) -> None:
    world.poll()
    world.time -= 86400
    assert world.poll().polled_at == world.time
    assert world.asked() == (2, 0)


def test_forget_makes_the_next_answer_new(world: World) -> None:
    world.poll()
    forget(world.path)
    forget(world.path)
    world.poll()
    assert world.asked() == (2, 0)


def test_the_cache_is_private(world: World) -> None:
    world.poll()
    assert world.path.stat().st_mode & 0o777 == 0o600


def test_missing_commands_are_a_refusal_not_an_empty_queue(world: World) -> None:
    world.slurm = Slurm(bin_dir="/nonexistent")
    with pytest.raises(Refusal, match="E-SLURM-001"):
        world.poll()


def _ask(bin_dir: str, user: str, path: Path, barrier, queue) -> None:  # type: ignore[no-untyped-def]
    barrier.wait()
    answer = poll(Slurm(bin_dir=bin_dir), user, path, wanted=list, now=time.time, pace=PACE)
    queue.put([r.job_id for r in answer.queue])


def test_p19_fifty_processes_at_once_ask_once(world: World) -> None:
    world.fake.faults("squeue slow 0.5")
    context = multiprocessing.get_context("fork")
    barrier, answers = context.Barrier(50), context.Queue()
    children = [
        context.Process(target=_ask, args=(str(world.fake.bin), world.user, world.path, barrier, answers))
        for _ in range(50)
    ]
    for child in children:
        child.start()
    assert [answers.get(timeout=60) for _ in children] == [["100"]] * 50
    for child in children:
        child.join()
    assert world.asked() == (1, 0)
