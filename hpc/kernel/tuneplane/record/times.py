"""UTC instants as text with microseconds and `Z`, the only form that records use."""

from __future__ import annotations

from datetime import datetime, timezone


def utc_text(moment: datetime) -> str:
    """`2026-01-01T00:00:00.000000Z` for an aware datetime."""
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def utc_now() -> str:
    """The wall clock now; a caller that must be testable takes a clock by argument instead."""
    return utc_text(datetime.now(timezone.utc))


def parse_utc(text: str) -> datetime:
    """The instant of `utc_text` (with or without a fraction). Raises ValueError."""
    if not text.endswith("Z"):
        raise ValueError(f"{text!r} is not a UTC time with Z")
    return datetime.fromisoformat(text[:-1]).replace(tzinfo=timezone.utc)
