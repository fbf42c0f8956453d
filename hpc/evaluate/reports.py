"""Reports of evaluations as files: read with suspicion, their parts compared with the digests that they state.

Does not promise that a report is true: who can write the folder can write a consistent one. What a run's audit covers is the run's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tuneplane.contract.evaluation import INPUTS, METRIC_KEY, PREDICTIONS, REPORT, REPORT_SCHEMA, SCORES
from tuneplane.record.digest import digest_bytes
from tuneplane.record.files import read_bytes, read_json

from hpc.errors import Refusal

MAX_LINES_BYTES = 1 << 30
OPERATIONAL: Final = frozenset({"latency_ms", "tokens", "cut_rate"})
"""Metrics of the way an answer was made."""
_DIRECTIONS = ("higher", "lower", "neutral")


@dataclass(frozen=True)
class Metric:
    """One number of a report over `n` examples, and its interval where it has one."""

    value: float
    low: float | None
    high: float | None
    n: int
    direction: Any

    def as_json(self) -> dict[str, Any]:
        return {"value": self.value, "low": self.low, "high": self.high, "n": self.n, "direction": self.direction}


@dataclass(frozen=True)
class Report:
    """A report as read: its folder, its numbers, and what they rest on (`data`, `settings`, `model`, `adapter` by digest)."""

    folder: Path
    suite: str
    decides: str
    metrics: Mapping[str, Metric]
    basis: Mapping[str, Any]
    value: Mapping[str, Any]

    @property
    def keys(self) -> list[str]:
        """The metrics' names as they are read: what decides, then the others, then how the answers were made."""
        return sorted(self.metrics, key=lambda k: (k in OPERATIONAL, k not in ("score", "pass_rate"), k))

    @property
    def files(self) -> Mapping[str, str]:
        found = self.value.get("files")
        return found if isinstance(found, dict) else {}


def read_report(path: Path) -> Report:
    """The report of a folder, or a report file. Raises Refusal E-EVAL-040 (cannot be read), E-EVAL-041 (is none)."""
    file = path / REPORT if path.is_dir() else path
    try:
        value = read_json(file)
    except OSError as exc:
        allowed = f"a folder with {REPORT}, or such a file"
        raise Refusal(
            "E-EVAL-040", f"{file}: {exc.strerror}", field="REPORT", found=str(path), allowed=allowed
        ) from exc
    except ValueError as exc:
        raise Refusal("E-EVAL-041", f"{file}: {exc}", field="REPORT") from exc
    return parse_report(value, file.parent)


def parse_report(value: Any, folder: Path) -> Report:
    """Raises Refusal E-EVAL-041 with what is wrong."""
    if not isinstance(value, dict) or value.get("schema") != REPORT_SCHEMA:
        found = value.get("schema") if isinstance(value, dict) else type(value).__name__
        raise Refusal("E-EVAL-041", "has another schema", field="schema", found=found, allowed=REPORT_SCHEMA)
    for name, kind in (("suite", str), ("decides", str), ("metrics", dict), ("basis", dict)):
        if not isinstance(value.get(name), kind):
            raise Refusal("E-EVAL-041", "is missing or of another kind", field=name)
    metrics = {key: _metric(key, item) for key, item in value["metrics"].items()}
    return Report(folder, value["suite"], value["decides"], metrics, value["basis"], value)


def _metric(key: str, item: Any) -> Metric:
    field = f"metrics.{key}"
    if not METRIC_KEY.fullmatch(key) or not isinstance(item, dict):
        raise Refusal("E-EVAL-041", "is no metric", field=field)
    value, low, high = (item.get(k) for k in ("value", "low", "high"))
    for number in (value, low, high):
        if number is not None and (type(number) not in (int, float) or not math.isfinite(number)):
            raise Refusal("E-EVAL-041", "holds no number", field=field, found=number)
    if value is None or type(item.get("n")) is not int or item.get("direction") not in _DIRECTIONS:
        raise Refusal("E-EVAL-041", "lacks value, n or direction", field=field)
    return Metric(float(value), low, high, item["n"], item["direction"])


@dataclass(frozen=True)
class Scored:
    """One example's numbers."""

    passed: bool
    values: Mapping[str, float]


