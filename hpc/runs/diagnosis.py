"""What `tp job why` answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from hpc.runs.causes import Found

WHO: Final = {
    "wait": "wait", "user": "you can mend it", "admin": "an admin can mend it", "hopeless": "it will never start as it is", "unknown": "unknown",
}  # fmt: skip
"""Who can do something about a run that waits, in words."""


@dataclass(frozen=True)
class Diagnosis:
    """The answer of `tp job why`: one headline, facts in order, what to do, and the lines that show it."""

    headline: str
    verdict: str
    facts: list[tuple[str, str]] = field(default_factory=list)
    mend: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    end: str = ""
    """Which kind of end it is, as playbooks name them (`hpc.plugins.playbook.ENDS`); "" while there is none."""
    cause: Found | None = None
    """Why it ended, as far as rules can tell; None while it has not ended well or badly, and where nothing tells."""
    unseen: list[str] = field(default_factory=list)
    """What was not looked at, so that nobody takes silence for an answer."""

    def as_json(self) -> dict[str, Any]:
        return {
            "headline": self.headline, "verdict": self.verdict, "facts": [{"name": n, "text": t} for n, t in self.facts],
            "mend": self.mend, "lines": self.lines, "end": self.end, "cause": self.cause.as_json() if self.cause else None,
            "unseen": self.unseen,
        }  # fmt: skip
