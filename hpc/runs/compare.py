"""What differs between two runs, by the question that it answers: settings, data, code, environment, and what came out. From their records alone."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tuneplane.contract.layout import RunPaths
from tuneplane.record.digest import digest_json
from tuneplane.record.files import read_json

from hpc.errors import Refusal
from hpc.runs.metrics import is_number, newest, read_metrics
from hpc.runs.records import numbers

SECTIONS: Final = ("settings", "data", "code", "environment", "result", "metrics")
ABSENT: Final = None
NOT_A_SETTING: Final = frozenset({"step", "total_steps", "attempt", "time", "elapsed_s"})


@dataclass(frozen=True)
class Difference:
    """One value that two runs have differently; None where a run has none. `delta`: b − a of two numbers."""

    section: str
    key: str
    a: Any
    b: Any
    delta: float | None = None

    def as_json(self) -> dict[str, Any]:
        return {"section": self.section, "key": self.key, "a": self.a, "b": self.b, "delta": self.delta}


@dataclass(frozen=True)
class RunComparison:
    """Differences in the order of SECTIONS; `same`: how many values both runs have alike, by section."""

    differences: tuple[Difference, ...]
    same: Mapping[str, int]

    def as_json(self) -> dict[str, Any]:
        return {"differences": [d.as_json() for d in self.differences], "same": dict(self.same)}


def compare_runs(a: RunPaths, b: RunPaths) -> RunComparison:
    """Everything that the two runs' records tell differently. Raises Refusal E-RUNS-042 where a run's package cannot be read."""
    one, other = facts_of(a), facts_of(b)
    found: list[Difference] = []
    same = {}
    for section in SECTIONS:
        left, right = one[section], other[section]
        keys = sorted(left.keys() | right.keys())
        differing = [key for key in keys if left.get(key, ABSENT) != right.get(key, ABSENT)]
        found += [_difference(section, key, left.get(key), right.get(key)) for key in differing]
        same[section] = len(keys) - len(differing)
    return RunComparison(tuple(found), same)


def _difference(section: str, key: str, a: Any, b: Any) -> Difference:
    both = is_number(a) and is_number(b) and not isinstance(a, bool) and not isinstance(b, bool)
    return Difference(section, key, a, b, float(b) - float(a) if both else None)


def facts_of(run: RunPaths) -> dict[str, dict[str, Any]]:
    """The comparable values of one run, by section, each under a dotted name. Raises Refusal E-RUNS-042."""
    try:
        launch, spec, package = (read_json(path) for path in (run.launch, run.jobspec, run.package))
        return {
            "settings": _settings(launch, spec),
            "data": _data(launch, spec),
            "code": _code(package, spec),
            "environment": _environment(launch, spec),
            "result": _result(run),
            "metrics": _metrics(run),
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise Refusal("E-RUNS-042", f"the records of {run.run_id} cannot be read: {exc}", field=str(run.work)) from exc


def flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and plain values of nested mappings; a list is one value."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from flat(item, f"{prefix}.{key}" if prefix else str(key))
    elif not isinstance(value, Mapping):
        yield prefix, value


def _settings(launch: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    parts = {
        "hyperparams": launch["hyperparams"], "config": launch.get("config") or {}, "shape": {"pools": launch["shape"]["pools"]},
        "slurm": launch.get("options") or {}, "peft": launch.get("peft") or {}, "profile": launch.get("profile", ""),
        "lifecycle": spec["spec"].get("lifecycle") or {}, "evaluation": spec["spec"].get("evaluation") or {},
    }  # fmt: skip
    return dict(flat(parts))


def _data(launch: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, source in (launch.get("inputs") or {}).items():
        out |= {f"{name}.path": source["path"], f"{name}.content": digest_json(source["files"])}
    out |= flat({"model": spec["spec"].get("model") or {}, "data": spec["spec"].get("data") or {}})
    return out


def _code(package: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    files = {e["path"]: e["sha256"] for e in package["files"] if not e["path"].startswith(".tuneplane/")}
    git = {k: v for k, v in (spec.get("provenance") or {}).items() if k.startswith("git_")}
    return {**files, **git}


def _environment(launch: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    body, kernel = spec["spec"], launch["kernel"]
    parts = {
        "recipe": body["recipe"], "framework": body["framework"], "tp": (spec.get("provenance") or {}).get("core_version", ""),
        "runtime": {k: launch["runtime"].get(k) for k in ("runtime_id", "container", "sha256")},
        "kernel": {k: kernel[k] for k in ("verifier_sha256", "training_sha256")}, "env": launch.get("env") or {},
        "plugins": {p["id"]: f"{p['version']} {p['digest']}" for p in body.get("plugins", [])},
    }  # fmt: skip
    return dict(flat(parts))


def _result(run: RunPaths) -> dict[str, Any]:
    """How the last attempt ended, and the numbers and texts of its result.json."""
    out: dict[str, Any] = {"attempts": len(numbers(run.attempts))}
    for number in numbers(run.attempts)[-1:]:
        attempt = run.attempt(number)
        for path, prefix in ((attempt.end, "end"), (attempt.out / "result.json", "result")):
            try:
                value = read_json(path)
            except (OSError, ValueError):
                continue
            kept = {k: v for k, v in value.items() if k in ("class", "step", "exit_code")} if prefix == "end" else value
            out |= {key: v for key, v in flat(kept, prefix) if isinstance(v, (str, int, float, bool))}
    return out


def _metrics(run: RunPaths) -> dict[str, Any]:
    """Last and best value of each metric, and the median of rates. The last is None where it was no number."""
    rows = read_metrics(run)
    out: dict[str, Any] = {"steps": rows[-1]["step"]} if rows else {}
    for name in sorted({k for row in rows for k, v in row.items() if is_number(v)} - NOT_A_SETTING):
        values = [float(row[name]) for row in rows if is_number(row.get(name))]
        if name.endswith("_per_s"):
            out[f"{name}.median"] = statistics.median(values)
        else:
            out |= {f"{name}.last": newest(rows, name), f"{name}.min": min(values), f"{name}.max": max(values)}
    return out
