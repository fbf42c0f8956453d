"""Vector C6 of the reference, and everything that must not pass a gate by accident."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tuneplane.contract.gates import Number, Suite, Verdict, judge

from hpc.errors import Refusal, Refusals
from hpc.evaluate.decide import general_gates
from hpc.evaluate.wanted import Baseline, parse_baseline, parse_evaluation
from hpc.spec.parts import Gate


def suite(basis: Mapping[str, str] | None = None, **numbers: float) -> Suite:
    lower = {"latency_ms"}
    named = {k.replace("__", ","): v for k, v in numbers.items()}
    return Suite({k: Number(v, "lower" if k in lower else "higher") for k, v in named.items()}, basis or {})


def verdict(gate: Mapping[str, Any], now: Suite | None, before: Suite | None = None) -> Verdict:
    return judge(
        [Gate(**gate)],
        {} if now is None else {"s": now, "t": suite(acc=1.0)},
        None if before is None else {"s": before, "t": suite(acc=1.0)},
    )


@pytest.mark.parametrize(
    ("before", "now", "state"),
    [
        (0.96, 0.93, "passed"),  # 0.96 - 0.93 is 0.029999999999999916 in binary
        (0.90, 0.87, "passed"),
        (0.33, 0.30, "passed"),  # 0.030000000000000027
        (0.96, 0.9299, "failed"),
        (0.90, 0.8699, "failed"),
        (0.33, 0.2999, "failed"),
        (0.5, 0.9, "passed"),
    ],
)
def test_c6_a_drop_of_exactly_the_budget_passes_and_a_hair_more_fails(before: float, now: float, state: str) -> None:
    gate = {"metric": "s/score", "max_regression": 0.03}
    assert verdict(gate, suite(score=now), suite(score=before)).state == state


def test_c6_the_numbers_and_the_reason_are_in_the_verdict() -> None:
    found = verdict({"metric": "s/score", "max_regression": 0.03}, suite(score=0.8699), suite(score=0.9))
    assert found.as_json() == {
        "verdict": "failed",
        "reason": "1 of 1 gates failed: s/score: 0.8699 after 0.9 loses 0.0301, more than 0.03",
        "gates": [
            {
                "metric": "s/score",
                "passed": False,
                "reason": "0.8699 after 0.9 loses 0.0301, more than 0.03",
                "value": 0.8699,
                "baseline": 0.9,
                "regression": pytest.approx(0.0301),
                "max_regression": 0.03,
            }
        ],
    }


def test_c6_general_regression_has_two_budgets() -> None:
    gates, before = general_gates("g"), {"g": suite(score=0.80, pass_rate=0.60)}
    assert [(g.metric, g.max_regression) for g in gates] == [("g/score", 0.03), ("g/pass_rate", 0.05)]
    assert judge(gates, {"g": suite(score=0.77, pass_rate=0.55)}, before).state == "passed"
    assert judge(gates, {"g": suite(score=0.77, pass_rate=0.5499)}, before).state == "failed"
    assert judge(gates, {"g": suite(score=0.7699, pass_rate=0.55)}, before).state == "failed"


def test_c6_without_a_suite_nothing_is_evaluated() -> None:
    assert verdict({"metric": "s/score", "min": 0.1}, None).state == "not evaluated"
    assert judge([], {"s": suite(score=1.0)}).state == "not evaluated"
    assert judge([Gate(metric="s/score", min=0)], {"s": suite()}).state == "not evaluated"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, True])
def test_what_is_no_number_fails(value: float) -> None:
    for bound in ({"min": -1e9}, {"max": 1e9}, {"max_regression": 1e9}):
        assert verdict({"metric": "s/score", **bound}, suite(score=value), suite(score=0.5)).state == "failed"
    assert verdict({"metric": "s/score", "max_regression": 1.0}, suite(score=1.0), suite(score=value)).state == "failed"


def test_a_missing_number_suite_or_baseline_fails_and_says_so() -> None:
    gate = {"metric": "s/acc", "min": 0.0}
    assert "no such number; there are score" in verdict(gate, suite(score=1.0)).gates[0].reason
    found = judge([Gate(metric="u/acc", min=0)], {"s": suite(acc=1.0), "t": suite(acc=1.0)})
    assert found.gates[0].reason == "no result of suite u; there are: s, t"
    gate = {"metric": "s/acc", "max_regression": 1.0}
    assert verdict(gate, suite(acc=1.0)).gates[0].reason == "there is no baseline"
    assert verdict(gate, suite(acc=1.0), suite(other=1.0)).state == "failed"
    assert judge([Gate(**gate)], {"s": suite(acc=1.0)}, {"t": suite(acc=1.0)}).state == "failed"


def test_strict_and_flexible_scores_never_collapse() -> None:
    both = suite(exact_match__strict_match=0.2, exact_match__flexible_extract=0.9)
    only = suite(exact_match__flexible_extract=0.9)
    for there in (both, only):
        found = verdict({"metric": "s/exact_match", "min": 0.1}, there)
        assert found.state == "failed"
        assert "name one of exact_match,flexible_extract" in found.gates[0].reason
    assert verdict({"metric": "s/exact_match,strict_match", "min": 0.5}, both).state == "failed"
    assert verdict({"metric": "s/exact_match,flexible_extract", "min": 0.5}, both).state == "passed"
    assert verdict({"metric": "s/exact_match,strict_match", "min": 0.1}, only).state == "failed"


def test_none_is_no_filter() -> None:
    found = verdict({"metric": "s/acc", "min": 0.5}, suite(acc__none=0.6))
    assert (found.state, found.gates[0].metric) == ("passed", "s/acc,none")
    crossed = verdict({"metric": "s/acc", "max_regression": 0.5}, suite(acc__none=0.6), suite(acc=0.6))
    assert crossed.state == "failed"


def test_the_bare_form_belongs_to_the_only_suite() -> None:
    gate = Gate(metric="score", min=0.5)
    assert judge([gate], {"s": suite(score=0.6)}).gates[0].metric == "s/score"
    assert judge([gate], {"s": suite(score=0.6), "t": suite(score=0.6)}).state == "failed"
    assert judge([Gate(metric="t/score", min=0.5)], {"s": suite(score=0.6)}).state == "failed"


def test_a_regression_of_a_metric_where_lower_is_better_is_a_rise() -> None:
    gate = {"metric": "s/latency_ms", "max_regression": 10.0}
    assert verdict(gate, suite(latency_ms=110.0), suite(latency_ms=100.0)).state == "passed"
    assert verdict(gate, suite(latency_ms=111.0), suite(latency_ms=100.0)).state == "failed"
    neutral = Suite({"n": Number(1.0, "neutral")})
    assert "no direction" in judge([Gate(metric="s/n", max_regression=1.0)], {"s": neutral}, {"s": neutral}).reason


def test_numbers_of_other_data_or_settings_are_no_baseline() -> None:
    gate = {"metric": "s/score", "max_regression": 1.0}
    now, before = suite({"data": "a", "settings": "x"}, score=0.5), suite({"data": "b", "settings": "x"}, score=0.5)
    found = verdict(gate, now, before)
    assert (found.state, found.gates[0].reason) == ("failed", "the baseline was measured otherwise: data differ")
    assert verdict(gate, now, suite({"settings": "x"}, score=0.5)).state == "passed"


THOUSANDTHS = st.integers(0, 1000)


@given(THOUSANDTHS, THOUSANDTHS, THOUSANDTHS, THOUSANDTHS, THOUSANDTHS)
def test_a_passing_gate_is_one_whose_bounds_hold(value: int, one: int, other: int, before: int, budget: int) -> None:
    low, high = sorted((one, other))
    gate = Gate(metric="s/m", min=low / 1000, max=high / 1000, max_regression=budget / 1000)
    found = judge([gate], {"s": suite(m=value / 1000)}, {"s": suite(m=before / 1000)})
    assert found.state == ("passed" if low <= value <= high and before - value <= budget else "failed")


def test_a_config_has_the_grammar_of_the_jobspec() -> None:
    found = parse_evaluation({"suites": ["gsm8k"], "limit": 0, "gates": [{"metric": "exact_match", "min": 0.5}]})
    assert (found.suites, found.limit, found.gates[0].metric) == (("gsm8k",), None, "gsm8k/exact_match")
    assert parse_evaluation(None) == parse_evaluation({})
    with pytest.raises(Refusals) as info:
        parse_evaluation(
            {"suites": ["a", "b"], "gates": [{"metric": "acc"}, {"metric": "a/acc", "min": 2, "max": 1}], "gate": 1}
        )
    assert [(r.code, r.field) for r in info.value.items] == [
        ("E-SPEC-012", "spec.evaluation.gate"),
        ("E-SPEC-031", "spec.evaluation.gates[0]"),
        ("E-SPEC-032", "spec.evaluation.gates[0].metric"),
        ("E-SPEC-031", "spec.evaluation.gates[1]"),
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", Baseline("none")),
        ("base", Baseline("base")),
        ("run/run-0001", Baseline("run", "run-0001")),
        ("run-0001", Baseline("run", "run-0001")),
        ("run/run-0001/final", Baseline("run", "run-0001")),
        ("hf:org/name@main", Baseline("model", "hf:org/name@main")),
        ("org/name", Baseline("model", "org/name")),
        ("/models/base", Baseline("model", "/models/base")),
    ],
)
def test_a_baseline_is_base_a_run_or_a_model(text: str, found: Baseline) -> None:
    assert parse_baseline(text) == found


@pytest.mark.parametrize("text", ["bas", "a/b/c", "run/", "run/a b", "x:y"])
def test_other_baselines_are_refused(text: str) -> None:
    with pytest.raises(Refusal, match="E-EVAL-020"):
        parse_baseline(text)
