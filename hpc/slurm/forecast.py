"""When would Slurm start a job? `sbatch --test-only`: the controller judges the script, makes no job, and answers on stderr."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from hpc.slurm.commands import Slurm
from hpc.slurm.verdicts import classify, refusal

_ANSWER: Final = re.compile(
    r"Job \S+ to start at (\S+)(?: using (\d+) processors)?(?: on nodes? (\S+))?(?: in partition (\S+))?"
)


@dataclass(frozen=True)
class Start:
    """Slurm's estimate, in its own words: local time, nodes and partition; "" where it did not say."""

    at: str
    nodes: str
    partition: str

    def as_json(self) -> dict[str, str]:
        return dict(vars(self))


def parse(text: str) -> Start | None:
    """The estimate in what sbatch printed, None where there is none. Pure."""
    found = _ANSWER.search(text)
    return Start(found.group(1), found.group(3) or "", found.group(4) or "") if found else None


def estimate(slurm: Slurm, script: str, folder: str) -> Start | None:
    """Ask. `folder` is where sbatch stands while it looks. Raises Refusal E-SLURM-* for what Slurm would refuse, or when it does not answer."""
    options = [f"--clusters={slurm.cluster}"] if slurm.cluster else []
    done = slurm.run("sbatch", ["--test-only", *options], stdin=script, cwd=folder)
    if classify(done) != "ok":
        raise refusal(done, "judge the script")
    return parse(done.err) or parse(done.out)
