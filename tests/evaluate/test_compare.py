"""Two reports paired by question: counts, differences with intervals, bounded output, and what is not compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from answered import answered
from hypothesis import given, settings
from hypothesis import strategies as st
from tuneplane.contract.intervals import mean_interval
from tuneplane.evaluation.metrics import Scoring

from hpc.errors import Refusal
from hpc.evaluate.compare import MAX_TEXT, Comparison, compare
from hpc.evaluate.reports import changed_files, read_report, read_scores


def comparison(before: Path, after: Path, **more: object) -> Comparison:
    return compare(read_report(before), read_report(after), **more)  # type: ignore[arg-type]


def test_what_was_fixed_and_broken_is_counted_and_shown(tmp_path: Path) -> None:
    before = answered(
        tmp_path / "a", {"q1": ("x", "x"), "q2": ("x", "no"), "q3": ("x", "no"), "q4": ("x", "x"), "q9": ("x", "x")}
    )
    after = answered(
        tmp_path / "b",
        {"q4": ("x", "x"), "q3": ("x", "nor"), "q2": ("x", " X "), "q1": ("x", "x y"), "q8": ("x", "x")},
        basis={"model": "n"},
    )
    found = comparison(before, after)
    assert (found.shared, found.only_before, found.only_after, found.by) == (4, 1, 1, "exact_match")
    assert (found.fixed, found.broken, found.passed_both, found.failed_both) == (1, 1, 1, 1)
    assert [(e.change, e.line, e.question, e.before, e.after) for e in found.examples] == [
        ("broken", 1, "q1", "x", "x y"),
        ("fixed", 2, "q2", "no", " X "),
    ]
    f1 = found.metrics["token_f1"]
    assert (f1.before, f1.after, f1.n) == (0.5, pytest.approx((2 / 3 + 1 + 0 + 1) / 4), 4)
    assert f1.difference == pytest.approx(f1.after - f1.before)
    assert list(found.metrics) == ["pass_rate", "score", "exact_match", "token_f1", "cut_rate", "latency_ms", "tokens"]
    assert found.metrics["latency_ms"].low is None
    assert found.notes == ()


def test_the_interval_is_that_of_the_paired_differences(tmp_path: Path) -> None:
    right = {f"q{i}": ("x", "x" if i % 3 else "no") for i in range(400)}
    better = {f"q{i}": ("x", "x" if i % 3 or i % 2 else "no") for i in range(400)}
    found = comparison(answered(tmp_path / "a", right), answered(tmp_path / "b", better)).metrics["exact_match"]
    pairs = mean_interval([float(i % 3 == 0 and i % 2 == 1) for i in range(400)])
    assert pairs is not None
    assert (found.low, found.high, found.verdict) == (pairs.low, pairs.high, "better")
    back = comparison(tmp_path / "b", tmp_path / "a").metrics["exact_match"]
    assert (back.verdict, back.difference) == ("worse", -found.difference)
    assert comparison(tmp_path / "a", tmp_path / "a").metrics["exact_match"].verdict == "equal"


def test_few_examples_and_one_change_are_no_proof(tmp_path: Path) -> None:
    few = comparison(answered(tmp_path / "c", {"q": ("x", "no")}), answered(tmp_path / "d", {"q": ("x", "x")}))
    assert few.metrics["exact_match"].verdict == "unclear"
    one = {f"q{i}": ("x", "x") for i in range(50)}
    found = comparison(answered(tmp_path / "a", one), answered(tmp_path / "b", one | {"q0": ("x", "no")}))
    assert found.metrics["exact_match"].verdict == "unclear"


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_counts_are_those_of_the_pairs(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[bool, bool]]
) -> None:
    root = tmp_path_factory.mktemp("p")
    texts = {True: "x", False: "no"}
    before = answered(root / "a", {f"q{i}": ("x", texts[a]) for i, (a, _) in enumerate(pairs)})
    after = answered(root / "b", {f"q{i}": ("x", texts[b]) for i, (_, b) in enumerate(pairs)})
    found = comparison(before, after, examples=3)
    assert (found.fixed, found.broken) == (pairs.count((False, True)), pairs.count((True, False)))
    assert found.fixed + found.broken + found.passed_both + found.failed_both == len(pairs)
    assert len(found.examples) == min(3, found.fixed) + min(3, found.broken)
    assert found.metrics["score"].difference == pytest.approx((found.fixed - found.broken) / len(pairs))


def test_texts_are_cut_and_a_missing_file_costs_only_the_texts(tmp_path: Path) -> None:
    before = answered(tmp_path / "a", {"q" * 5000: ("x", "no")})
    after = answered(tmp_path / "b", {"q" * 5000: ("x", "x")})
    assert len(comparison(before, after).examples[0].question or "") == MAX_TEXT + 1
    (before / "inputs.jsonl").unlink()
    (after / "predictions.jsonl").write_bytes(b"{}\n")
    example = comparison(before, after).examples[0]
    assert (example.line, example.question, example.before, example.after) == (None, None, "no", None)


def test_what_else_differs_is_noted(tmp_path: Path) -> None:
    before = answered(tmp_path / "a", {"q": ("x", "x")})
    after = answered(tmp_path / "b", {"q": ("x", "x")}, suite="other", basis={"data": "e", "versions": {"torch": "3"}})
    assert comparison(before, after).notes == (
        "the reports are of two suites: behaviour and other",
        "the rows differ: d and e",
        "the releases differ: torch 2 and 3",
        "both reports are of the same model",
    )


def test_reports_that_decide_by_two_metrics_need_one_by_name(tmp_path: Path) -> None:
    before = answered(tmp_path / "a", {"q": ("x y", "x")})
    after = answered(tmp_path / "b", {"q": ("x y", "X y")}, Scoring(("token_f1", "exact_match")))
    with pytest.raises(Refusal, match="E-EVAL-042"):
        comparison(before, after)
    found = comparison(before, after, by="exact_match")
    assert (found.fixed, "score" in found.metrics, "exact_match" in found.metrics) == (1, False, True)
    with pytest.raises(Refusal, match="E-EVAL-042"):
        comparison(before, after, by="bleu")


def test_reports_without_a_common_question_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="E-EVAL-043"):
        comparison(answered(tmp_path / "a", {"q": ("x", "x")}), answered(tmp_path / "b", {"r": ("x", "x")}))


def test_scores_that_were_changed_are_refused_and_named(tmp_path: Path) -> None:
    folder = answered(tmp_path / "a", {"q": ("x", "no"), "r": ("x", "x")})
    path = folder / "scores.jsonl"
    good = path.read_bytes()
    path.write_bytes(good.replace(b"0.0", b"1.0", 1))
    with pytest.raises(Refusal, match="E-EVAL-045"):
        read_scores(read_report(folder))
    assert [(r.code, r.field) for r in changed_files(read_report(folder))] == [("E-EVAL-045", "scores.jsonl")]
    (folder / "predictions.jsonl").unlink()
    assert [r.code for r in changed_files(read_report(folder))] == ["E-EVAL-040", "E-EVAL-045"]


@pytest.mark.parametrize(
    "line",
    ["{", "[]", '{"id": "a"}', '{"id":"a","passed":1,"values":{},"parts":{}}', '{"id":"a","passed":true,"values":{"x":NaN},"parts":{}}'],
)  # fmt: skip
def test_a_line_that_is_no_score_is_named(tmp_path: Path, line: str) -> None:
    from tuneplane.record.digest import digest_bytes

    folder = answered(tmp_path / "a", {"q": ("x", "x")})
    (folder / "scores.jsonl").write_text(line + "\n")
    value = json.loads((folder / "eval_report.json").read_text())
    value["files"]["scores.jsonl"] = digest_bytes((line + "\n").encode())
    (folder / "eval_report.json").write_text(json.dumps(value))
    with pytest.raises(Refusal, match=r"E-EVAL-041 scores.jsonl: line 1"):
        read_scores(read_report(folder))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"schema": "other/v1"}, "schema"),
        ({"suite": 1}, "suite"),
        ({"metrics": []}, "metrics"),
        ({"metrics": {"a/b": {}}}, "metrics.a/b"),
        ({"metrics": {"a": {"value": "1"}}}, "metrics.a"),
        ({"metrics": {"a": {"value": True, "n": 1, "direction": "higher"}}}, "metrics.a"),
        ({"metrics": {"a": {"value": 1.0, "n": 1, "direction": "up"}}}, "metrics.a"),
        ({"metrics": {"a": {"value": None, "n": 1, "direction": "higher"}}}, "metrics.a"),
    ],
)
def test_what_is_no_report_is_refused_by_field(tmp_path: Path, change: dict[str, object], field: str) -> None:
    folder = answered(tmp_path / "a", {"q": ("x", "x")})
    value = json.loads((folder / "eval_report.json").read_text()) | change
    (folder / "eval_report.json").write_text(json.dumps(value))
    with pytest.raises(Refusal) as info:
        read_report(folder)
    assert (info.value.code, info.value.field) == ("E-EVAL-041", field)


def test_a_report_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent", tmp_path / "absent/eval_report.json"):
        with pytest.raises(Refusal, match="E-EVAL-040"):
            read_report(path)
