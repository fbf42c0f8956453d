"""Refusals: every "no" of the toolkit has a stable code, a field, what was found, what is allowed and how to mend it.

A code is declared once, as an `ErrorKind` in the table of its area (`hpc/errors/<area>.py`); `docs/errors.md` is generated from those tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tuneplane.contract import exits


@dataclass(frozen=True)
class ErrorKind:
    """One row of the catalogue: what the code means, why it happens, how to mend it, and the exit code of a command that ends with it."""

    code: str
    title: str
    cause: str
    mend: str
    exit: int = exits.REFUSED


def table(*kinds: ErrorKind) -> dict[str, ErrorKind]:
    """A table of kinds by code. Raises ValueError when a code stands twice."""
    out = {k.code: k for k in kinds}
    if len(out) != len(kinds):
        raise ValueError("an error code stands twice in one table")
    return out


class Refusal(Exception):  # noqa: N818 - a refusal is what users meet, and the word the docs use
    """One refusal. `field` is a path as the user wrote it (`spec.resources.pools[0].nodes`, `site.yaml: quota.gpus`)."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        field: str = "",
        found: Any = None,
        allowed: str = "",
        hint: str = "",
    ) -> None:
        super().__init__(code, message)
        self.code, self.message, self.field = code, message, field
        self.found, self.allowed, self._hint = found, allowed, hint

    @property
    def kind(self) -> ErrorKind:
        from hpc.errors.catalogue import CATALOGUE

        return CATALOGUE[self.code]

    @property
    def hint(self) -> str:
        """How to mend it: the caller's own words, else the catalogue's."""
        return self._hint or self.kind.mend

    @property
    def exit(self) -> int:
        return self.kind.exit

    def as_json(self) -> dict[str, Any]:
        found = self.found if isinstance(self.found, (str, int, float, bool, type(None))) else repr(self.found)
        return {
            "code": self.code,
            "field": self.field,
            "message": self.message,
            "found": found,
            "allowed": self.allowed,
            "hint": self.hint,
        }

    def __str__(self) -> str:
        place = f"{self.field}: " if self.field else ""
        return f"{self.code} {place}{self.message}"


class Refusals(Exception):  # noqa: N818
    """Several refusals of one input, all at once, in the order of the input."""

    def __init__(self, items: Iterable[Refusal]) -> None:
        self.items = list(items)
        if not self.items:
            raise ValueError("no refusals")
        super().__init__("; ".join(str(i) for i in self.items))

    @property
    def exit(self) -> int:
        return max(i.exit for i in self.items)
