"""Node features."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc.errors import Refusal
from hpc.spec.constraints import check_constraint


@pytest.mark.parametrize(
    "text",
    ["h200", "a&b", "a|b", "a,b", "[rack1|rack2]", "(a&b)|c", "a*2", "[a*2&b*4]", "gpu:h200", "mem=1tb", "((a))"],
)
def test_forms(text: str) -> None:
    assert check_constraint(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a b",
        "a&",
        "&a",
        "a&&b",
        "(a",
        "a)",
        "[a|b)",
        "()",
        "a*",
        "a*0",
        "a*2*2",
        "*2",
        "a;b",
        "a$b",
        "a\n",
        "a(b)",
        "'a'",
        '"a"',
        "a#b",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(Refusal) as caught:
        check_constraint(text)
    assert caught.value.code == "E-SPEC-047"


EXPRESSIONS = st.recursive(
    st.sampled_from(["a", "h200", "rack_1", "b*3"]),
    lambda inner: (
        st.tuples(inner, st.sampled_from("&|,"), inner).map("".join)
        | inner.map(lambda text: f"({text})")
        | inner.map(lambda text: f"[{text}]")
    ),
    max_leaves=6,
)


@settings(max_examples=100, deadline=None)
@given(EXPRESSIONS)
def test_built_expressions_are_accepted(text: str) -> None:
    assert check_constraint(text) == text


@settings(max_examples=100, deadline=None)
@given(EXPRESSIONS, st.sampled_from("()[]"))
def test_one_bracket_too_many_is_refused(text: str, bracket: str) -> None:
    with pytest.raises(Refusal):
        check_constraint(text + bracket)
