"""A finished evaluation scored again: what of its report does not follow from its answers. Standard library only, but for Parquet rows.

The evaluator's own rules are asked again, so that there is one truth of what an answer is worth. What lm-eval made of an answer is not computed
again: of a benchmark's report it is only the step from scores to means that is checked. The files come in as bytes: who asks has compared digests.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuneplane.contract.evaluation import INPUTS, PREDICTIONS, REPORT, SCORES
from tuneplane.contract.intervals import mean_interval
from tuneplane.evaluation.answers import Prediction, join, parse_prediction
from tuneplane.evaluation.examples import Examples, inputs_bytes, read_examples
from tuneplane.evaluation.metrics import SHARED, Score, columns, score
from tuneplane.evaluation.settings import FIELDS, Settings, parse
from tuneplane.record.canonical import canonical_bytes, parse_json
from tuneplane.training.refusals import Refused

NEAR = 1e-9
"""Relative difference of two numbers that are called the same."""
LONGEST_LINE = 1 << 20
_NAMED = 5
_SCORING = ("metrics", "fields", "constraints", "repeats", "sample_seed", "max_rows")
"""Settings that decide which rows count and what an answer is worth."""


@dataclass(frozen=True)
class Wrong:
    """What is wrong, in which file of the report's folder; `unknown`: it is not wrong, but could not be looked at here."""

    file: str
    text: str
    unknown: bool = False


class _Faulty(Exception):  # noqa: N818 - carries what there is to say
    def __init__(self, wrong: Wrong) -> None:
        super().__init__(wrong.text)
        self.wrong = wrong


def is_behaviour(report: Mapping[str, Any]) -> bool:
    """Whether a report is the behaviour evaluator's, whose scores can be computed again."""
    return isinstance(report.get("settings"), dict) and "metrics" in report["settings"]


def rescored(
    report: Mapping[str, Any], files: Mapping[str, bytes], rows: Path | None, step: Callable[[int], None] = lambda n: None
) -> list[Wrong]:  # fmt: skip
    """Everything in which a report contradicts its own answers; at most a few of a kind, then how many more.

    `files`: INPUTS, PREDICTIONS and SCORES. `rows`: the file that was asked, None where it is not there any more; then expectations are unknown and
    only what an answer shows by itself is compared. `step` is told the bytes of each answer.
    """
    try:
        scores = [_score(item) for item in _lines(files, SCORES)]
        if not scores:
            raise _Faulty(Wrong(SCORES, "is empty"))
        if is_behaviour(report):
            return [*_behaviour(report, files, rows, scores, step), *_means(report, scores)]
        return [*_same_ids(files, scores), *_means(report, scores)]
    except _Faulty as exc:
        return [exc.wrong]


def asked_otherwise(report: Mapping[str, Any], asked: Mapping[str, Any]) -> list[Wrong]:
    """Which settings of the scoring a report states otherwise than the package `asked` for."""
    stated = report["settings"]
    return [
        Wrong(REPORT, f"settings.{name} is {stated.get(name)!r}, the package asks for {asked[name]!r}")
        for name in _SCORING
        if name in asked and asked[name] != stated.get(name)
    ]


def _lines(files: Mapping[str, bytes], name: str) -> list[Any]:
    out = []
    for number, line in enumerate(files[name].splitlines(), 1):
        try:
            if len(line) > LONGEST_LINE:
                raise ValueError(f"is longer than {LONGEST_LINE} bytes")
            out.append(parse_json(line))
        except (ValueError, RecursionError) as exc:
            raise _Faulty(Wrong(name, f"line {number}: {exc}")) from exc
    return out


def _score(item: Any) -> Score:
    try:
        values, parts = dict(item["values"]), dict(item["parts"])
        numbers = [*values.values(), *parts.values()]
        if not all(type(n) in (int, float) and math.isfinite(n) for n in numbers):
            raise ValueError(numbers)
        return Score(str(item["id"]), bool(item["passed"]), values, parts)
    except (KeyError, TypeError, ValueError) as exc:
        raise _Faulty(Wrong(SCORES, f"holds a line that is no score: {exc!r}")) from exc


def _behaviour(
    report: Mapping[str, Any], files: Mapping[str, bytes], rows: Path | None, scores: Sequence[Score], step: Callable[[int], None]
) -> Iterator[Wrong]:  # fmt: skip
    settings = _settings(report)
    try:
        predictions = [parse_prediction(item) for item in _lines(files, PREDICTIONS)]
        if rows is None:
            yield from _by_themselves(predictions, scores)
            return
        examples = _examples(rows, settings)
        joined = join(predictions, examples.expected)
    except ValueError as exc:
        yield Wrong(PREDICTIONS, f"holds a line that is no answer: {exc}")
        return
    except Refused as exc:
        first = exc.reasons[0]
        yield Wrong(PREDICTIONS, f"is not one answer to each question: {first.field} {first.message}")
        return
    if files[INPUTS] != inputs_bytes(examples.questions):
        yield Wrong(INPUTS, "are not the questions of the rows")
    lines, wrong = files[SCORES].splitlines(), list[Wrong]()
    if len(lines) != len(examples.questions):
        yield Wrong(SCORES, f"has {len(lines)} scores for {len(examples.questions)} questions")
        return
    for line, question in zip(lines, examples.questions, strict=True):
        prediction = joined[question.id]
        step(len(prediction.text))
        again = score(prediction, examples.expected[question.id], settings.scoring).as_json()
        if line != canonical_bytes(again):
            wrong.append(Wrong(SCORES, f"{question.id}: {_differing(json.loads(line), again)}"))
    yield from _few(wrong)


