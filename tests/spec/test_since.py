"""From when on."""

from __future__ import annotations

from datetime import datetime

import pytest

from hpc.errors import Refusal
from hpc.spec.since import parse_since

NOW = datetime(2026, 3, 8, 12).timestamp()


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-03-01", datetime(2026, 3, 1)),
        ("2026-03-01T08:30", datetime(2026, 3, 1, 8, 30)),
        ("2026-03-01T08:30:15", datetime(2026, 3, 1, 8, 30, 15)),
        ("now-7days", datetime(2026, 3, 1, 12)),
        ("now-1day", datetime(2026, 3, 7, 12)),
        ("now-90minutes", datetime(2026, 3, 8, 10, 30)),
        ("now-1week", datetime(2026, 3, 1, 12)),
    ],
)
def test_a_date_or_a_time_ago(text: str, moment: datetime) -> None:
    assert parse_since(text, NOW) == moment.timestamp()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        "7d",
        "now",
        "now+7days",
        "now-7",
        "2026-02-30",
        "2026-3-1",
        "2026-03-01 08:00",
        "0000-01-01",
        "yesterday",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(Refusal) as refused:
        parse_since(text, NOW, "--since")
    assert (refused.value.code, refused.value.field) == ("E-SPEC-049", "--since")
