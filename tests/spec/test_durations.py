"""Time limits: Slurm's six forms, nothing else, and back again."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc.errors import Refusal
from hpc.spec.durations import MAX_SECONDS, format_time, parse_time


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800),
        ("90:00", 5400),
        ("0:30", 30),
        ("12:00:00", 43_200),
        ("100:00:00", 360_000),
        ("1-0", 86_400),
        ("7-00:00:00", 604_800),
        ("2-12", 216_000),
        ("1-01:30", 91_800),
        ("0", 0),
        ("UNLIMITED", None),
        ("infinite", None),
    ],
)
def test_every_slurm_form(text: str, seconds: int | None) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "12h", "1:90:00", "1-24", "1:60", "1-", "-1", "1:2:3:4", " 30", "30\n", "1.5", "٣", "99999-00:00:00", "1-2-3"],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(Refusal) as caught:
        parse_time(text, "spec.slurm.time")
    assert (caught.value.code, caught.value.field) == ("E-SPEC-040", "spec.slurm.time")


@settings(max_examples=200, deadline=None)
@given(st.integers(0, MAX_SECONDS))
def test_what_is_written_reads_back(seconds: int) -> None:
    assert parse_time(format_time(seconds)) == seconds


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="0123456789:-", max_size=12))
def test_a_reading_survives_its_canonical_form(text: str) -> None:
    try:
        seconds = parse_time(text)
    except Refusal:
        return
    assert parse_time(format_time(seconds)) == seconds
