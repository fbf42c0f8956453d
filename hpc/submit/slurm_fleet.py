"""The slurm fleet: submitit submits, arranged so that one frozen script is one sbatch and no pickle crosses the door.

What is overridden is pinned by a contract test (`tests/submit/test_submitit_contract.py`); submitit's own pickles, its polling and its requeue are
not used, since the package is the door and the job's own records are the state.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from submitit.core.utils import DelayedSubmission, FailedSubmissionError
from submitit.slurm.slurm import SlurmExecutor, SlurmJob

from hpc.slurm.commands import Completed, Slurm
from hpc.submit.intents import Intent, Submitter, parse_job_id


class TpExecutor(SlurmExecutor):  # type: ignore[misc]
    """Submits one frozen script exactly once. `script` is the text that was rendered, linted and recorded."""

    def __init__(
        self, folder: Path, *, slurm: Slurm, submitter: Submitter, intent: Intent, script: str, nodes: int
    ) -> None:
        super().__init__(folder=folder, python="/bin/false")
        self._slurm, self._submitter, self._intent, self._script = slurm, submitter, intent, script
        self.parameters.update(nodes=nodes, ntasks_per_node=1)

    @classmethod
    def affinity(cls) -> int:
        """A cluster; whether srun is on this PATH says nothing about the site's Slurm."""
        return 2

    def _internal_process_submissions(self, delayed_submissions: list[DelayedSubmission]) -> list[SlurmJob[Any]]:
        # One package is one sbatch. The callable is the job's own business: it is rebuilt there from jobspec.json.
        (_,) = delayed_submissions
        return [self._submit_command("")]

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        return self._script

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        return ["sbatch", "--parsable", str(submission_file_path)]

    @staticmethod
    def _get_job_id_from_submission_command(string: bytes | str) -> str:
        job_id = parse_job_id(string.decode("utf-8", "replace") if isinstance(string, bytes) else string)
        if job_id is None:
            raise FailedSubmissionError(f"no job id in {string!r}")
        return job_id

    def _sbatch(self) -> Completed:
        tool, *args = self._make_submission_command(self._intent.script)
        return self._slurm.run(tool, args, cwd=self.folder)

    def _submit_command(self, command: str) -> SlurmJob[Any]:
        job_id = self._submitter.submit(self._intent, self._sbatch)
        return self.job_class(folder=self.folder, job_id=job_id, tasks=list(range(self._num_tasks())))


def submit_to_slurm(
    slurm: Slurm,
    submitter: Submitter,
    intent: Intent,
    *,
    script: str,
    nodes: int,
    folder: Path,
    launch: Callable[..., Any],
) -> str:
    """Submit a frozen script through submitit and return the job id. Raises Refusal."""
    executor = TpExecutor(folder, slurm=slurm, submitter=submitter, intent=intent, script=script, nodes=nodes)
    return str(executor.submit(launch, intent.run_id).job_id)
