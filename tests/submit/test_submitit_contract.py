"""What we override in submitit exists there and is called as we think: an upgrade that changes it fails here, not on a cluster."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from submitit.core.core import Executor, PicklingExecutor
from submitit.local.local import Controller, LocalExecutor
from submitit.slurm.slurm import SlurmExecutor

from hpc.slurm.commands import Completed
from hpc.submit.dispatch import launch_callable
from hpc.submit.intents import Intent
from hpc.submit.slurm_fleet import TpExecutor


@pytest.mark.parametrize(
    ("owner", "name", "parameters"),
    [
        (SlurmExecutor, "affinity", []),
        (SlurmExecutor, "_internal_process_submissions", ["self", "delayed_submissions"]),
        (SlurmExecutor, "_make_submission_file_text", ["self", "command", "uid"]),
        (SlurmExecutor, "_make_submission_command", ["self", "submission_file_path"]),
        (SlurmExecutor, "_get_job_id_from_submission_command", ["string"]),
        (SlurmExecutor, "_num_tasks", ["self"]),
        (PicklingExecutor, "_submit_command", ["self", "command"]),
        (LocalExecutor, "_submit_command", ["self", "command"]),
        (Executor, "submit", ["self", "fn", "args", "kwargs"]),
    ],
)
def test_the_names_we_override_have_the_shape_we_expect(owner: type, name: str, parameters: list[str]) -> None:
    assert list(inspect.signature(getattr(owner, name)).parameters) == parameters


def test_the_local_controller_reads_the_variables_we_set() -> None:
    source = inspect.getsource(Controller.__init__)
    for name in ("NTASKS", "COMMAND", "TIMEOUT_S", "SIGNAL_DELAY_S"):
        assert f"SUBMITIT_LOCAL_{name}" in source


class Once:
    def __init__(self) -> None:
        self.commands: list[list[str]] = []

    def submit(self, intent: Intent, command: object) -> str:
        done = command()  # type: ignore[operator]
        return TpExecutor._get_job_id_from_submission_command(done.out)

    def run(self, tool: str, args: list[str], cwd: Path) -> Completed:
        self.commands.append([tool, *args])
        return Completed(0, "4711\n", "", False, tool)


def test_submit_makes_one_sbatch_and_no_pickle(tmp_path: Path) -> None:
    once, script = Once(), tmp_path / "0.sh"
    script.write_text("#!/bin/bash\n")
    intent = Intent("run-1", 0, "e", "e.run-1.0", "n", "c", script, "2026")
    executor = TpExecutor(tmp_path, slurm=once, submitter=once, intent=intent, script="#!/bin/bash\n", nodes=2)  # type: ignore[arg-type]
    job = executor.submit(launch_callable, "run-1")
    assert job.job_id == "4711"
    assert job.num_tasks == 2
    assert once.commands == [["sbatch", "--parsable", str(script)]]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["0.sh"]
