"""What an evaluation leaves and how its numbers are named: shared by the evaluator in the job and by the rules that judge its reports.

A report's folder holds the four files below. Metrics are named `<key>` inside a report and `<suite>/<key>` outside of it; a key is taken whole, so
that `exact_match,strict-match` and `exact_match,flexible-extract` are two metrics for ever.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal

REPORT_SCHEMA: Final = "tuneplane-hpc/eval-report/v1"
INPUTS, PREDICTIONS, SCORES, REPORT = "inputs.jsonl", "predictions.jsonl", "scores.jsonl", "eval_report.json"

Direction = Literal["higher", "lower", "neutral"]
"""Which way is better. A neutral metric has no regression."""

TOLERANCE: Final = 1e-12
"""A bound is missed when a number is beyond it by more than this: 0.93 against 0.96 is a drop of 0.03, whatever binary fractions make of it."""

METRIC_KEY: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,:@+-]{0,127}")
"""Keys that a report may carry; a field's name that does not fit is left out of the gates' reach and stays in the report."""

BEHAVIOUR: Final = "behaviour"
"""The suite that is no benchmark: a run's own validation rows."""
METRICS: Final = ("exact_match", "token_f1", "json_fields", "constraints")
"""What a behaviour evaluation can score by."""
LOWER: Final = frozenset({"latency_ms", "tokens", "cut_rate"})
"""Numbers of the way an answer was made, which every behaviour evaluation gives: the lower, the better."""


def behaviour_numbers(metrics: Iterable[str]) -> dict[str, Direction]:
    """Every number that a behaviour evaluation by these metrics gives, and which way is better; `json_field.` stands for all that begin so."""
    scored = ["score", "pass_rate", *metrics]
    if "json_fields" in scored:
        scored += ["json_valid", "json_schema", "json_all_fields", "json_field."]
    return {**dict.fromkeys(scored, "higher"), **dict.fromkeys(sorted(LOWER), "lower")}
