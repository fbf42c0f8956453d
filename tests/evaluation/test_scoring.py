"""Vectors C1 to C5 of the reference, and properties of the scores."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tuneplane.evaluation import scoring
from tuneplane.evaluation.answers import Prediction, join, parse_prediction, read_predictions
from tuneplane.evaluation.examples import inputs_bytes, question_id, read_examples, read_inputs
from tuneplane.evaluation.metrics import Scoring, aggregate, score
from tuneplane.evaluation.scoring import constraints_kept, exact_match, find_object, json_fields, same, token_f1
from tuneplane.training.refusals import Refused

WORDS = st.lists(st.text("abcXYZ019 _-.é", min_size=0, max_size=6), max_size=8).map(" ".join)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-4, 4) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def prediction(ident: str, text: str = "x", **more: object) -> Prediction:
    return parse_prediction({"id": ident, "text": text, "latency_ms": 1, "tokens": 1, "cut": False, **more})


def rows(path: Path, *pairs: tuple[str, str]) -> Path:
    path.write_text("".join(json.dumps({"prompt": p, "completion": c}) + "\n" for p, c in pairs))
    return path


def test_c1_exact_match_trims_collapses_and_lowers() -> None:
    assert exact_match("Yes", " yes \n") == 1.0
    assert exact_match("New  York", "new\tyork") == 1.0
    assert exact_match("Yes", "yes.") == 0.0


def test_c2_token_f1() -> None:
    assert token_f1("the cat sat", "the cat") == pytest.approx(0.8)
    assert token_f1("a a b", "a b b") == pytest.approx(2 / 3)
    assert token_f1("snake_case!", "case, SNAKE") == 1.0
    assert (token_f1("…", "!"), token_f1("…", "word")) == (1.0, 0.0)


def test_c3_json_fields_of_a_fenced_answer() -> None:
    found = json_fields('{"a":1,"b":2}', 'Here:\n```json\n{"b":2,"a":3}\n```\n')
    assert found is not None
    assert (found.score, found.passed, found.valid, found.schema) == (0.5, False, True, True)
    assert found.fields == {"a": False, "b": True}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('  {"a": 1}\n', {"a": 1}),
        ('I say {"a": {"b": 2}} and {"c": 3}.', {"a": {"b": 2}}),
        ("{broken {\"a\": 1}", {"a": 1}),
        ('```\n{"a": 1}\n```', {"a": 1}),
        ("[1, 2]", None),
        ('{"a": NaN}', None),
        ('{"a": 1, "a": 2}', None),
        ("{" * 5000, None),
        ('{"a":' * 3000, None),
        ("", None),
    ],
)  # fmt: skip
def test_an_object_is_found_bare_fenced_and_in_prose(text: str, expected: object) -> None:
    assert find_object(text) == expected


def test_json_fields_compares_kinds_and_falls_back_where_no_json_is_expected() -> None:
    assert json_fields("yes", '{"a": 1}') is None
    assert json_fields('{"a": 1}', "{}", ("b",)) is None
    wrong = json_fields('{"a": 1, "b": [1, 2]}', '{"a": true, "b": [2, 1], "c": 0}')
    assert wrong is not None
    assert (wrong.score, wrong.schema, wrong.valid) == (0.0, False, True)
    none = json_fields('{"a": 1}', "no JSON")
    assert none is not None
    assert (none.score, none.valid, none.schema, none.fields) == (0.0, False, False, {"a": False})
    some = json_fields('{"a": 1, "b": 2}', '{"a": 1.0, "z": 9}', ("a",))
    assert some is not None
    assert (some.score, some.passed, some.schema) == (1.0, True, True)


@given(JSON)
def test_equality_of_json_is_reflexive_and_survives_a_round_trip_with_shuffled_keys(value: object) -> None:
    def turned(v: object) -> object:
        if isinstance(v, dict):
            return {k: turned(v[k]) for k in reversed(v)}
        return [turned(i) for i in v] if isinstance(v, list) else v

    assert same(value, turned(json.loads(json.dumps(value))))


@given(WORDS, WORDS)
def test_scores_lie_between_0_and_1_are_symmetric_and_1_for_equal_texts(one: str, other: str) -> None:
    for metric in (exact_match, token_f1):
        assert 0.0 <= metric(one, other) <= 1.0
        assert metric(one, other) == metric(other, one)
        assert metric(one, f" {one.upper()}\n") == 1.0
    assert exact_match(one, other) <= token_f1(one, other)


def test_constraints_are_checked_where_a_program_can() -> None:
    rules = ("Never mention refunds", "Always include ticket  number.", "Be kind")
    assert constraints_kept(rules, "We offer REFUNDS.") == [False, False, True]
    assert constraints_kept(rules, "Your Ticket\nnumber is 4") == [True, True, True]
    assert scoring.parse_constraint("Never") is None


def test_c4_missing_repeated_and_unknown_ids_make_no_report() -> None:
    answers = [prediction("a"), prediction("b"), prediction("b"), prediction("z")]
    with pytest.raises(Refused) as info:
        join(answers, {"a": "", "b": "", "c": ""})
    assert [(r.code, r.field, r.message) for r in info.value.reasons] == [
        ("E-EVAL-010", "c", "has no prediction"),
        ("E-EVAL-010", "b", "has several predictions"),
        ("E-EVAL-010", "z", "was not asked"),
    ]
    assert list(join(answers[:2], ["b", "a"])) == ["a", "b"]


@pytest.mark.parametrize(
    "wrong",
    [{"latency_ms": -1}, {"latency_ms": 1.5}, {"latency_ms": True}, {"tokens": "2"}, {"text": None}, {"cut": 0}, {"more": 1}],
)  # fmt: skip
def test_c4_a_broken_line_is_named(tmp_path: Path, wrong: dict[str, object]) -> None:
    whole = {"id": "a", "text": "x", "latency_ms": 1, "tokens": 1, "cut": False}
    path = tmp_path / "predictions.jsonl"
    path.write_text(json.dumps(whole) + "\n" + json.dumps(whole | wrong) + "\n")
    with pytest.raises(Refused, match=r"E-EVAL-012 predictions.jsonl:2"):
        read_predictions(path)


def test_a_torn_last_line_is_left_out_only_where_a_process_may_have_died(tmp_path: Path) -> None:
    path = tmp_path / "predictions.jsonl"
    path.write_bytes(prediction("a").line() + prediction("b").line()[:-9])
    assert [p.id for p in read_predictions(path, torn=True)] == ["a"]
    with pytest.raises(Refused, match="E-EVAL-012"):
        read_predictions(path)


def test_c5_the_evaluators_input_holds_no_expected_text(tmp_path: Path) -> None:
    secret = "the-expected-answer"
    lines = [
        {"messages": [{"role": "user", "content": "Q1"}, {"role": "assistant", "content": secret}], "answer": secret},
        {"prompt": "Q2", "completion": secret, "id": secret},
        {"prompt": [{"role": "user", "content": "Q3"}], "completion": [{"role": "assistant", "content": secret}]},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = read_examples(path)
    data = inputs_bytes(found.questions)
    assert secret.encode() not in data
    assert set(found.expected.values()) == {secret}
    (tmp_path / "inputs.jsonl").write_bytes(data)
    assert read_inputs(tmp_path / "inputs.jsonl") == list(found.questions)


def test_an_id_depends_on_the_question_alone(tmp_path: Path) -> None:
    one = read_examples(rows(tmp_path / "a.jsonl", ("Q", "1"), ("R", "2")))
    other = read_examples(rows(tmp_path / "b.jsonl", ("R", "3"), ("Q", "4")))
    assert {q.id for q in one.questions} == {q.id for q in other.questions} == {question_id("Q"), question_id("R")}


def test_a_question_that_stands_twice_is_refused_by_line_or_dropped_on_request(tmp_path: Path) -> None:
    path = rows(tmp_path / "a.jsonl", ("Hi  there", "1"), ("other", "2"), (" hi there", "3"))
    with pytest.raises(Refused) as info:
        read_examples(path)
    assert [(r.code, r.field, r.message) for r in info.value.reasons] == [
        ("E-EVAL-003", "a.jsonl:3", "asks what line 1 asks")
    ]
    kept = read_examples(path, repeats="first")
    assert ([q.line for q in kept.questions], kept.total, kept.repeated, kept.sampled) == ([1, 2], 3, 1, False)


def test_a_cap_takes_a_seeded_sample_in_the_files_order(tmp_path: Path) -> None:
    path = rows(tmp_path / "a.jsonl", *((f"Q{i}", str(i)) for i in range(100)))
    one, again, other = (read_examples(path, max_rows=10, seed=s) for s in (1, 1, 2))
    assert one == again
    assert [q.line for q in one.questions] == sorted(q.line for q in one.questions)
    assert {q.line for q in one.questions} != {q.line for q in other.questions}
    assert (len(one.questions), one.total, one.sampled, len(one.expected)) == (10, 100, True, 10)
    assert not read_examples(path, max_rows=100).sampled


def test_no_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="E-EVAL-002"):
        read_examples(rows(tmp_path / "a.jsonl"))


def test_metrics_of_an_evaluation() -> None:
    chosen = Scoring(("json_fields", "exact_match", "token_f1"))
    expected = {"1": '{"a": 1, "b": 2}', "2": '{"a": 1, "b": 2}', "3": "plain"}
    given_ = {"1": '{"b": 2, "a": 1}', "2": '{"a": 1, "b": 3}', "3": "Plain"}
    found = aggregate([score(prediction(i, given_[i], latency_ms=10), expected[i], chosen) for i in expected], chosen)
    assert {k: (round(v["value"], 6), v["n"], v["direction"]) for k, v in found.items()} == {
        "score": (round(2.5 / 3, 6), 3, "higher"),
        "pass_rate": (round(2 / 3, 6), 3, "higher"),
        "json_fields": (round(2.5 / 3, 6), 3, "higher"),
        "exact_match": (round(1 / 3, 6), 3, "higher"),
        "token_f1": (round((1 + 0.75 + 1) / 3, 6), 3, "higher"),
        "latency_ms": (10.0, 3, "lower"),
        "tokens": (1.0, 3, "lower"),
        "cut_rate": (0.0, 3, "lower"),
        "json_valid": (1.0, 2, "higher"),
        "json_schema": (1.0, 2, "higher"),
        "json_all_fields": (0.5, 2, "higher"),
        "json_field.a": (1.0, 2, "higher"),
        "json_field.b": (0.5, 2, "higher"),
    }
    assert found.pop("latency_ms")["low"] is None
    assert all(v["low"] <= v["value"] <= v["high"] for v in found.values())


def test_constraints_count_as_the_share_that_is_kept() -> None:
    chosen = Scoring(("constraints",), constraints=("Never say no", "Always say please"))
    assert score(prediction("1", "No, please"), "", chosen).values["constraints"] == 0.5
    assert not score(prediction("1", "No, please"), "", chosen).passed
