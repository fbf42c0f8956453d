"""Killed ranks and shells, a stop by Slurm, and a full disk: a run that trains is struck, resumed as its owner would, and has the same weights."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import faults
import pytest
from journeys import training_flags
from lab import Lab, Person, Run
from labcluster import until

pytestmark = [pytest.mark.cluster, pytest.mark.train, pytest.mark.timeout(900)]
SETTINGS: dict[str, object] = {"max_steps": 80, "save_steps": 20}
STRIKES = {"headless": faults.kill_batch, "maimed": faults.kill_rank, "cancelled": faults.cancel}


@dataclass(frozen=True)
class Struck:
    """Runs that train side by side, by what happens to them: `whole` is left in peace, `full` has room for one checkpoint and a half, the others
    are struck as soon as each has trained some steps.
    """

    runs: dict[str, Run]
    hits: dict[str, Future[str]]
    disk: faults.SmallDisk

    def hit(self, name: str) -> Run:
        """The run, once it is struck."""
        self.hits[name].result(timeout=300)
        return self.runs[name]

    def weights(self) -> str:
        """Of the run that nothing happened to."""
        self.runs["whole"].wait_end()
        return weights(self.runs["whole"])


@pytest.fixture(scope="module")
def struck(lab: Lab, alice: Person) -> Iterator[Struck]:
    def train(*flags: str) -> Run:
        return lab.submit(alice, "sums", "--profile", "cpu", *training_flags(lab, **SETTINGS), *flags)

    def strike(name: str) -> str:
        run = runs[name]
        until(f"step 25 of {run.id}", lambda: run.steps() >= 25, seconds=250, pause=0.1)
        return STRIKES[name](lab, alice, run)

    full = train("--begin", "now+3")
    disk = faults.SmallDisk(alice, full, kib=500)
    runs = {"full": full} | {name: train("--label", f"is={name}") for name in ("whole", *STRIKES)}
    with ThreadPoolExecutor(len(STRIKES)) as pool:
        yield Struck(runs, {name: pool.submit(strike, name) for name in STRIKES}, disk)
    faults.unmount(full.paths.checkpoints)


def weights(run: Run) -> str:
    final = run.paths.attempt(run.attempts()[-1]).out / "final" / "adapter_model.safetensors"
    return hashlib.sha256(final.read_bytes()).hexdigest()


def resume(lab: Lab, who: Person, run: Run) -> dict[str, object]:
    """`tp job resume`, to the end; the run's status then."""
    run.job_id = lab.tp(who, "job", "resume", run.id, "--json").json["job_id"]
    assert run.wait_end()["class"] == "done", run.story()
    status: dict[str, object] = lab.tp(who, "job", "status", run.id, "--json").json["runs"][0]
    return status


def test_a_batch_shell_that_was_killed_is_said_and_its_run_resumes_to_the_same_weights(
    lab: Lab, alice: Person, struck: Struck
) -> None:
    run = struck.hit("headless")
    lab.cluster.wait_state(run.job_id, "FAILED", "CANCELLED", "COMPLETED", "NODE_FAIL")
    until("all ranks are gone", lambda: not list(faults.processes(TUNEPLANE_RUN_ID=run.id)), seconds=90)
    assert run.end(0) is None
    status = until(
        "Slurm's word",
        lambda: (s := lab.tp(alice, "job", "status", run.id, "--json").json["runs"][0]) and not s["active"] and s,
    )
    assert isinstance(status, dict)
    assert "the run left no end record" in status["message"]
    after = resume(lab, alice, run)
    assert [c["verified"] for c in after["continuity"]] == [True]  # type: ignore[attr-defined]
    assert run.attempts() == [0, 1]
    assert weights(run) == struck.weights()


@pytest.mark.parametrize(
    ("name", "ended", "words"),
    [("maimed", "error", "rank 1 was killed by signal 9"), ("cancelled", "cancelled", "cancelled")],
)
def test_a_run_that_was_struck_in_mid_step_is_resumed_to_the_same_weights(
    lab: Lab, alice: Person, struck: Struck, name: str, ended: str, words: str
) -> None:
    run = struck.hit(name)
    end = run.wait_end()
    assert (end["class"], end["requeue"]) == (ended, False), run.story()
    assert words in lab.tp(alice, "job", "why", run.id).out
    after = resume(lab, alice, run)
    (certificate,) = after["continuity"]  # type: ignore[misc, attr-defined]
    assert certificate["verified"] is True
    assert run.attempts() == [0, 1]
    assert weights(run) == struck.weights()


def test_p32_a_full_disk_in_a_save_ends_the_run_with_its_code_and_room_lets_it_go_on(
    lab: Lab, alice: Person, struck: Struck
) -> None:
    run = struck.runs["full"]
    end = run.wait_end()
    said = "\n".join(run.log(0) + run.log(1))
    assert (end["class"], end["step"]) == ("error", 20), run.story()
    assert "E-TRAIN-045" in said
    assert "No space left on device" in said
    assert "E-TRAIN-045" in lab.tp(alice, "job", "why", run.id).out
    struck.disk.grow()
    after = resume(lab, alice, run)
    (certificate,) = after["continuity"]  # type: ignore[misc, attr-defined]
    assert certificate["text"].startswith("attempt 1 continues attempt 0 at step 20, verified: parameters, optimiser")
    assert weights(run) == struck.weights()
    assert lab.tp(alice, "runs", "audit", run.id, "--json").json["verdict"] == "verified"
