"""Gates: bounds on the numbers of an evaluation, and the verdict that promotion rests on. Pure.

A gate names one metric, `<suite>/<metric key>`. Keys are compared whole: `gsm8k/exact_match` is not `gsm8k/exact_match,strict-match`; only `,none`,
which says that nothing was filtered, may be left out. A number that is missing, doubtful or not finite fails its gate. The verdict is
`not evaluated` where there is no gate, or no number of any suite at all.

It is here, on the ground that both rooms share, because the evaluation's own job states the verdict and the login node computes it again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from tuneplane.contract.evaluation import TOLERANCE, Direction

State = Literal["passed", "failed", "not evaluated"]


class Gate(Protocol):
    """Bounds on one metric, as `spec.evaluation.gates` states them; what is None does not bound."""

    @property
    def metric(self) -> str: ...
    @property
    def min(self) -> float | None: ...
    @property
    def max(self) -> float | None: ...
    @property
    def max_regression(self) -> float | None: ...


@dataclass(frozen=True)
class Bounds:
    """A gate as read from JSON."""

    metric: str
    min: float | None = None
    max: float | None = None
    max_regression: float | None = None


@dataclass(frozen=True)
class Number:
    """One measured value; `direction` says which way is better."""

    value: float
    direction: Direction = "higher"


@dataclass(frozen=True)
class Suite:
    """The numbers of one suite. `basis` names what they depend on besides the model: two suites compare only where all that both state is equal."""

    numbers: Mapping[str, Number]
    basis: Mapping[str, str] = field(default_factory=dict)


Measured = Mapping[str, Suite]
"""Suite name → its numbers."""


@dataclass(frozen=True)
class Judged:
    """One gate's result: the metric as it was found, the numbers, the bounds, and why."""

    metric: str
    passed: bool
    reason: str
    value: float | None = None
    baseline: float | None = None
    regression: float | None = None
    bounds: Mapping[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {
            "metric": self.metric,
            "passed": self.passed,
            "reason": self.reason,
            "value": self.value,
            "baseline": self.baseline,
            "regression": self.regression,
            **self.bounds,
        }


@dataclass(frozen=True)
class Verdict:
    """What all gates say together; `passed` only if each one passed."""

    state: State
    reason: str
    gates: tuple[Judged, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {"verdict": self.state, "reason": self.reason, "gates": [g.as_json() for g in self.gates]}


def suite_of(report: Mapping[str, Any]) -> Suite:
    """The numbers of a report (REPORT_SCHEMA) that was read or has just been made."""
    numbers = {key: Number(metric["value"], metric["direction"]) for key, metric in report["metrics"].items()}
    basis = {key: str(report["basis"][key]) for key in ("data", "settings") if key in report["basis"]}
    return Suite(numbers, basis)


def judge(gates: Sequence[Gate], candidate: Measured, baseline: Measured | None = None) -> Verdict:
    """The verdict of all gates on a candidate. `baseline` is what `max_regression` compares with; without it such a gate fails."""
    if not gates:
        return Verdict("not evaluated", "there is no gate")
    if not any(suite.numbers for suite in candidate.values()):
        return Verdict("not evaluated", "there is no result")
    judged = tuple(_judge(gate, candidate, baseline) for gate in gates)
    failed = [j for j in judged if not j.passed]
    if failed:
        return Verdict(
            "failed", f"{len(failed)} of {len(judged)} gates failed: {failed[0].metric}: {failed[0].reason}", judged
        )
    return Verdict("passed", f"all {len(judged)} gates passed", judged)


def _judge(gate: Gate, candidate: Measured, baseline: Measured | None) -> Judged:
    bounds = {k: float(v) for k in ("min", "max", "max_regression") if (v := getattr(gate, k)) is not None}
    name, number, why = find(gate.metric, candidate)
    if number is None:
        return Judged(name, False, why, bounds=bounds)
    value, faults = number.value, []
    if gate.min is not None and gate.min - value > _slack(value):
        faults.append(f"{_shown(value)} is below min {_shown(gate.min)}")
    if gate.max is not None and value - gate.max > _slack(value):
        faults.append(f"{_shown(value)} is above max {_shown(gate.max)}")
    base = lost = None
    if gate.max_regression is not None:
        base, lost, fault = _regression(name, number, gate.max_regression, candidate, baseline)
        faults += [fault] if fault else []
    reason = "; ".join(faults) or _kept(value, base, lost, bounds)
    return Judged(name, not faults, reason, value, base, lost, bounds)


def _kept(value: float, base: float | None, lost: float | None, bounds: Mapping[str, float]) -> str:
    words = [f"{_shown(value)} keeps {k} {_shown(bounds[k])}" for k in ("min", "max") if k in bounds]
    if base is not None and lost is not None:
        how = f"a loss of {_shown(lost)}" if lost > 0 else "no loss"
        words.append(f"{_shown(value)} after {_shown(base)} is {how}, within {_shown(bounds['max_regression'])}")
    return "; ".join(words) or "no bound is set"


def _regression(
    name: str, number: Number, budget: float, candidate: Measured, baseline: Measured | None
) -> tuple[float | None, float | None, str]:
    """(baseline's value, what was lost, why it fails or "")."""
    if number.direction == "neutral":
        return None, None, "no direction is better here, so that nothing can be lost: use min and max"
    if baseline is None:
        return None, None, "there is no baseline"
    found, base, why = find(name, baseline)
    if base is None:
        return None, None, f"the baseline has none: {why}"
    suite = name.partition("/")[0]
    if odd := differences(candidate[suite].basis, baseline[suite].basis):
        return base.value, None, f"the baseline was measured otherwise: {', '.join(odd)} differ"
    if found != name or base.direction != number.direction:
        return base.value, None, f"the baseline measures another thing: {found}, {base.direction} is better"
    lost = base.value - number.value if number.direction == "higher" else number.value - base.value
    if lost - budget > _slack(base.value):
        return (
            base.value,
            lost,
            f"{_shown(number.value)} after {_shown(base.value)} loses {_shown(lost)}, more than {_shown(budget)}",
        )
    return base.value, lost, ""


def differences(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Names of what both state and state differently."""
    return sorted(key for key in one.keys() & other.keys() if one[key] != other[key])


def full_name(metric: str, suites: Iterable[str]) -> str:
    """`<suite>/<key>`: the bare form belongs to the only suite. A metric that no suite claims comes back as it is."""
    names = list(suites)
    return f"{names[0]}/{metric}" if len(names) == 1 and "/" not in metric else metric


def find(metric: str, measured: Measured) -> tuple[str, Number | None, str]:
    """(full name as found, its number or None, why there is none)."""
    name = full_name(metric, measured)
    suite, slash, key = name.partition("/")
    if not slash or suite not in measured:
        there = ", ".join(sorted(measured)) or "none"
        return name, None, f"no result of suite {suite}; there are: {there}" if slash else f"names no suite of: {there}"
    numbers = measured[suite].numbers
    if key not in numbers and f"{key},none" in numbers:
        key = f"{key},none"
    if key not in numbers:
        return name, None, _missing(key, numbers)
    number = numbers[key]
    if isinstance(number.value, bool) or not math.isfinite(number.value):
        return f"{suite}/{key}", None, f"its value is {number.value}, no number"
    return f"{suite}/{key}", number, ""


def _missing(key: str, numbers: Mapping[str, Number]) -> str:
    kin = sorted(k for k in numbers if k.partition(",")[0] == key.partition(",")[0])
    if kin:
        return f"there is no such number; name one of {', '.join(kin[:8])}"
    listed = ", ".join(sorted(numbers)[:12])
    return f"there is no such number; there are {listed}" if listed else "there is no number at all"


def _slack(value: float) -> float:
    """What binary fractions of this size may be off by."""
    return TOLERANCE * max(1.0, abs(value))


def _shown(value: float) -> str:
    """Up to 6 significant digits; more where a bound is missed by less."""
    short = f"{value:.6g}"
    return short if abs(float(short) - value) <= TOLERANCE else f"{value:.12g}"
