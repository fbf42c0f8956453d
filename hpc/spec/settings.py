"""`--set KEY=VALUE`: one hyperparameter each; the last one of a key wins.

`true yes on` and `false no off` in any case are booleans; then whole numbers (`1_000` and `007`, too), then decimal numbers, else text. There
are no lists and no JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpc.errors import Refusal, Refusals
from hpc.spec.text import control_character, visible

FIELD = "--set"
_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_LONGEST_NUMBER = 40


def parse_settings(entries: Sequence[str]) -> dict[str, Any]:
    """Values by key. Raises Refusals E-SPEC-065 (not KEY=VALUE), E-SPEC-016 (control characters), all entries at once."""
    found: list[Refusal] = []
    out: dict[str, Any] = {}
    for entry in entries:
        key, equals, value = (part.strip(" ") for part in entry.partition("="))
        if refusal := control_character(key, FIELD) or control_character(value, FIELD, prose=True):
            found.append(refusal)
        elif not equals or not key:
            found.append(Refusal("E-SPEC-065", "not a setting", field=FIELD, found=visible(entry), allowed="KEY=VALUE"))
        else:
            out[key] = _value(value)
    if found:
        raise Refusals(found)
    return out


def _value(text: str) -> Any:
    """The value that a word on the command line means. `nan` is a number here; a JobSpec refuses it, naming the field."""
    if (word := text.lower()) in _WORDS:
        return _WORDS[word]
    if not text.isascii() or len(text) > _LONGEST_NUMBER:
        return text
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text
