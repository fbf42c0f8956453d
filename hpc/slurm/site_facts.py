"""What a Slurm installation says about itself: version, limits, preemption. Asked once a command, never guessed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from hpc.errors import Refusal
from hpc.slurm.commands import Slurm
from hpc.slurm.verdicts import classify, refusal

_LINE: Final = re.compile(r"^([A-Za-z][A-Za-z0-9_./-]*)\s*=\s?(.*)$")


@dataclass(frozen=True)
class Partition:
    """One row of sinfo: time limit as Slurm writes it, `default` for the one that jobs get when they name none."""

    name: str
    up: bool
    time_limit: str
    nodes: int
    default: bool


@dataclass(frozen=True)
class SlurmFacts:
    """`scontrol show config` by key, with the few values that decide something here as properties."""

    config: dict[str, str] = field(default_factory=dict)

    @property
    def version(self) -> tuple[int, int]:
        """(22, 5) for 22.05.8; (0, 0) where it is not told."""
        match = re.match(r"(?:slurm\S*\s+)?(\d+)\.(\d+)", self.config.get("SLURM_VERSION", ""))
        return (int(match.group(1)), int(match.group(2))) if match else (0, 0)

    @property
    def cluster(self) -> str:
        return self.config.get("ClusterName", "")

    @property
    def max_array_size(self) -> int:
        """The first index that is too high: MaxArraySize caps the highest index, not the count."""
        return self._number("MaxArraySize", 1001)

    @property
    def min_job_age_s(self) -> int:
        return self._number("MinJobAge", 300)

    @property
    def kill_wait_s(self) -> int:
        return self._number("KillWait", 30)

    @property
    def preempt_mode(self) -> str:
        return self.config.get("PreemptMode", "OFF").upper()

    @property
    def preempt_type(self) -> str:
        return self.config.get("PreemptType", "preempt/none")

    @property
    def requeues(self) -> bool:
        return self._number("JobRequeue", 1) == 1

    @property
    def accounting(self) -> bool:
        """Whether sacct can answer."""
        return "slurmdbd" in self.config.get("AccountingStorageType", "")

    @property
    def stores_comments(self) -> bool:
        """Whether a job's comment outlives the job (AccountingStoreFlags=job_comment)."""
        return "job_comment" in self.config.get("AccountingStoreFlags", "")

    def parameters(self, key: str) -> dict[str, str]:
        """A comma list such as SchedulerParameters as a dict; a word without a value maps to ""."""
        text = self.config.get(key, "")
        pairs = (item.partition("=") for item in text.split(",") if item and item != "(null)")
        return {name.strip(): value.strip() for name, _, value in pairs}

    def _number(self, key: str, default: int) -> int:
        match = re.match(r"\d+", self.config.get(key, ""))
        return int(match.group()) if match else default


def parse_config(text: str) -> dict[str, str]:
    """`scontrol show config` as a dict; lines of another shape are left out, a key that stands twice keeps its first value."""
    out: dict[str, str] = {}
    for line in text.splitlines():
        if match := _LINE.match(line.strip()):
            out.setdefault(match.group(1), match.group(2).strip())
    return out


def read(slurm: Slurm, *, deadline_s: float | None = None) -> SlurmFacts:
    """The controller's configuration. Raises Refusal E-SLURM-*; E-SLURM-007 when what comes is no configuration."""
    done = slurm.run("scontrol", ["show", "config"], deadline_s=deadline_s)
    if classify(done) != "ok":
        raise refusal(done, "read Slurm's configuration")
    config = parse_config(done.out)
    if "ClusterName" not in config:
        raise Refusal("E-SLURM-007", "scontrol show config printed no ClusterName", found=done.out[:200])
    return SlurmFacts(config)


def partitions(slurm: Slurm, *, deadline_s: float | None = None) -> list[Partition]:
    """The partitions that you can see. Raises Refusal E-SLURM-*."""
    done = slurm.run("sinfo", ["--noheader", "--format=%P|%a|%l|%D"], deadline_s=deadline_s)
    if classify(done) != "ok":
        raise refusal(done, "list the partitions")
    out = []
    for line in done.out.splitlines():
        cells = [c.strip() for c in line.split("|")]
        if len(cells) == 4 and cells[3].isdigit():
            name = cells[0].rstrip("*")
            out.append(Partition(name, cells[1] == "up", cells[2], int(cells[3]), cells[0].endswith("*")))
    return out
