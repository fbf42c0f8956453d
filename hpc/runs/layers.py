"""What the layers of an attempt had as their environment: the batch step's against each node's step (P09). Names only; a value may be a secret."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tuneplane.record.files import read_bytes

from hpc.spec.text import escaped

_MAX_BYTES: Final = 1 << 20
_SHOWN: Final = 6


def compared(attempt: Path) -> str:
    """In words: whether the environments of the batch step and of the nodes' steps are the same, and how not; "" where nothing was recorded."""
    layers = {path.name[4:-7]: _text(path).strip() for path in sorted(attempt.glob("env-*.sha256"))}
    batch = layers.pop("batch", "")
    if not batch or not layers:
        return ""
    other = [name for name, digest in layers.items() if digest != batch]
    if not other:
        return f"the same in the batch step and in {len(layers)} node step{'s' if len(layers) != 1 else ''}"
    return "; ".join(_difference(attempt, name) for name in other[:3])


def _difference(attempt: Path, layer: str) -> str:
    here, there = _names(attempt / "env-batch.names"), _names(attempt / f"env-{layer}.names")
    if here == there:
        return f"{layer} has other values than the batch step"
    parts = [
        f"{word} {_listed(names)}" for word, names in (("has also", there - here), ("lacks", here - there)) if names
    ]
    return f"{layer} {' and '.join(parts)}"


def _listed(names: set[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(escaped(n[:80]) for n in sorted(names)[:_SHOWN]) + more


def _names(path: Path) -> set[str]:
    return set(_text(path).split("\n")) - {""}


def _text(path: Path) -> str:
    try:
        return read_bytes(path, limit=_MAX_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""