def read_scores(report: Report) -> dict[str, Scored]:
    """Every example by id, in the report's order. Raises Refusal E-EVAL-040, E-EVAL-041 (a line is none), E-EVAL-045 (changed since)."""
    lines = _recorded(report, SCORES).splitlines()
    try:
        items = json.loads(b"[%s]" % b",".join(lines))
    except (ValueError, RecursionError):
        items = []
    if len(items) != len(lines):  # a broken line, or two objects in one: it is found by reading them one by one
        items = [_line(number, line) for number, line in enumerate(lines, 1)]
    out: dict[str, Scored] = {}
    for number, item in enumerate(items, 1):
        scored = _scored(item)
        if scored is None or item["id"] in out:
            raise Refusal("E-EVAL-041", f"line {number} is no score, or of an example that stands twice", field=SCORES)
        out[item["id"]] = scored
    return out


def _line(number: int, line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise Refusal("E-EVAL-041", f"line {number} is no score: {exc}", field=SCORES) from exc


def _scored(item: Any) -> Scored | None:
    """A line's numbers; None for anything else."""
    if not isinstance(item, dict) or type(item.get("id")) is not str or type(item.get("passed")) is not bool:
        return None
    values, parts = item.get("values"), item.get("parts")
    if not isinstance(values, dict) or not isinstance(parts, dict):
        return None
    merged = {**parts, **values} if parts else values
    for value in merged.values():
        if (type(value) is not float and type(value) is not int) or not math.isfinite(value):
            return None
    return Scored(item["passed"], merged)


def _recorded(report: Report, name: str) -> bytes:
    """The bytes of one of the report's files, which must be those that the report states."""
    path = report.folder / name
    try:
        data = read_bytes(path, limit=MAX_LINES_BYTES)
    except (OSError, ValueError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else str(exc)
        raise Refusal("E-EVAL-040", f"{path}: {why}", field=name) from exc
    found, stated = digest_bytes(data), report.files.get(name)
    if found != stated:
        message = f"{path} is not the file that the report was made from"
        raise Refusal("E-EVAL-045", message, field=name, found=found, allowed=str(stated))
    return data


def changed_files(report: Report) -> list[Refusal]:
    """What of the report's files is missing or is not what the report states."""
    out = []
    for name in (INPUTS, PREDICTIONS, SCORES):
        try:
            _recorded(report, name)
        except Refusal as refusal:
            out.append(refusal)
    return out


def faults_of(report: Report) -> list[Refusal]:
    """What of a report contradicts itself: changed files, else numbers that are not the means of its scores (E-EVAL-049)."""
    if faults := changed_files(report):
        return faults
    scores = list(read_scores(report).values())
    for key, metric in report.metrics.items():
        column = column_of(key, report.decides, scores)
        mean = math.fsum(column) / len(column) if column else None
        if mean is None or len(column) != metric.n or abs(mean - metric.value) > 1e-8 * max(1.0, abs(mean)):
            message = "is not the mean of the report's scores"
            field, allowed = f"metrics.{key}", f"{mean} over {len(column)}"
            faults.append(
                Refusal("E-EVAL-049", message, field=field, found=f"{metric.value} over {metric.n}", allowed=allowed)
            )
    return faults


def column_of(key: str, decides: str, scores: Iterable[Scored]) -> list[float]:
    """A metric's numbers over the examples that have it; `score` is the metric that decides."""
    if key == "pass_rate":
        return [float(s.passed) for s in scores]
    name = decides if key == "score" else key
    return [s.values[name] for s in scores if name in s.values]


def lines_of(report: Report, name: str, wanted: frozenset[str]) -> dict[str, dict[str, Any]]:
    """The lines of some ids in INPUTS or PREDICTIONS; none where the file is missing or not the recorded one: they only illustrate."""
    try:
        data = _recorded(report, name)
    except Refusal:
        return {}
    return {line["id"]: line for line in _picked(data, wanted)}


def _picked(data: bytes, wanted: frozenset[str]) -> Iterator[dict[str, Any]]:
    mark = b'"id":"'  # inside of a text the quotes are escaped, so that this is a key
    for line in data.splitlines():
        begin = line.find(mark) + len(mark)
        if line[begin : line.find(b'"', begin)].decode("utf-8", "replace") in wanted:
            try:
                item = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(item, dict) and item.get("id") in wanted:
                yield item
