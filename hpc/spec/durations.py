"""Time limits as Slurm writes them.

    minutes | minutes:seconds | hours:minutes:seconds | days-hours | days-hours:minutes | days-hours:minutes:seconds

`UNLIMITED` and `INFINITE` are no limit. Only the first number may exceed its unit, so `1:90:00` is a refusal and not
two and a half hours.
"""

from __future__ import annotations

import re

from hpc.errors import Refusal
from hpc.spec.text import visible

MAX_SECONDS = 3650 * 86_400
ALLOWED = "MM, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS, at most 3650 days; or UNLIMITED"
_DAYS = re.compile(r"([0-9]{1,6})-([0-9]{1,2})(?::([0-9]{1,2}))?(?::([0-9]{1,2}))?")
_PLAIN = re.compile(r"([0-9]{1,9})(?::([0-9]{1,2}))?(?::([0-9]{1,2}))?")


def parse_time(text: str, field: str = "") -> int | None:
    """Seconds, or None for no limit. Raises Refusal E-SPEC-040. Zero is zero seconds here; a field may refuse it."""
    if text.upper() in ("UNLIMITED", "INFINITE"):
        return None
    seconds = _seconds(text)
    if seconds is None or seconds > MAX_SECONDS:
        raise Refusal("E-SPEC-040", "not a time limit", field=field, found=visible(text), allowed=ALLOWED)
    return seconds


def _seconds(text: str) -> int | None:
    if match := _DAYS.fullmatch(text):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        if hours > 23:
            return None
    elif match := _PLAIN.fullmatch(text):
        first, second, third = match.groups()
        days = 0
        if third is None:
            hours, minutes, seconds = 0, int(first), int(second or 0)
            return None if seconds > 59 else minutes * 60 + seconds
        hours, minutes, seconds = int(first), int(second), int(third)
    else:
        return None
    if minutes > 59 or seconds > 59:
        return None
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def format_time(seconds: int | None) -> str:
    """`HH:MM:SS` or `D-HH:MM:SS`, or `UNLIMITED` for None: the form that squeue prints and sbatch reads back alike."""
    if seconds is None:
        return "UNLIMITED"
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    clock = f"{hour:02d}:{minute:02d}:{second:02d}"
    return f"{days}-{clock}" if days else clock
