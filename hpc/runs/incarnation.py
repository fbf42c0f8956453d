"""Which of accounting's rows are of the attempt in question: the same id names the job's earlier lives, and once named other people's jobs. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from hpc.runs.records import Submission
from hpc.runs.state import RunState, is_ours
from hpc.slurm.query import JobRow


def rows_of_life(rows: Iterable[JobRow], submission: Submission, state: RunState) -> list[JobRow]:
    """The row of the life in which the attempt of `state` ran, and the rows of that life's steps; none where no life is the submission's.

    Steps carry no word of the life they were in: they belong to the one in whose span they began, and the attempt as well.
    """
    every = list(rows)
    lives = [r for r in every if "." not in r.job_id]
    ours = [r for r in lives if is_ours(r, submission) is not False]
    if not ours:
        return []
    # Of an end that only Slurm tells of, the attempt's own records may be of the life before.
    chosen = _life_at(ours, state.started_at if state.evidence == "own record" else state.ended_at)
    return [chosen, *(r for r in every if "." in r.job_id and _life_at(lives, r.started_at) is chosen)]


def _life_at(lives: Sequence[JobRow], moment: float | None) -> JobRow:
    """The life whose span is nearest to a moment: clocks of a node and of the controller differ. The newest where no moment is known."""
    newest_first = sorted(lives, key=_began, reverse=True)
    if moment is None:
        return newest_first[0]
    return min(newest_first, key=lambda r: max(_began(r) - moment, moment - (r.ended_at or math.inf), 0.0))


def _began(row: JobRow) -> float:
    return row.started_at or row.submitted_at or 0.0
