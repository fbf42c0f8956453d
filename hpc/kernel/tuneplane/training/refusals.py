"""Refusals of the training program: a stable code, the field, what was found, what is allowed. Standard library only.

The codes are declared, with cause and mend, in `hpc/errors/training.py`; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Reason:
    """One reason to refuse. `field` is a path as the user wrote it (`hyperparams.learning_rate`, `train.jsonl:17`)."""

    code: str
    message: str
    field: str = ""
    found: str = ""
    allowed: str = ""
    hint: str = ""

    def __str__(self) -> str:
        text = f"{self.code} {self.field + ': ' if self.field else ''}{self.message}"
        if self.found:
            text += f"\n    found    {self.found}"
        if self.allowed:
            text += f"\n    allowed  {self.allowed}"
        if self.hint:
            text += f"\n    hint     {self.hint}"
        return text


class Refused(Exception):  # noqa: N818 - the word the documents use
    """The program refuses its input; every reason that is known is in `reasons`. Exit code 1, no traceback."""

    def __init__(self, reasons: Reason | Iterable[Reason]) -> None:
        self.reasons = [reasons] if isinstance(reasons, Reason) else list(reasons)
        if not self.reasons:
            raise ValueError("no reasons")
        super().__init__("\n".join(str(r) for r in self.reasons))

    def as_json(self) -> list[dict[str, str]]:
        return [asdict(r) for r in self.reasons]

    @classmethod
    def from_json(cls, value: Any) -> Refused:
        return cls(Reason(**item) for item in value)


def refuse(code: str, message: str, **parts: str) -> Refused:
    """A refusal with one reason, ready to raise."""
    return Refused(Reason(code, message, **parts))
