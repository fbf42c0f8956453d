"""Strict YAML: what a value becomes, and which surprises are refused with their line."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc.errors import Refusal
from hpc.spec.yamltext import MAX_BYTES, MAX_DEPTH, MAX_VALUES, parse_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("12:30:00", "12:30:00"),
        ("0123", "0123"),
        ("0x1F", "0x1F"),
        ("0o17", "0o17"),
        ("1_000", "1_000"),
        ("2026-01-01", "2026-01-01"),
        ("1e3", 1000.0),
        ("1e-5", 1e-05),
        ("1E+2", 100.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("-3", -3),
        ("+3", 3),
        ("0", 0),
        ("00.5", "00.5"),
        ("True", True),
        ("false", False),
        ("~", None),
        ("null", None),
        ("'null'", "null"),
        ('"1"', "1"),
        ("=", "="),
        ("1.2.3", "1.2.3"),
        ("9223372036854775807", 9223372036854775807),
        ("-9223372036854775808", -9223372036854775808),
    ],
)
def test_a_plain_scalar_means_what_json_could_say(text: str, value: object) -> None:
    parsed = parse_yaml(f"a: {text}\n")["a"]
    assert parsed == value
    assert type(parsed) is type(value)


def test_an_empty_document_is_none() -> None:
    assert parse_yaml("") is None
    assert parse_yaml("# only a comment\n") is None
    assert parse_yaml("a:\n") == {"a": None}


def test_blocks_and_flows() -> None:
    text = "\ufeffa:\n  - {b: [1, two]}\n  - |\n    line\n    0123\n"
    assert parse_yaml(text) == {"a": [{"b": [1, "two"]}, "line\n0123\n"]}


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        ("a: 1\nb: 2\na: 3\n", "E-SPEC-003", 3),
        ("a: &x 1\n", "E-SPEC-002", 1),
        ("b: 1\na: *x\n", "E-SPEC-002", 2),
        ("<<: {a: 1}\n", "E-SPEC-002", 1),
        ("a: !!python/object:os.system 1\n", "E-SPEC-002", 1),
        ("a: !!str 1\n", "E-SPEC-002", 1),
        ("\n1: x\n", "E-SPEC-002", 2),
        ("true: x\n", "E-SPEC-002", 1),
        ("null: x\n", "E-SPEC-002", 1),
        ("? [a]\n: 1\n", "E-SPEC-002", 1),
        ("a: .nan\n", "E-SPEC-002", 1),
        ("a: -.inf\n", "E-SPEC-002", 1),
        ("a: 1e999\n", "E-SPEC-002", 1),
        ("a: 9223372036854775808\n", "E-SPEC-002", 1),
        ("a: 1\n---\nb: 1\n", "E-SPEC-002", 2),
        ("a: [1\n", "E-SPEC-001", 2),
        ("a: b: c\n", "E-SPEC-001", 1),
        ('a: "\\ud800"\n', "E-SPEC-001", 1),
        ("a: " + "[" * (MAX_DEPTH + 1), "E-SPEC-004", 1),
    ],
)
def test_a_surprise_is_refused_with_its_line(text: str, code: str, line: int) -> None:
    with pytest.raises(Refusal) as caught:
        parse_yaml(text, origin="f.yaml")
    assert (caught.value.code, caught.value.field) == (code, f"f.yaml:{line}")


def test_size_and_count_are_capped() -> None:
    with pytest.raises(Refusal) as caught:
        parse_yaml("a: " + "x" * MAX_BYTES)
    assert caught.value.code == "E-SPEC-004"
    with pytest.raises(Refusal) as caught:
        parse_yaml("[" + "1," * MAX_VALUES + "1]")
    assert caught.value.code == "E-SPEC-004"


def test_aliases_cannot_blow_up() -> None:
    bomb = "a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\n"
    with pytest.raises(Refusal) as caught:
        parse_yaml(bomb)
    assert caught.value.code == "E-SPEC-002"


TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(JSON)
def test_ascii_json_reads_the_same_as_yaml(value: object) -> None:
    text = json.dumps({"v": value}, ensure_ascii=True)
    if "\\ud8" in text.lower() or "\\ud9" in text.lower() or "\\uda" in text.lower() or "\\udb" in text.lower():
        with pytest.raises(Refusal):  # JSON writes characters beyond the BMP as two escapes; YAML does not join them
            parse_yaml(text)
    else:
        assert parse_yaml(text) == {"v": value}


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=40))
def test_any_text_is_a_value_or_a_refusal(text: str) -> None:
    try:
        value = parse_yaml(text)
    except Refusal as refusal:
        code = refusal.code
    else:
        code = ""
        assert json.loads(json.dumps(value, allow_nan=False)) == value
    assert code in {"", "E-SPEC-001", "E-SPEC-002", "E-SPEC-003", "E-SPEC-004"}
