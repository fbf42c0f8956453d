"""Which of two versions is newer. Pure.

Versions that PEP 440 understands are newer than those that it does not, and are ordered by it; the others are ordered naturally: by runs of
digits as numbers and by text between. So the order is total, whatever owners call their versions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_RUN = re.compile(r"(\d+)")


def natural_key(text: str) -> list[tuple[int, int, str]]:
    """`1.10` after `1.9`, `2a` after `2`."""
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in _RUN.split(text) if part]


def newest_first(versions: Iterable[str]) -> list[str]:
    """The versions, newest first. `packaging` is imported only where there is something to order."""
    listed = list(versions)
    if len(listed) < 2:
        return listed
    from packaging.version import InvalidVersion, Version

    def key(text: str) -> tuple[bool, Any, list[tuple[int, int, str]], str]:
        try:
            parsed: Any = Version(text)
        except InvalidVersion:
            return (False, 0, natural_key(text), text)
        return (True, parsed, natural_key(text), text)

    return sorted(listed, key=key, reverse=True)
