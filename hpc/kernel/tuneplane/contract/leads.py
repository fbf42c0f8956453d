"""How long before the end a warning must come, from the saves that were measured. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

_ROOM_S = 30
"""To reach the next step edge, and to leave cleanly."""


def suggested_lead_s(seconds: Sequence[float]) -> int:
    """Twice the 95th percentile of the measured saves, and half a minute; 0 without any."""
    if not seconds:
        return 0
    ordered = sorted(seconds)
    return math.ceil(2 * ordered[math.ceil(0.95 * len(ordered)) - 1]) + _ROOM_S


def lead_advice(seconds: Sequence[float], lead_s: float) -> str:
    """What to change where the warning comes too late for the longest save that was measured; else nothing."""
    longest = max(seconds, default=0.0)
    if longest < lead_s:
        return ""
    return (
        f"the longest of {len(seconds)} saves took {longest:.0f} s, the warning comes {lead_s:.0f} s before the end: "
        f"submit with --signal B:USR2@{suggested_lead_s(seconds)}"
    )
