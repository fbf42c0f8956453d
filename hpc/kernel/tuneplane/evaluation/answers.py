"""Predictions: one line an answer, appended as they come, and joined with the expectations only when they are whole. Standard library only."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tuneplane.record.canonical import CanonicalError, canonical_bytes, parse_json
from tuneplane.training.refusals import Reason, Refused, refuse

_NAMED = 20


@dataclass(frozen=True)
class Prediction:
    """One answer. `latency_ms` is the time of the batch that it came with; `tokens` are those generated; `cut` that the length cap ended it."""

    id: str
    text: str
    latency_ms: int
    tokens: int
    cut: bool = False

    def line(self) -> bytes:
        return canonical_bytes(asdict(self)) + b"\n"


def parse_prediction(value: Any) -> Prediction:
    """Raises ValueError with the reason for anything that is no prediction."""
    if not isinstance(value, dict) or set(value) != {"id", "text", "latency_ms", "tokens", "cut"}:
        raise ValueError("not an object of id, text, latency_ms, tokens and cut")
    if not isinstance(value["id"], str) or not isinstance(value["text"], str) or type(value["cut"]) is not bool:
        raise ValueError("id and text are text, cut is true or false")
    for name in ("latency_ms", "tokens"):
        if type(value[name]) is not int or value[name] < 0:
            raise ValueError(f"{name} is no whole number from 0 on")
    return Prediction(**value)


def read_predictions(path: str | os.PathLike[str], *, torn: bool = False) -> list[Prediction]:
    """Every line. With `torn` an unfinished last line, of a process that was killed, is left out. Raises Refused E-EVAL-011, E-EVAL-012."""
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        return []
    except OSError as exc:
        raise refuse("E-EVAL-011", f"cannot be read: {exc.strerror}", field=os.fspath(path)) from exc
    lines = data.split(b"\n")
    if (tail := lines.pop()) and not torn:
        lines.append(tail)
    out = []
    for number, line in enumerate(lines, 1):
        try:
            out.append(parse_prediction(parse_json(line)))
        except (CanonicalError, ValueError) as exc:
            raise refuse("E-EVAL-012", str(exc), field=f"{os.path.basename(path)}:{number}") from exc
    return out


def join(predictions: Iterable[Prediction], expected: Mapping[str, str] | Collection[str]) -> dict[str, Prediction]:
    """Predictions by id, exactly one for each expected id. Raises Refused E-EVAL-010 with every missing, repeated and unknown id (20 of a kind)."""
    listed = list(predictions)
    counts = Counter(p.id for p in listed)
    kinds = {
        "has no prediction": [i for i in expected if i not in counts],
        "has several predictions": [i for i, n in counts.items() if n > 1],
        "was not asked": [i for i in counts if i not in expected],
    }
    wrong = [
        Reason("E-EVAL-010", words, field=ident, found=f"{len(ids)} such ids" if len(ids) > _NAMED else "")
        for words, ids in kinds.items()
        for ident in ids[:_NAMED]
    ]
    if wrong:
        raise Refused(wrong)
    return {p.id: p for p in listed}
