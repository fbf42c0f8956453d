"""What an evaluation leaves and how its numbers are named: shared by the evaluator in the job and by the rules that judge its reports.

A report's folder holds the four files below. Metrics are named `<key>` inside a report and `<suite>/<key>` outside of it; a key is taken whole, so
that `exact_match,strict-match` and `exact_match,flexible-extract` are two metrics for ever.
"""

from __future__ import annotations

import re
from typing import Final, Literal

REPORT_SCHEMA: Final = "tuneplane-hpc/eval-report/v1"
INPUTS, PREDICTIONS, SCORES, REPORT = "inputs.jsonl", "predictions.jsonl", "scores.jsonl", "eval_report.json"

Direction = Literal["higher", "lower", "neutral"]
"""Which way is better. A neutral metric has no regression."""

TOLERANCE: Final = 1e-12
"""A bound is missed when a number is beyond it by more than this: 0.93 against 0.96 is a drop of 0.03, whatever binary fractions make of it."""

METRIC_KEY: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,:@+-]{0,127}")
"""Keys that a report may carry; a field's name that does not fit is left out of the gates' reach and stays in the report."""
