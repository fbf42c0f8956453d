"""From report files and a config's wishes to a verdict. Pure but for the reports that are handed in."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tuneplane.contract.gates import Number, Suite, Verdict, judge

from hpc.errors import Refusal
from hpc.evaluate.reports import Report
from hpc.evaluate.wanted import Baseline, parse_baseline
from hpc.spec.parts import Evaluation, Gate
from hpc.spec.refs import is_path

MAX_SCORE_DROP: Final = 0.03
MAX_PASS_RATE_DROP: Final = 0.05


def general_gates(
    suite: str, score_drop: float = MAX_SCORE_DROP, pass_rate_drop: float = MAX_PASS_RATE_DROP
) -> tuple[Gate, Gate]:
    """The gates of a general-regression suite: what the candidate may lose there against the baseline."""
    return (
        Gate(metric=f"{suite}/score", max_regression=score_drop),
        Gate(metric=f"{suite}/pass_rate", max_regression=pass_rate_drop),
    )


def measured(reports: Sequence[Report]) -> dict[str, Suite]:
    """Reports as suites by name. Raises Refusal E-EVAL-046 for two of one suite: which one counts would be anybody's guess."""
    out: dict[str, Suite] = {}
    for report in reports:
        if report.suite in out:
            raise Refusal("E-EVAL-046", "two reports are of one suite", field="REPORT", found=report.suite)
        basis = {key: str(report.basis[key]) for key in ("data", "settings") if key in report.basis}
        numbers = {key: Number(metric.value, metric.direction) for key, metric in report.metrics.items()}
        out[report.suite] = Suite(numbers, basis)
    return out


def decide(
    wanted: Evaluation, candidate: Sequence[Report], baseline: Sequence[Report], general: Sequence[Gate] = ()
) -> Verdict:
    """The verdict of the config's gates and of the budgets in `general`. Raises Refusal E-EVAL-020, E-EVAL-044, E-EVAL-046."""
    named = parse_baseline(wanted.baseline)
    for report in baseline:
        check_baseline(named, report, candidate)
    return judge([*wanted.gates, *general], measured(candidate), measured(baseline) if baseline else None)


def check_baseline(named: Baseline, report: Report, candidate: Sequence[Report]) -> None:
    """Whether a report is of the baseline that the config names, as far as its digests and paths tell. Raises Refusal E-EVAL-044."""

    def no(message: str, found: Any, allowed: str) -> Refusal:
        return Refusal("E-EVAL-044", message, field="--baseline", found=found, allowed=allowed)

    if named.kind == "base":
        if report.basis.get("adapter") is not None:
            raise no("is of a model with an adapter, and the config asks for base", report.value.get("adapter"), "base")
        ours = {r.basis.get("model") for r in candidate if r.basis.get("adapter") is not None}
        if ours and ours != {report.basis.get("model")}:
            found, allowed = report.basis.get("model"), ", ".join(map(str, ours))
            raise no("is of another model than the candidate's adapter stands on", found, allowed)
    elif named.kind == "run" and named.value not in Path(os.path.realpath(report.folder)).parts:
        raise no("does not lie in the run that the config names", str(report.folder), named.value)
    elif named.kind == "model" and is_path(named.value):
        model = str(report.value.get("model"))
        if os.path.realpath(os.path.expanduser(named.value)) != os.path.realpath(model):
            raise no("is of another model than the config names", model, named.value)


def parse_budget(text: str) -> tuple[Gate, Gate]:
    """`SUITE` or `SUITE=SCORE_DROP,PASS_RATE_DROP` as the gates of a general-regression suite. Raises Refusal E-EVAL-047."""
    suite, sign, numbers = text.partition("=")
    drops = [MAX_SCORE_DROP, MAX_PASS_RATE_DROP]
    try:
        if sign:
            drops = [float(part) for part in numbers.split(",")]
        if not suite or len(drops) != 2 or not all(0 <= d <= 1 for d in drops):
            raise ValueError
    except ValueError:
        allowed = f"SUITE, or SUITE={MAX_SCORE_DROP},{MAX_PASS_RATE_DROP}: drops from 0 to 1"
        raise Refusal("E-EVAL-047", "not a budget", field="--general", found=text, allowed=allowed) from None
    return general_gates(suite, drops[0], drops[1])
