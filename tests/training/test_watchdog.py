from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tuneplane.contract import exits
from tuneplane.training.watchdog import Watchdog

KERNEL = Path(__file__).resolve().parents[2] / "hpc" / "kernel"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def watched() -> tuple[Watchdog, Clock, list[str]]:
    clock, ended = Clock(), list[str]()
    return Watchdog(ended.append, clock), clock, ended


def test_work_within_its_bound_is_left_alone() -> None:
    dog, clock, ended = watched()
    dog.beat("step 1", 10)
    for clock.now in (5.0, 10.0):
        dog.look()
    assert ended == []


def test_work_past_its_bound_ends_the_rank_once_and_says_what_it_was() -> None:
    dog, clock, ended = watched()
    dog.beat("saving step 40", 10)
    for clock.now in (10.1, 11.0):
        dog.look()
    assert ended == ["no end in sight: saving step 40 took longer than its bound; this rank stops (exit 87)"]


def test_a_part_that_is_done_starts_the_time_anew() -> None:
    dog, clock, ended = watched()
    dog.beat("step 2", 10)
    clock.now = 9
    dog.again()
    clock.now = 18
    dog.look()
    assert ended == []
    clock.now = 20
    dog.look()
    assert len(ended) == 1


def test_rest_expects_nothing() -> None:
    dog, clock, ended = watched()
    dog.beat("step 3", 10)
    dog.rest()
    dog.again()
    clock.now = 1e9
    dog.look()
    assert ended == []


def test_a_main_thread_that_hangs_is_ended_with_the_exit_code_of_a_lost_peer() -> None:
    code = (
        "from tuneplane.training.watchdog import Watchdog; import time\n"
        "dog = Watchdog().start(0.02); dog.beat('nothing', 0.1); time.sleep(60)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(KERNEL)}, capture_output=True, timeout=30
    )
    assert done.returncode == exits.PEER_LOST
    assert b"nothing took longer than its bound" in done.stderr
