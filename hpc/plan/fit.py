"""Whether what is needed fits into what there is. Pure."""

from __future__ import annotations

from typing import Literal

Verdict = Literal["not_possible", "tight", "ready", "unknown"]
COMFORT = 1.2
"""Below this ratio of what there is to what is needed, a forecast is too uncertain to promise anything."""


def fit(required: float, available: float) -> Verdict:
    """`not_possible` where there is less than needed, `tight` below COMFORT times as much, else `ready`; `unknown` where nothing is known (0)."""
    if available <= 0:
        return "unknown"
    if available < required:
        return "not_possible"
    return "tight" if available < required * COMFORT else "ready"
