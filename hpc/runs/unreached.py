"""Evaluations of checkpoints that will never come, of a run that is stopped.

The run's own batch script cancels them in its last breath (`sbatch_templates/checkpoints.sh.j2`). Slurm grants a cancelled job no more than KillWait
for that (30 s, unless the site says otherwise), and the save that a rank still makes may take longer; then they would wait, held, for ever.
"""

from __future__ import annotations

from collections.abc import Callable

from tuneplane.contract.checkpointed import CANCELLED, Evaluations, marks_of, published
from tuneplane.contract.layout import RunPaths
from tuneplane.record.files import replace

from hpc.runs.actions import Actor, require_owner
from hpc.runs.records import Facts
from hpc.slurm.commands import Slurm
from hpc.slurm.verdicts import classify, refusal


def cancel(run: RunPaths, found: Evaluations, facts: Facts, actor: Actor, slurm: Callable[[], Slurm]) -> list[int]:
    """Cancel what waits for a checkpoint that `run` has not published, and mark it as the run's script does. The steps, ascending.

    `facts` are those of the evaluations. Raises Refusal E-RUNS-014, E-SLURM-*; then nothing is marked. Raises OSError.
    """
    require_owner(found.run, actor)
    submission = facts.last_submission
    if submission is None or submission.kind == "local":
        return []
    marks = marks_of(run, submission.job_id)  # of an earlier job they say nothing of this one
    never = [
        (element, step)
        for element, step in enumerate(found.steps)
        if element not in marks and published(run, step) is None and not found.run.element(element).report.exists()
    ]
    if not never:
        return []
    client = slurm()
    args = [f"--clusters={client.cluster}"] if client.cluster else []
    args += [f"--user={actor.name}", f"--name={submission.job_name}"]
    done = client.run("scancel", args + [f"{submission.job_id}_{element}" for element, _ in never])
    if classify(done) != "ok":
        failed = refusal(done, f"cancel evaluations of job {submission.job_id}")
        if failed.code != "E-SLURM-020":  # Slurm knows none of them any more
            raise failed
    run.evaluations.mkdir(exist_ok=True)
    for element, _ in never:
        replace(run.evaluations / f"{submission.job_id}_{element}", f"{CANCELLED} {actor.now()}\n".encode())
    return [step for _, step in never]
