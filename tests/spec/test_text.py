"""Control characters and the alphabets of names."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc.errors import Refusal
from hpc.spec import text

CONTROLS = [chr(c) for c in [*range(0x20), 0x7F, 0x80, 0x85, 0x9F, 0x2028, 0x2029, 0xD800]]


@pytest.mark.parametrize("control", CONTROLS, ids=lambda c: f"U+{ord(c):04X}")
def test_p01_every_control_character_is_refused_and_named(control: str) -> None:
    with pytest.raises(Refusal) as caught:
        text.check_plain(f"ab{control}c", "spec.slurm.comment")
    refusal = caught.value
    assert (refusal.code, refusal.field) == ("E-SPEC-016", "spec.slurm.comment")
    assert refusal.message == f"control character U+{ord(control):04X} at position 2"
    assert control not in refusal.found


def test_plain_text_passes_unchanged() -> None:
    assert text.check_plain("Straße, 東京 – 7 % 'x'") == "Straße, 東京 – 7 % 'x'"


def test_prose_may_have_line_ends_and_tabs_only() -> None:
    assert text.control_character("a\n\tb", prose=True) is None
    assert text.control_character("a\rb", prose=True) is not None
    assert text.control_character("a\nb") is not None


def test_what_is_shown_is_cut_and_escaped() -> None:
    assert text.visible("a\x1b[31mb") == "a\\x1b[31mb"
    assert text.visible("x" * 100, 10) == "x" * 10 + "…"


@pytest.mark.parametrize("name", ["a", "my-grpo", "A.b_c-1", "0", "x" * 128])
def test_segments(name: str) -> None:
    assert text.segment(name) == name


@pytest.mark.parametrize("name", [".", "..", ".a", "-a", "_a", "a b", "a/b", "a\n", "ä", "x" * 129])
def test_what_is_no_segment(name: str) -> None:
    with pytest.raises(Refusal) as caught:
        text.segment(name, "metadata.name")
    assert (caught.value.code, caught.value.field) == ("E-SPEC-017", "metadata.name")


@pytest.mark.parametrize(
    ("name", "fine"), [(".hidden-_", True), ("a", True), (".", False), ("..", False), ("a/b", False), ("a\n", False)]
)
def test_project_names(name: str, fine: bool) -> None:
    try:
        assert text.project_name(name) == name
    except Refusal:
        assert not fine
    else:
        assert fine


@pytest.mark.parametrize(
    ("path", "kept"),
    [("experiments/x", "experiments/x"), ("experiments/x/", "experiments/x"), ("x", "x"), ("a/b/c", "a/b/c")],
)
def test_experiment_paths(path: str, kept: str) -> None:
    assert text.experiment_path(path) == kept


@pytest.mark.parametrize(
    "path", ["", " ", "/abs", "a//b", "a/../b", "./a", "../a", "a/b//", "a/.b", "a/b\n", "a\\b", "~/a"]
)
def test_what_is_no_experiment_path(path: str) -> None:
    with pytest.raises(Refusal):
        text.experiment_path(path)


def test_the_variable_of_a_leaf() -> None:
    assert text.leaf_variable("gsm8k-zh.v2") == "GSM8K_ZH_V2"


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=20))
def test_a_text_is_plain_exactly_when_it_is_one_printable_line(value: str) -> None:
    has_control = any(
        ord(c) < 32 or 127 <= ord(c) < 160 or c in "\u2028\u2029" or "\ud800" <= c <= "\udfff" for c in value
    )
    assert (text.control_character(value) is not None) == has_control
    assert text.control_character(text.visible(value)) is None
