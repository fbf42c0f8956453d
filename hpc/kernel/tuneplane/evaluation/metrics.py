"""Scores of examples, and the metrics of an evaluation with their intervals. Pure; standard library only.

| metric | of an example | passed |
|---|---|---|
| `exact_match` | 1 where the normalised texts are equal | 1 |
| `token_f1` | F1 over words | 1 |
| `json_fields` | matched fields / fields; exact match where no JSON is expected | all fields match |
| `constraints` | kept rules / rules | all are kept |

`score` and `pass_rate` are those of the metric that was named first. Means are over all examples, but for the `json_…` ones, which are over those
whose expectation is a JSON object.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tuneplane.contract.evaluation import LOWER, METRIC_KEY, Direction
from tuneplane.contract.intervals import mean_interval
from tuneplane.evaluation.answers import Prediction
from tuneplane.evaluation.scoring import constraints_kept, exact_match, json_fields, token_f1

SHARED = frozenset({"latency_ms"})


@dataclass(frozen=True)
class Scoring:
    """What is scored: the metrics in their order, the fields of `json_fields` (none: all), the rules of `constraints`."""

    metrics: tuple[str, ...] = ("exact_match", "token_f1")
    fields: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()


@dataclass(frozen=True)
class Score:
    """One example's numbers by metric; `passed` says whether it passes the first metric. `parts` are numbers that only some examples have."""

    id: str
    passed: bool
    values: Mapping[str, float]
    parts: Mapping[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {"id": self.id, "passed": self.passed, "values": dict(self.values), "parts": dict(self.parts)}


def score(prediction: Prediction, expected: str, scoring: Scoring) -> Score:
    """Score one answer."""
    values: dict[str, float] = {}
    parts: dict[str, float] = {}
    for name in scoring.metrics:
        values[name] = _one(name, expected, prediction.text, scoring, parts)
    extra = {
        "latency_ms": float(prediction.latency_ms),
        "tokens": float(prediction.tokens),
        "cut_rate": float(prediction.cut),
    }
    return Score(prediction.id, values[scoring.metrics[0]] == 1.0, values | extra, parts)


def _one(name: str, expected: str, actual: str, scoring: Scoring, parts: dict[str, float]) -> float:
    if name == "exact_match":
        return exact_match(expected, actual)
    if name == "token_f1":
        return token_f1(expected, actual)
    if name == "constraints":
        kept = constraints_kept(scoring.constraints, actual)
        return sum(kept) / len(kept) if kept else 1.0
    found = json_fields(expected, actual, scoring.fields)
    if found is None:
        return exact_match(expected, actual)
    parts |= {
        "json_valid": float(found.valid),
        "json_schema": float(found.schema),
        "json_all_fields": float(found.passed),
    }
    parts |= {
        f"json_field.{n}": float(hit) for n, hit in found.fields.items() if METRIC_KEY.fullmatch(f"json_field.{n}")
    }
    return found.score


def direction(key: str) -> Direction:
    return "lower" if key in LOWER else "higher"


def columns(scores: Iterable[Score], first: str) -> dict[str, dict[str, float]]:
    """Metric → id → number, `score` and `pass_rate` among them."""
    out: dict[str, dict[str, float]] = {"score": {}, "pass_rate": {}}
    for one in scores:
        out["score"][one.id] = one.values[first]
        out["pass_rate"][one.id] = float(one.passed)
        for key, value in (*one.values.items(), *one.parts.items()):
            out.setdefault(key, {})[one.id] = value
    return out


def aggregate(scores: Sequence[Score], scoring: Scoring, seed: int = 0) -> dict[str, dict[str, Any]]:
    """Metric → `{value, low, high, n, direction}`; `low` and `high` are None for what examples of one batch share. Scores: at least one."""
    found = columns(scores, scoring.metrics[0])
    return {
        key: summary(column.values(), direction(key), around=key not in SHARED, seed=seed)
        for key, column in found.items()
    }


def summary(column: Iterable[float], way: Direction, *, around: bool = True, seed: int = 0) -> dict[str, Any]:
    """The mean of a metric's numbers, with its interval if there is to be one (`around`). At least one number."""
    values = list(column)
    found = mean_interval(values, seed=seed) if around else None
    return {
        "value": found.mean if found else sum(values) / len(values),
        "low": found.low if found else None,
        "high": found.high if found else None,
        "n": len(values),
        "direction": way,
    }
