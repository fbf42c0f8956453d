"""When a job may start: `now+2hours`, `16:00`, `tomorrow`, `2026-01-31`, `2026-01-31T08:00`."""

from __future__ import annotations

import re
from datetime import datetime

from hpc.errors import Refusal
from hpc.spec.text import visible

WORDS = ("now", "today", "tomorrow", "midnight", "noon", "fika", "teatime")
ALLOWED = f"now+COUNT[seconds|minutes|hours|days|weeks], HH:MM[:SS], YYYY-MM-DD[THH:MM[:SS]], or {', '.join(WORDS)}"
_LATER = re.compile(r"now\+[0-9]{1,6}(second|minute|hour|day|week)?s?")
_CLOCK = re.compile(r"(?P<h>[0-9]{2}):(?P<m>[0-9]{2})(:(?P<s>[0-9]{2}))?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}(:[0-9]{2})?)?")


def check_begin(text: str, field: str = "") -> str:
    """`text` itself. Raises Refusal E-SPEC-045, also for a date or an hour that no calendar has."""
    if text in WORDS or _LATER.fullmatch(text) or _is_clock(text) or _is_date(text):
        return text
    raise Refusal("E-SPEC-045", "not a begin time", field=field, found=visible(text), allowed=ALLOWED)


def _is_clock(text: str) -> bool:
    match = _CLOCK.fullmatch(text)
    return match is not None and int(match["h"]) < 24 and int(match["m"]) < 60 and int(match["s"] or 0) < 60


def _is_date(text: str) -> bool:
    if not _DATE.fullmatch(text):
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
