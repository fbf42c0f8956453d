"""A checkpoint of a run that goes on, as an evaluation's job finds it; and what keeps it from being pruned meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tuneplane.contract.checkpointed import Mark, evaluations_of, marks_of, pinned
from tuneplane.contract.layout import RunPaths, StorageRoot
from tuneplane.launch.late import resolve_late
from tuneplane.launch.verify import LaunchRefused
from tuneplane.record.digest import digest_bytes, digest_file, digest_json

PACKAGE, STEPS = "sha256:aa", [20, 40, 60]
NAMED = {"run_id": "run-0001", "exp": "sums", "artefact": "checkpoint", "package_digest": PACKAGE, "steps": STEPS}
LAUNCH = {"follows": {"run_id": "run-0001", "exp": "sums", "action": "checkpoints"}, "late": {"candidate": NAMED}}


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    """A run in its attempt 1, with a checkpoint of step 40, and its evaluations, of which none has begun."""
    run = StorageRoot(tmp_path).run("alice", "sums", "run-0001")
    run.attempt(1).root.mkdir(parents=True)
    run.attempt(1).start.write_text(json.dumps({"package_digest": PACKAGE}))
    folder = run.checkpoints / "step-000000040"
    (folder / "deepspeed").mkdir(parents=True)
    (folder / "deepspeed/model.pt").write_bytes(b"weights")
    (folder / "rank-00000.json").write_bytes(b"{}")
    manifest(run)
    write(
        run.root / "followups/run-0002.json", {"action": "checkpoints", "run_id": "run-0002", "exp": "sums.checkpoints"}
    )
    write(run.root / "followups/run-0003.json", {"action": "eval", "run_id": "run-0003", "exp": "sums.eval"})
    write(beside(run).launch, LAUNCH)
    return run


def beside(run: RunPaths) -> RunPaths:
    return RunPaths(run.root.parent.parent / "sums.checkpoints/run-0002")


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))


def manifest(run: RunPaths, **changes: Any) -> None:
    folder = run.checkpoints / "step-000000040"
    files = [
        {
            "path": p,
            "type": "file",
            "exec": False,
            "size": (folder / p).stat().st_size,
            "sha256": digest_file(folder / p),
        }
        for p in ("rank-00000.json", "deepspeed/model.pt")
    ]
    value = {"schema": "tuneplane-hpc/checkpoint/v1", "run_id": "run-0001", "step": 40, "attempt": 1, "files": files}
    write(folder / "manifest.json", value | changes)


def resolve(run: RunPaths, element: str = "1") -> dict[str, Any]:
    return resolve_late(LAUNCH, StorageRoot(run.root.parents[3]), "alice", element=element, lag_s=0)["candidate"]


def refused(run: RunPaths, element: str = "1") -> tuple[str, str]:
    with pytest.raises(LaunchRefused) as caught:
        resolve(run, element)
    return caught.value.code, caught.value.message.partition(") ")[2]


def test_an_element_takes_the_checkpoint_of_its_step_with_every_file_read(run: RunPaths) -> None:
    found, folder = resolve(run), run.checkpoints / "step-000000040"
    assert (found["step"], found["attempt"], found["path"]) == (40, 1, str(folder))
    assert [row["path"] for row in found["files"]] == ["deepspeed/model.pt", "rank-00000.json"]
    assert found["digest"] == digest_json([[row["path"], digest_file(folder / row["path"])] for row in found["files"]])
    assert (found["report"], found["report_sha256"]) == (
        str(folder / "manifest.json"), digest_bytes((folder / "manifest.json").read_bytes()),
    )  # fmt: skip


def test_a_checkpoint_that_is_not_there_is_said_to_be_so(run: RunPaths) -> None:
    assert refused(run, "0") == (
        "E-JOB-051", "has no checkpoint of step 20: it was never written, or was pruned (No such file or directory)",
    )  # fmt: skip
    assert [refused(run, element)[0] for element in ("3", "", "x")] == ["E-JOB-017"] * 3


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (lambda run: (run.checkpoints / "step-000000040/deepspeed/model.pt").write_bytes(b"weighty"), "model.pt changed: spec=sha256:"),
        (lambda run: (run.checkpoints / "step-000000040/rank-00000.json").unlink(), "No such file or directory"),
        (lambda run: manifest(run, run_id="run-0009"), "it is one of run-0009 at step 40"),
        (lambda run: manifest(run, step=20), "it is one of run-0001 at step 20"),
        (lambda run: manifest(run, files=[]), "it lists no files"),
        (lambda run: manifest(run, attempt=7), "start.json"),
        (lambda run: write(run.attempt(1).start, {"package_digest": "sha256:bb"}), "has another package: spec=sha256:aa actual=sha256:bb"),
        (lambda run: write(run.checkpoints / "step-000000040/manifest.json", "{"), "a damaged manifest"),
    ],
)  # fmt: skip
def test_a_checkpoint_that_is_another_than_its_run_recorded_is_not_evaluated(
    run: RunPaths, harm: Callable[[RunPaths], object], why: str
) -> None:
    harm(run)
    code, message = refused(run)
    assert code == "E-JOB-052"
    assert why in message


def test_a_step_is_pinned_until_its_evaluation_has_ended_for_good(run: RunPaths) -> None:
    element = beside(run).element(1)
    assert pinned(run) == {20, 40, 60}
    element.attempt(0).root.mkdir(parents=True)
    assert pinned(run) == {20, 40, 60}
    write(element.attempt(0).end, {"class": "preempted", "requeue": True})
    assert pinned(run) == {20, 40, 60}
    write(element.attempt(1).end, {"class": "error", "requeue": False})
    assert pinned(run) == {20, 60}


def test_what_is_cancelled_or_stopped_pins_nothing(run: RunPaths) -> None:
    for name, word in (("7_0", "gone"), ("7_1", "released"), ("7_2", "cancelled")):
        write(run.evaluations / name, f"{word} 2026-03-01T12:00:00Z\n")
    assert pinned(run) == {40}
    # A retry is a job of its own, of which the old marks say nothing; numbers decide which is newest, not the names' order.
    write(beside(run).submissions / "0.json", {"job_id": "7"})
    assert pinned(run) == {40}
    write(beside(run).submissions / "1000.json", {"job_id": "11"})
    assert pinned(run) == {20, 40, 60}
    write(run.evaluations / "11_2", "cancelled 2026-03-02T12:00:00Z\n")
    assert marks_of(run)[2] == Mark("11", "cancelled", "2026-03-02T12:00:00Z")
    assert pinned(run) == {20, 40}
    write(beside(run).root / "stop_requested", {})
    assert pinned(run) == set()


def test_runs_without_such_evaluations_or_with_damaged_words_pin_nothing(run: RunPaths) -> None:
    found = evaluations_of(run)
    assert found is not None
    assert (found.run, found.steps) == (beside(run), (20, 40, 60))
    write(run.root / "followups/run-0001.json", "{")  # another record, damaged, takes nothing from it
    assert evaluations_of(run) == found
    (run.root / "followups/run-0001.json").unlink()
    write(beside(run).launch, LAUNCH | {"follows": {"run_id": "run-0009"}})
    assert (evaluations_of(run), pinned(run)) == (None, set())
    write(beside(run).launch, "{")
    assert pinned(run) == set()
    (run.root / "followups/run-0002.json").unlink()
    assert (evaluations_of(run), pinned(run)) == (None, set())
