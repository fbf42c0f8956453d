"""Whether a checkpoint can be taken up by another number of ranks: asked before the queue wait and again in the job. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SHAPE_SETTINGS = ("micro_batch_size", "gradient_accumulation")
"""Settings that may change with the number of ranks, as long as their product with it does not."""


def global_batch(settings: Mapping[str, Any], ranks: int) -> int:
    """Rows a step, all ranks together."""
    return int(settings["micro_batch_size"]) * int(settings["gradient_accumulation"]) * ranks


def shape_faults(then: Mapping[str, Any], settings: Mapping[str, Any], ranks: int) -> list[tuple[str, str, str]]:
    """(field, found, allowed) of everything that keeps `ranks` ranks with `settings` from taking up a checkpoint of manifest `then`."""
    out = []
    before = int(then["world_size"])
    batch, now = global_batch(then["settings"], before), global_batch(settings, ranks)
    if batch != now:
        out.append(
            ("global batch", f"{now} rows a step on {ranks} ranks", f"{batch} rows a step, as on {before} ranks")
        )
    return out
