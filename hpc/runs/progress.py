"""How far a run is: the newest line of its metrics, and its report. Reads shared files only."""

from __future__ import annotations

import json
import os
from typing import Any, Final

from tuneplane.contract.layout import RunPaths
from tuneplane.record.files import open_regular

_TAIL: Final = 1 << 16


def newest_metrics(run: RunPaths, attempt: int | None) -> dict[str, Any] | None:
    """What the attempt's metrics.jsonl says of its newest step, or None. A line that is still being written is not whole.

    A step has a line of its own and, where it was validated, another one after it: they are one here, as in `read_metrics`.
    """
    if attempt is None:
        return None
    try:
        with open_regular(run.attempt(attempt).out / "metrics.jsonl") as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - _TAIL))
            lines = stream.read().split(b"\n")[:-1]
    except OSError:
        return None
    found: dict[str, Any] | None = None
    for line in reversed(lines):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not isinstance(value, dict):
            continue
        if found is not None and ("step" not in value or value["step"] != found.get("step")):
            break
        found = value if found is None else value | found
    return found
