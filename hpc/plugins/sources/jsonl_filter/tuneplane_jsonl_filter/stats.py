"""What was read, accepted and left out, and where the first of each kind stands."""

from __future__ import annotations

from collections import Counter
from typing import Any

from .config import Config
from .records import INVALID, InvalidRecordError

API = "tuneplane-jsonl-filter/stats/v1"
SHOWN = 10
"""Places that are named for each reason."""


class Stats:
    """Counts of one run. `accepted` is what the output holds."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._files: list[dict[str, Any]] = []
        self._reasons: Counter[str] = Counter()
        self._first: dict[str, list[str]] = {}
        self.accepted = 0

    def leave_out(self, reason: str, name: str, number: int, detail: str) -> None:
        """Count one record; raises InvalidRecordError for an invalid one unless such records are to be skipped."""
        if reason in INVALID and self._config.on_invalid == "fail":
            what = INVALID[reason] + (f": {detail}" if detail else "")
            raise InvalidRecordError(f"{name}, line {number}: {what}")
        self._reasons[reason] += 1
        places = self._first.setdefault(reason, [])
        if len(places) < SHOWN:
            places.append(f"{name}:{number}")

    def file(self, name: str, read: int, accepted: int) -> None:
        """`accepted` counts before duplicates are taken out."""
        self._files.append({"input": name, "records": read, "valid_and_in_bounds": accepted})
        self.accepted += accepted

    def duplicates(self, count: int) -> None:
        self.accepted -= count
        if count:
            self._reasons["duplicate"] += count

    def as_json(self) -> dict[str, Any]:
        return {
            "api": API,
            "config": self._config.as_json(),
            "inputs": self._files,
            "read": sum(row["records"] for row in self._files),
            "accepted": self.accepted,
            "invalid": {reason: n for reason, n in sorted(self._reasons.items()) if reason in INVALID},
            "rejected": {reason: n for reason, n in sorted(self._reasons.items()) if reason not in INVALID},
            "first_places": dict(sorted(self._first.items())),
        }
