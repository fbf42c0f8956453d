"""Ahead: the answer, or what went wrong, comes where it is collected."""

from __future__ import annotations

import threading

import pytest

from hpc.errors import Refusal
from hpc.submit.ahead import Ahead


def test_it_is_asked_at_once_and_answered_when_collected() -> None:
    asked, go = threading.Event(), threading.Event()

    def ask() -> int:
        asked.set()
        go.wait(10)
        return 7

    ahead = Ahead(ask)
    assert asked.wait(10)
    go.set()
    assert (ahead.answer(), ahead.answer()) == (7, 7)


def test_what_went_wrong_is_raised_where_it_is_collected() -> None:
    def ask() -> int:
        raise Refusal("E-SLURM-001", "not there")

    ahead = Ahead(ask)
    with pytest.raises(Refusal) as no:
        ahead.answer()
    assert no.value.code == "E-SLURM-001"
