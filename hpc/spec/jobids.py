"""Slurm's job ids in every spelling that its commands print.

    123   123_4   123_[1-9%2]   123+1   123.batch   123;cluster

A job id is not an identity: ids come back after a wrap or a reset. Records pair it with cluster, submit time and nonce.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hpc.errors import Refusal
from hpc.spec.text import visible

ALLOWED = "123, 123_4, 123_[1-9], 123+1, each with .STEP or ;CLUSTER after it"
MAX_ID = (1 << 32) - 1
_ID = re.compile(
    r"(?P<job>[1-9][0-9]{0,9})"
    r"(?:_(?P<task>[0-9]{1,8})|_\[(?P<tasks>[0-9][0-9,:%-]*(?:,?\.\.\.)?)\]|\+(?P<het>[0-9]{1,4}))?"
    r"(?:\.(?P<step>[A-Za-z0-9_]{1,32}(?:\+[0-9]{1,4})?))?"
    r"(?:;(?P<cluster>[A-Za-z0-9][A-Za-z0-9._-]{0,63}))?"
)


@dataclass(frozen=True)
class JobId:
    """One job, array task, pending rest of an array (`tasks`), or component of a heterogeneous job."""

    job: int
    task: int | None = None
    tasks: str = ""
    het: int | None = None
    step: str = ""
    cluster: str = ""

    @classmethod
    def parse(cls, text: str, field: str = "") -> JobId:
        """Raises Refusal E-SPEC-066 for anything that is not one id."""
        match = _ID.fullmatch(text)
        if not match or int(match["job"]) > MAX_ID:
            raise Refusal("E-SPEC-066", "not a job id", field=field, found=visible(text), allowed=ALLOWED)
        task, het = match["task"], match["het"]
        return cls(
            int(match["job"]),
            None if task is None else int(task),
            match["tasks"] or "",
            None if het is None else int(het),
            match["step"] or "",
            match["cluster"] or "",
        )

    @property
    def target(self) -> str:
        """What scontrol and scancel must be given: `123_4` for one array task, never the id of the whole array."""
        if self.task is not None:
            return f"{self.job}_{self.task}"
        return f"{self.job}_[{self.tasks}]" if self.tasks else str(self.job)

    def __str__(self) -> str:
        het = "" if self.het is None else f"+{self.het}"
        step = f".{self.step}" if self.step else ""
        cluster = f";{self.cluster}" if self.cluster else ""
        return f"{self.target}{het}{step}{cluster}"
