"""From when on, as sacct's --starttime writes it: `2026-01-31`, `2026-01-31T08:00`, `now-7days`. Local time, as a person's clock shows it."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

from hpc.errors import Refusal
from hpc.spec.text import visible

ALLOWED: Final = "YYYY-MM-DD[THH:MM[:SS]], or now-COUNT[minutes|hours|days|weeks]"
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}(:[0-9]{2})?)?")
_AGO: Final = re.compile(r"now-([0-9]{1,6})(minute|hour|day|week)s?")
_SECONDS: Final = {"minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}


def parse_since(text: str, now: float, field: str = "") -> float:
    """Seconds since 1970. Raises Refusal E-SPEC-049, also for a date that no calendar has."""
    if match := _AGO.fullmatch(text):
        return now - int(match[1]) * _SECONDS[match[2]]
    try:
        if _DATE.fullmatch(text):
            return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        pass
    raise Refusal("E-SPEC-049", "not a moment in the past", field=field, found=visible(text), allowed=ALLOWED)
