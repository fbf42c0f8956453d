"""Canonical JSON: one value, one byte string; what has none is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tuneplane.record.canonical import CanonicalError, canonical_bytes, canonical_text, parse_json, pretty_bytes

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), inner, max_size=4)
    ),
    max_leaves=20,
)


@settings(max_examples=150, deadline=None)
@given(values)
def test_reading_gives_the_value_back_and_writing_the_same_bytes(value: Any) -> None:
    data = canonical_bytes(value)
    assert parse_json(data) == value
    assert canonical_bytes(parse_json(data)) == data
    assert parse_json(pretty_bytes(value)) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [True, None, "ü—漢\n"]}, '{"a":[true,null,"ü—漢\\n"],"b":1}'),
        ({"é": 1, "z": 2, "Z": 3}, '{"Z":3,"z":2,"é":1}'),
        ([1.0, 1, 1e30], "[1.0,1,1e+30]"),
        ("\u2028/", '"\u2028/"'),
        ((1, 2), "[1,2]"),
    ],
)
def test_the_form_is_fixed(value: Any, text: str) -> None:
    assert canonical_text(value) == text


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"a": [1, float("nan")]}, "$.a[1]"), (float("inf"), "$"), ({"a": "\ud800"}, "$.a"), ({1: 2}, "$"), ({"a": {1, 2}}, "$.a"),
        (b"x", "$"), ({"\udfff": 1}, "$"),
    ],
)  # fmt: skip
def test_what_has_no_form_is_refused_with_its_place(value: Any, where: str) -> None:
    with pytest.raises(CanonicalError) as caught:
        canonical_bytes(value)
    assert str(caught.value).startswith(f"{where}:")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "nul",
        '{"a":1,"a":2}',
        "NaN",
        "[Infinity]",
        "-Infinity",
        '"\\ud800"',
        "1 2",
        b"\xff",
        b'"\xc3"',
        "[" * 100_000,
        "{'a':1}",
    ],
)
def test_what_is_no_json_is_refused(text: Any) -> None:
    with pytest.raises(CanonicalError):
        parse_json(text)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_a_refusal(data: bytes) -> None:
    try:
        value = parse_json(data)
    except CanonicalError:
        return
    assert parse_json(canonical_bytes(value)) == value


def test_it_agrees_with_the_library_about_what_json_means() -> None:
    value = {"a": [1, 2.5, "x"], "b": {"c": None}}
    assert json.loads(canonical_bytes(value)) == value
