"""How long before the end a warning must come, from the saves that were measured."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from tuneplane.contract.layout import RunPaths
from tuneplane.record.files import open_regular

MAX_SAVES_BYTES = 8 << 20
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


def save_seconds(run: RunPaths) -> list[float]:
    """How long each recorded save of the run took, in seconds from the step edge to the pointer. Of a very long file the beginning counts."""
    out = []
    for number in sorted(int(p.name) for p in run.attempts.glob("[0-9]*") if p.name.isdecimal()):
        try:
            with open_regular(run.attempt(number).saves) as stream:
                lines = stream.read(MAX_SAVES_BYTES).split(b"\n")[:-1]
        except OSError:
            continue
        for line in lines:
            try:
                seconds = json.loads(line)["seconds"]
            except (ValueError, KeyError, TypeError, RecursionError):
                continue
            if isinstance(seconds, (int, float)) and 0 <= seconds < 1e7:
                out.append(float(seconds))
    return out
