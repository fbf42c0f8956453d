"""When a job may start."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc.errors import Refusal
from hpc.spec.begins import check_begin


@pytest.mark.parametrize(
    "text",
    [
        "now",
        "now+60",
        "now+1hour",
        "now+2hours",
        "now+3days",
        "tomorrow",
        "noon",
        "16:00",
        "16:00:30",
        "2026-02-28",
        "2026-02-28T08:00",
    ],
)
def test_forms(text: str) -> None:
    assert check_begin(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now +1",
        "now-1hour",
        "now+1fortnight",
        "24:00",
        "16:60",
        "2026-02-30",
        "2026-13-01",
        "2026-1-1",
        "later",
        "16:00\n",
        "now+",
        "01/02/26",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(Refusal) as caught:
        check_begin(text)
    assert caught.value.code == "E-SPEC-045"


@settings(max_examples=50, deadline=None)
@given(st.datetimes(datetime(2000, 1, 1), datetime(2199, 1, 1)))
def test_every_real_minute_is_accepted(moment: datetime) -> None:
    text = moment.strftime("%Y-%m-%dT%H:%M")
    assert check_begin(text) == text
