"""Killed ranks and shells, a stop by Slurm, and a full disk: a run that trains is struck, resumed as its owner would, and has the same weights."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import faults
import pytest
from journeys import training_flags
from lab import Lab, Person, Run
from labcluster import until

pytestmark = [pytest.mark.cluster, pytest.mark.train, pytest.mark.timeout(900)]
SETTINGS: dict[str, object] = {"max_steps": 80, "save_steps": 20}


@dataclass(frozen=True)
class Struck:
    """Runs that train side by side: one in peace, one that is struck again and again, and one whose checkpoints have room for one and a half."""

    whole: Run
    beaten: Run
    full: Run
    disk: faults.SmallDisk

    def weights(self) -> str:
        """Of the run that nothing happened to."""
        self.whole.wait_end()
        return weights(self.whole)


@pytest.fixture(scope="module")
def struck(lab: Lab, alice: Person) -> Iterator[Struck]:
    def train(*flags: str) -> Run:
        return lab.submit(alice, "sums", "--profile", "cpu", *training_flags(lab, **SETTINGS), *flags)

    full = train("--begin", "now+3")
    disk = faults.SmallDisk(alice, full, kib=500)
    yield Struck(train("--label", "is=whole"), train("--label", "is=beaten"), full, disk)
    faults.unmount(full.paths.checkpoints)


def weights(run: Run) -> str:
    final = run.paths.attempt(run.attempts()[-1]).out / "final" / "adapter_model.safetensors"
    return hashlib.sha256(final.read_bytes()).hexdigest()


def resume(lab: Lab, who: Person, run: Run) -> None:
    run.job_id = lab.tp(who, "job", "resume", run.id, "--json").json["job_id"]


def resumed(lab: Lab, who: Person, run: Run) -> list[dict[str, Any]]:
    """`tp job resume`, to the end; the certificates that its status shows then."""
    resume(lab, who, run)
    assert run.wait_end()["class"] == "done", run.story()
    shown: list[dict[str, Any]] = lab.tp(who, "job", "status", run.id, "--json").json["runs"][0]["continuity"]
    return shown


def test_a_run_that_is_struck_again_and_again_ends_with_the_same_weights(
    lab: Lab, alice: Person, struck: Struck
) -> None:
    """Its batch shell is killed, then a rank, then Slurm is told to cancel it: each time it is resumed."""
    run = struck.beaten
    until(f"step 25 of {run.id}", lambda: run.steps() >= 25, seconds=250, pause=0.1)
    faults.kill_batch(lab, alice, run)
    lab.cluster.wait_state(run.job_id, "FAILED", "CANCELLED", "COMPLETED", "NODE_FAIL")
    until("all ranks are gone", lambda: not list(faults.processes(TUNEPLANE_RUN_ID=run.id)), seconds=90)
    assert run.end(0) is None
    status = until(
        "Slurm's word",
        lambda: (s := lab.tp(alice, "job", "status", run.id, "--json").json["runs"][0]) and not s["active"] and s,
    )
    assert isinstance(status, dict)
    assert "the run left no end record" in status["message"]
    for attempt, strike, ended, words in (
        (1, faults.kill_rank, "error", "rank 1 was killed by signal 9"),
        (2, faults.cancel, "cancelled", "cancelled"),
    ):
        resume(lab, alice, run)
        until(f"steps of attempt {attempt}", partial(has_trained, run, attempt), seconds=250, pause=0.1)
        strike(lab, alice, run)
        end = run.wait_end()
        assert (end["class"], end["requeue"]) == (ended, False), run.story()
        assert words in lab.tp(alice, "job", "why", run.id).out
    assert [c["verified"] for c in resumed(lab, alice, run)] == [True, True, True]
    assert run.attempts() == [0, 1, 2, 3]
    assert weights(run) == struck.weights()


def has_trained(run: Run, attempt: int) -> bool:
    return run.steps(attempt) >= 10


def test_p32_a_full_disk_in_a_save_ends_the_run_with_its_code_and_room_lets_it_go_on(
    lab: Lab, alice: Person, struck: Struck
) -> None:
    run = struck.full
    end = run.wait_end()
    said = "\n".join(run.log(0) + run.log(1))
    assert (end["class"], end["step"]) == ("error", 20), run.story()
    assert "E-TRAIN-045" in said
    assert "No space left on device" in said
    assert "E-TRAIN-045" in lab.tp(alice, "job", "why", run.id).out
    struck.disk.grow()
    (certificate,) = resumed(lab, alice, run)
    assert certificate["text"].startswith("attempt 1 continues attempt 0 at step 20, verified: parameters, optimiser")
    assert weights(run) == struck.weights()
    assert lab.tp(alice, "runs", "audit", run.id, "--json").json["verdict"] == "verified"