def _examples(rows: Path, settings: Settings) -> Examples:
    try:
        return read_examples(rows, max_rows=settings.max_rows, seed=settings.sample_seed, repeats=settings.repeats)
    except Refused as exc:  # they were read when they were asked: what is missing is a library for them
        raise _Faulty(Wrong(REPORT, f"is not scored again: {exc.reasons[0].message}", unknown=True)) from exc


def _settings(report: Mapping[str, Any]) -> Settings:
    names = {f.name for f in FIELDS}
    try:
        settings = parse({k: v for k, v in report["settings"].items() if k in names})
    except Refused as exc:
        raise _Faulty(Wrong(REPORT, f"its settings are none: {exc.reasons[0].field} {exc.reasons[0].message}")) from exc
    if report.get("decides") != settings.scoring.metrics[0]:
        raise _Faulty(
            Wrong(REPORT, f"is decided by {report.get('decides')!r}, not by the first of {settings.metrics!r}")
        )
    return settings


def _by_themselves(predictions: Sequence[Prediction], scores: Sequence[Score]) -> Iterator[Wrong]:
    """What needs no expectation: which answers there are, and how they were made."""
    if [p.id for p in predictions] != [s.id for s in scores]:
        yield Wrong(SCORES, f"are of other answers than {PREDICTIONS}")
        return
    wrong = []
    for given, one in zip(predictions, scores, strict=True):
        shown = {"latency_ms": float(given.latency_ms), "tokens": float(given.tokens), "cut_rate": float(given.cut)}
        if any(one.values.get(name) != value for name, value in shown.items()):
            wrong.append(Wrong(SCORES, f"{one.id}: is not the score of that answer: {shown}"))
    yield from _few(wrong)


def _same_ids(files: Mapping[str, bytes], scores: Sequence[Score]) -> Iterator[Wrong]:
    wanted = [one.id for one in scores]
    for name in (INPUTS, PREDICTIONS):
        if [item.get("id") if isinstance(item, dict) else None for item in _lines(files, name)] != wanted:
            yield Wrong(SCORES, f"are of other examples than {name}")


def _means(report: Mapping[str, Any], scores: Sequence[Score]) -> Iterator[Wrong]:
    """Every metric of the report against the mean over the scores, and its interval."""
    decides, stated = str(report.get("decides")), report.get("metrics")
    if not isinstance(stated, dict) or any(decides not in one.values for one in scores):
        yield Wrong(REPORT, "has no metrics, or is decided by one that its scores lack")
        return
    found = columns(scores, decides)
    wrong = [Wrong(REPORT, f"metrics.{key} is in no score") for key in sorted(stated.keys() - found.keys())]
    wrong += [Wrong(REPORT, f"metrics.{key} is left out") for key in sorted(found.keys() - stated.keys())]
    for key in sorted(found.keys() & stated.keys()):
        values = list(found[key].values())
        around = None if key in SHARED else mean_interval(values)
        mean = around.mean if around else math.fsum(values) / len(values)
        again = {"value": mean, "n": len(values)}
        if isinstance(stated[key], dict) and stated[key].get("low") is not None and around:
            again |= {"low": around.low, "high": around.high}
        if not isinstance(stated[key], dict) or not all(_near(stated[key].get(k), v) for k, v in again.items()):
            said = {k: stated[key].get(k) for k in again} if isinstance(stated[key], dict) else stated[key]
            wrong.append(Wrong(REPORT, f"metrics.{key} says {said}; its scores give {again}"))
    yield from _few(wrong)


def _near(one: Any, other: float) -> bool:
    return type(one) in (int, float) and abs(one - other) <= NEAR * max(1.0, abs(other))


def _differing(said: Mapping[str, Any], again: Mapping[str, Any]) -> str:
    for name in ("id", "passed"):
        if said.get(name) != again[name]:
            return f"{name} is {said.get(name)!r}; the answer gives {again[name]!r}"
    for group in ("values", "parts"):
        for name in sorted({*said[group], *again[group]}):
            if said[group].get(name) != again[group].get(name):
                return f"{name} is {said[group].get(name)}; the answer gives {again[group].get(name)}"
    return "is not written as the evaluator writes it"


def _few(wrong: Sequence[Wrong]) -> list[Wrong]:
    """The first ones, and how many more."""
    rest = len(wrong) - _NAMED
    return [*wrong[:_NAMED], *([Wrong(wrong[0].file, f"and {rest} more")] if rest > 0 else [])]
