"""Node features: `h200`, `a&b`, `a|b`, `[rack1|rack2]`, `(a&b)|c`, `a*2`."""

from __future__ import annotations

import re

from hpc.errors import Refusal
from hpc.spec.text import visible

MAX_TEXT = 256
ALLOWED = "feature names joined by '&', '|' or ',', with (…), […] and *COUNT"
_TOKEN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:=-]*|[&|,()\[\]]|\*[1-9][0-9]{0,4}")
_CLOSES = {"(": ")", "[": "]"}


def check_constraint(text: str, field: str = "") -> str:
    """`text` itself. Raises Refusal E-SPEC-047: another alphabet, or an expression that does not close."""
    tokens = _TOKEN.findall(text)
    if len(text) > MAX_TEXT or "".join(tokens) != text or not _is_expression(tokens):
        raise Refusal("E-SPEC-047", "not a constraint", field=field, found=visible(text), allowed=ALLOWED)
    return text


def _is_expression(tokens: list[str]) -> bool:
    """One pass: a term is expected, or an operator, a count or a closing bracket."""
    want_term, counted, expected = True, False, []
    for word in tokens:
        if word in _CLOSES:
            if not want_term:
                return False
            expected.append(_CLOSES[word])
        elif word in "&|,":
            if want_term:
                return False
            want_term = True
        elif word in ")]":
            if want_term or not expected or expected.pop() != word:
                return False
            counted = False
        elif word.startswith("*"):
            if want_term or counted:
                return False
            counted = True
        else:
            if not want_term:
                return False
            want_term, counted = False, False
    return not want_term and not expected
