"""The warning before the time limit: `[R|B:]SIGNAL[@SECONDS]`, as `--signal` writes it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hpc.errors import Refusal
from hpc.spec.text import visible

NAMES = ("HUP", "INT", "QUIT", "ABRT", "ALRM", "TERM", "USR1", "USR2", "URG", "CONT", "STOP", "TSTP", "TTIN", "TTOU")
WARNINGS = ("USR2", "TERM", "12", "15")
"""What the batch scripts take as a warning and pass to every rank, as USR2."""
MAX_LEAD_S = 65_535
DEFAULT_LEAD_S = 60
"""Slurm's own lead where none is written."""
ALLOWED = f"[R: or B:]SIGNAL[@SECONDS], SIGNAL a number 1-64 or one of {', '.join(NAMES)}; seconds up to {MAX_LEAD_S}"
_SIGNAL = re.compile(r"(?:(RB|BR|R|B):)?([A-Z][A-Z0-9]*|[1-9][0-9]?)(?:@([0-9]{1,5}))?")


@dataclass(frozen=True)
class Signal:
    """A signal by name (or number), the seconds before the end, and to whom it goes."""

    name: str
    lead_s: int = DEFAULT_LEAD_S
    batch: bool = False
    reservation: bool = False


def parse_signal(text: str, field: str = "") -> Signal:
    """Raises Refusal E-SPEC-044. A leading `SIG` is accepted."""
    match = _SIGNAL.fullmatch(text)
    if match:
        flags, name, lead = match[1] or "", match[2].removeprefix("SIG"), int(match[3] or DEFAULT_LEAD_S)
        known = name in NAMES or (name.isdecimal() and int(name) <= 64)
        if known and lead <= MAX_LEAD_S:
            return Signal(name, lead, "B" in flags, "R" in flags)
    raise Refusal("E-SPEC-044", "not a signal", field=field, found=visible(text), allowed=ALLOWED)


def format_signal(signal: Signal) -> str:
    """The canonical spelling: flags, name, `@` and the lead."""
    flags = ("R" if signal.reservation else "") + ("B" if signal.batch else "")
    return f"{flags}:{signal.name}@{signal.lead_s}" if flags else f"{signal.name}@{signal.lead_s}"
