"""Job dependencies: `afterok:123`, `after:123+5`, `afterany:1:2,singleton`, alternatives joined by `?`.

`,` means all of them, `?` means any of them; one expression uses one of the two.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hpc.errors import Refusal
from hpc.spec.text import visible

KINDS = ("after", "afterany", "afterburstbuffer", "aftercorr", "afternotok", "afterok")
MAX_TEXT = 2048
ALLOWED = f"{', '.join(KINDS)} each with :JOBID…, or singleton; joined by ',' (all) or by '?' (any)"
_JOB = re.compile(r"([1-9][0-9]{0,9}(?:_(?:[0-9]{1,8}|\*))?)(?:\+([0-9]{1,6}))?")


@dataclass(frozen=True)
class Dependency:
    """One condition. `jobs` are job ids (`123`, `123_4`, `123_*`); `delay_min` belongs to `after` alone."""

    kind: str
    jobs: tuple[str, ...] = ()
    delay_min: tuple[int, ...] = ()


@dataclass(frozen=True)
class Dependencies:
    """The conditions of a job; `any_of` says whether one of them is enough."""

    items: tuple[Dependency, ...]
    any_of: bool = False

    @property
    def jobs(self) -> tuple[str, ...]:
        """Every job id that is named, once, in order: the parents whose state decides whether this can ever start."""
        return tuple(dict.fromkeys(job for item in self.items for job in item.jobs))


def parse_dependency(text: str, field: str = "") -> Dependencies:
    """Raises Refusal E-SPEC-043. Does not look whether the jobs exist."""
    try:
        if "," in text and "?" in text:
            raise ValueError("',' and '?' in one dependency")
        if len(text) > MAX_TEXT:
            raise ValueError(f"a dependency of more than {MAX_TEXT} characters")
        items = tuple(_item(part) for part in re.split(r"[,?]", text))
    except ValueError as exc:
        raise Refusal("E-SPEC-043", str(exc), field=field, found=visible(text), allowed=ALLOWED) from None
    return Dependencies(items, "?" in text)


def _item(text: str) -> Dependency:
    kind, colon, rest = text.partition(":")
    if kind == "singleton" and not colon:
        return Dependency(kind)
    if kind not in KINDS or not colon:
        raise ValueError(f"not a dependency: {visible(text)!r}")
    jobs, delays = [], []
    for part in rest.split(":"):
        match = _JOB.fullmatch(part)
        if not match or (match[2] and kind != "after"):
            raise ValueError(f"not a job id for {kind}: {visible(part)!r}")
        jobs.append(match[1])
        delays.append(int(match[2] or 0))
    return Dependency(kind, tuple(jobs), tuple(delays) if kind == "after" else ())
