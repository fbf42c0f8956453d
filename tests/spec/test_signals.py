"""The warning signal."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc.errors import Refusal
from hpc.spec.signals import NAMES, Signal, format_signal, parse_signal


@pytest.mark.parametrize(
    ("text", "signal"),
    [
        ("USR2@300", Signal("USR2", 300)),
        ("SIGUSR2@300", Signal("USR2", 300)),
        ("USR1", Signal("USR1", 60)),
        ("B:TERM@120", Signal("TERM", 120, batch=True)),
        ("R:USR1@5", Signal("USR1", 5, reservation=True)),
        ("RB:10@65535", Signal("10", 65_535, batch=True, reservation=True)),
    ],
)
def test_forms(text: str, signal: Signal) -> None:
    assert parse_signal(text) == signal
    assert parse_signal(format_signal(signal)) == signal


@pytest.mark.parametrize(
    "text", ["", "usr2", "USR9", "99", "0", "USR2@", "USR2@65536", "X:USR2", "USR2 @3", "KILL@5\n", "B:"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(Refusal) as caught:
        parse_signal(text)
    assert caught.value.code == "E-SPEC-044"


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(NAMES), st.integers(0, 65_535), st.booleans(), st.booleans())
def test_what_is_written_reads_back(name: str, lead: int, batch: bool, reservation: bool) -> None:
    signal = Signal(name, lead, batch, reservation)
    assert parse_signal(format_signal(signal)) == signal
