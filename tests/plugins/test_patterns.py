"""Patterns of a playbook: the cheap part of regular expressions is taken, everything whose cost can grow is refused."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc.plugins.patterns import MAX_LENGTH, UnsafeError, compile_safe


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("NCCL", "x NCCL WARN"),
        (r"NCCL (WARN|ERROR).*timeout", "NCCL ERROR: a timeout"),
        (r"^\[rank\d+\]: .*Error", "[rank12]: ValueError"),
        (r"Xid \([^)]+\): (?:48|79)\b", "Xid (PCI:0000:3b:00): 79, x"),
        (r"quota exceeded$", "disk quota exceeded"),
        (r"a{3}", "aaa"),
        (r"x[a-z_]{2,8}y", "xabcy"),
        (r"colou?r", "color"),
        (r"[^\s]+@[\w.-]+", "a@b"),
        (r"[]x]\.", "]."),
        (r"é+", "éé"),
        (r"(a(b(c(d))))", "abcd"),
    ],
)
def test_what_is_taken_matches_as_written(text: str, line: str) -> None:
    assert compile_safe(text).search(line)
    assert not compile_safe(text).search("another line")


def test_case_can_be_ignored() -> None:
    assert compile_safe("oom", ignore_case=True).search("OOM")
    assert not compile_safe("oom").search("OOM")


@pytest.mark.parametrize(
    "text",
    [
        "(a+)+$", "(a|a)*", "(a*)*b", "(?:x+x+)+y", ".*.*.*", "a*b*c*", r"\w{0,50}\w{0,50}\w{0,50}x", "a?" * 7 + "a" * 7,
        "(a|b)" * 7,
        "(a|b|c|d)(a|b|c|d)(a|b|c|d)(a|b|c|d)", r"(a)\1", "(?=a)b", "(?<=a)b", "(?i)a", "(?P<n>a)", "(?#x)a", "(?>a)", "a*+", "a++", "a**",
        "a{1,2}{3}",
        "a{1,200}", "^*", r"\b+",
        "*a", "+", "?", "{3}", "(", ")", "a)", "[a", "[[a]]", r"\p{L}", r"\A", r"\Z", r"\x41", r"\u0041", r"\n", "\\", r"\k",
        "((((( a )))))", "x" * (MAX_LENGTH + 1), "", "a*", "(|a)", "^", "$", "[a-", "[z-a]",
    ],
    ids=repr,
)  # fmt: skip
def test_what_can_cost_much_or_says_nothing_is_refused(text: str) -> None:
    with pytest.raises(UnsafeError):
        compile_safe(text)


@given(st.text(alphabet="ab.*+?{}()[]|^$\\dw1,2-", max_size=20))
def test_whatever_is_taken_is_a_regular_expression_with_few_open_repetitions(text: str) -> None:
    try:
        pattern = compile_safe(text)
    except UnsafeError:
        return
    assert pattern.pattern == text
    assert re.search(r"\)[*+?{]", re.sub(r"\\.|\[[^\]]*\]", "x", text)) is None
