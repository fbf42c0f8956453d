"""What became of each checkpoint that a run has evaluated, from marks, states and reports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tuneplane.contract.checkpointed import Evaluations
from tuneplane.contract.layout import StorageRoot

from hpc.cli.evaluate_steps import print_steps
from hpc.evaluate.checkpoints import Row, rows
from hpc.runs.state import RunState


def test_each_step_says_whether_it_waits_for_its_checkpoint_was_asked_or_never_came(tmp_path: Path) -> None:
    root = StorageRoot(tmp_path)
    run, beside = root.run("alice", "sums", "run-0001"), root.run("alice", "sums.checkpoints", "run-0002")
    run.evaluations.mkdir(parents=True)
    for name, word in (("7_0", "released"), ("7_1", "released"), ("7_4", "cancelled"), ("7_5", "cancelled")):
        (run.evaluations / name).write_text(f"{word} 2026-03-01T12:00:00Z\n")
    (run.checkpoints / "step-000000030").mkdir(parents=True)
    (run.checkpoints / "step-000000030/manifest.json").write_text("{}")
    report = beside.element(0).report
    report.parent.mkdir(parents=True)
    result = {"suite": "behaviour", "tier": "screening", "metrics": {"score": 0.25}}
    report.write_text(json.dumps({"result": result}))
    queued = RunState("queued", "squeue", "")
    states = {0: RunState("done", "own record", ""), 1: queued, 4: RunState("cancelled", "sacct", ""), 5: queued}
    asked = Evaluations(beside, (10, 20, 30, 40, 50, 60))
    found = rows(run, asked, states, ended=False)
    # 30 is published and not let go yet; Slurm knows nothing of what waits in one rest, and less of what never began.
    assert [(row.step, row.state, row.held, row.mark) for row in found] == [
        (10, "done", False, "released"), (20, "queued", False, "released"), (30, "queued", False, ""), (40, "queued", True, ""),
        (50, "cancelled", False, "cancelled"), (60, "cancelled", False, "cancelled"),
    ]  # fmt: skip
    assert (found[0].score, found[1].score) == (0.25, None)
    assert found[0].as_json() == {
        "step": 10, "element": 0, "state": "done", "held": False, "stranded": False, "mark": "released", **result,
    }  # fmt: skip
    # Once the run has ended without a word, nothing lets go what is held.
    assert [row.step for row in rows(run, asked, states, ended=True) if row.stranded] == [30, 40]
    assert not any(row.stranded for row in found)


@pytest.mark.parametrize(
    ("states", "words"),
    [
        (("queued", "running"), ""),
        (("error", "queued"), "; why one failed: tp job why run-0002"),
        (("done", "queued"), "; one of them: tp eval show run-0002/0"),
        (("done", "timeout"), "; one of them: tp eval show run-0002/0; why one failed: tp job why run-0002"),
    ],
)
def test_what_is_printed_to_type_can_be_typed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], states: tuple[str, str], words: str
) -> None:
    result = {"suite": "behaviour", "metrics": {"score": 0.25}}
    found = [
        Row(10 * n, n, state, False, False, "", result if state == "done" else {}) for n, state in enumerate(states)
    ]
    print_steps((StorageRoot(tmp_path).run("alice", "sums.checkpoints", "run-0002"), found))
    assert capsys.readouterr().out.splitlines()[-1] == f"they inform and decide nothing{words}"
