"""What a Slurm command's failure means: try again, give up, or nobody knows.

`retry`: the controller was busy or away; the request may have been done, so the caller looks before it repeats.
`refuse`: Slurm said no, nothing was made, and the same request gives the same answer.
`unknown`: words that are in no table; nothing is assumed and nothing is repeated.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from hpc.errors import Refusal
from hpc.slurm.commands import Completed

Verdict = Literal["ok", "retry", "refuse", "unknown"]


@dataclass(frozen=True)
class Words:
    """A family of Slurm's messages: what they mean, the error code, the JobSpec field, the patterns."""

    verdict: Verdict
    code: str
    field: str
    patterns: tuple[str, ...]

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Compiled when a command has failed; the twenty together cost more than most commands."""
        return re.compile("|".join(self.patterns), re.IGNORECASE)


def _family(verdict: Verdict, code: str, field: str, *patterns: str) -> Words:
    return Words(verdict, code, field, patterns)


# Facts from Slurm's own error texts, 20.11 to 25.11. The first family that matches a line wins.
TABLE: Final = (
    _family(
        "retry", "E-SLURM-002", "",
        r"socket timed out on send/recv", r"unable to contact slurm controller", r"zero bytes were transmitted",
        r"communication (connection|shutdown) failure", r"controller (is )?in standby mode", r"missing socket error",
        r"resource temporarily unavailable", r"connection (refused|reset|timed out)", r"broken pipe",
        r"no route to host", r"network is unreachable", r"temporarily unable to accept job", r"controller is busy",
        r"too many (requests|rpcs)", r"rate limit", r"unable to create job record, try again", r"try again (later|in)",
        r"unable to connect to database", r"persistent connection", r"problem talking to the database",
        r"connection to \S*slurmdbd", r"failed to connect to authentication agent", r"munge encode failed",
        r"expired credential", r"protocol authentication error", r"unexpected message received",
    ),
    _family("unknown", "E-SLURM-004", "", r"slurm internal error, contact system administrator"),
    _family("refuse", "E-SLURM-006", "", r"accounting storage is disabled"),
    _family(
        "refuse", "E-SLURM-005", "",
        r"clustername needs to be specified", r"unable to process config", r"could not establish a configuration",
        r"incompatible versions of client and server",
    ),
    _family(
        "refuse", "E-SLURM-010", "spec.slurm.partition",
        r"invalid partition", r"no partition specified", r"permitted to use this partition",
        r"nodes not in this partition", r"required partition not available",
    ),
    _family("refuse", "E-SLURM-011", "spec.slurm.account", r"invalid account"),
    _family("refuse", "E-SLURM-012", "spec.slurm.qos", r"invalid qos"),
    _family("refuse", "E-SLURM-013", "", r"violates accounting/qos policy", r"breached requested qos"),
    _family(
        "refuse", "E-SLURM-014", "spec.slurm.time",
        r"requested time limit is invalid", r"time limit specification required", r"invalid --time",
        r"time-min specification",
    ),
    _family("refuse", "E-SLURM-015", "spec.slurm.mem", r"memory (specification can not be|required by task is not)"),
    _family("refuse", "E-SLURM-015", "spec.slurm.constraint", r"feature specification", r"active features not"),
    _family("refuse", "E-SLURM-015", "spec.slurm.nodelist", r"invalid node name", r"required node not available"),
    _family(
        "refuse", "E-SLURM-015", "spec.resources.pools",
        r"requested (node|partition) configuration", r"node count specification invalid", r"more processors requested",
        r"cpu count specification", r"(invalid|duplicate) generic resource", r"invalid gres", r"insufficient gres",
        r"requested more tasks than",
    ),
    _family("refuse", "E-SLURM-016", "spec.slurm.dependency", r"dependency problem", r"invalid dependency"),
    _family("refuse", "E-SLURM-017", "spec.slurm.array", r"invalid job array"),
    _family("refuse", "E-SLURM-018", "spec.slurm.reservation", r"requested reservation"),
    _family("refuse", "E-SLURM-019", "spec.slurm.licenses", r"invalid license"),
    _family("refuse", "E-SLURM-019", "spec.slurm.clusters", r"can't be reached now", r"no cluster '.*' known"),
    _family("refuse", "E-SLURM-019", "spec.slurm.begin", r"invalid time specification"),
    _family(
        "refuse", "E-SLURM-019", "",
        r"invalid --[a-z]", r"unrecognized option", r"invalid option", r"requires an argument", r"is ambiguous",
        r"does not look like a batch script", r"dos line breaks", r"unable to open file", r"parameter too long",
        r"script (is )?(too large|exceeds)",
    ),
    _family("refuse", "E-SLURM-020", "", r"invalid job id"),
    _family("refuse", "E-SLURM-021", "", r"access/permission denied", r"user'?s? not found", r"invalid user"),
    _family(
        "refuse", "E-SLURM-022", "",
        r"already completing or completed", r"no longer pending", r"not pending nor running",
        r"requested operation (is presently disabled|not supported)", r"only batch jobs are accepted",
        r"batch job submission failed: (invalid|requested|unable to allocate)",
    ),
)  # fmt: skip


def match(text: str) -> Words | None:
    """The family of a command's words. The last line that says something known decides."""
    for line in reversed(text.splitlines()):
        for words in TABLE:
            if words.pattern.search(line):
                return words
    return None


def classify(completed: Completed) -> Verdict:
    """ok | retry | refuse | unknown. Does not promise that a `retry` or an `unknown` was not done."""
    if completed.timed_out:
        return "retry"
    if completed.rc == 0:
        return "ok"
    words = match(completed.err + "\n" + completed.out)
    return words.verdict if words else "unknown"


def refusal(completed: Completed, what: str) -> Refusal:
    """The refusal for a command that did not end well. `what` says what was tried ("submit the job")."""
    said = quoted(completed)
    if completed.timed_out:
        return Refusal("E-SLURM-003", f"could not {what}: {completed.tool} did not end in time", found=said or None)
    words = match(completed.err + "\n" + completed.out)
    message = f"could not {what}: {said or f'{completed.tool} ended with {completed.rc}'}"
    return Refusal(words.code, message, field=words.field) if words else Refusal("E-SLURM-004", message)


def quoted(completed: Completed, limit: int = 400) -> str:
    """Slurm's own words on one line, without its prefixes, for a message to people."""
    lines = (re.sub(r"^\w+: (error|fatal|warning): ", "", line.strip()) for line in completed.err.splitlines())
    text = "; ".join(line for line in lines if line)
    text = "".join(c if c.isprintable() else " " for c in text)
    return text if len(text) <= limit else text[: limit - 1] + "…"
