"""How one answer is scored against what was expected. Pure; standard library only.

Exact match and the answers' identity: outer white space off, inner runs of it one blank, lower case. Nothing else is changed: punctuation counts.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuneplane.record.canonical import CanonicalError

_TOKEN = re.compile(r"[^\W_]+")
_FENCE = re.compile(r"```[A-Za-z0-9_-]*[ \t]*\r?\n(.*?)```", re.DOTALL)
_RULE = re.compile(r"\s*(never|always)\s+\w+\s+(.+?)[\s.!]*", re.IGNORECASE | re.DOTALL)
_TRIES = 1000
"""Opening braces that are tried for an object inside of prose."""


def normalised(text: str) -> str:
    """What two texts are compared by."""
    return " ".join(text.split()).lower()


def exact_match(expected: str, actual: str) -> float:
    """1.0 where the normalised texts are equal, else 0.0."""
    return float(normalised(expected) == normalised(actual))


def token_f1(expected: str, actual: str) -> float:
    """F1 over the multisets of runs of letters and digits, in lower case; 1.0 for two texts without any, 0.0 if only one has none.

    Scripts without blanks between words have one token a phrase: there it says little more than exact match.
    """
    wanted, given = Counter(_TOKEN.findall(expected.lower())), Counter(_TOKEN.findall(actual.lower()))
    if not wanted or not given:
        return float(not wanted and not given)
    return 2 * (wanted & given).total() / (wanted.total() + given.total())


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(out := dict(pairs)) != len(pairs):
        raise CanonicalError("a key stands twice")
    return out


def _no_constant(name: str) -> Any:
    raise CanonicalError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_constant)


def find_object(text: str) -> dict[str, Any] | None:
    """The JSON object that a text is, holds in a fence, or holds somewhere; the first in this order. None where there is none.

    Strict JSON: a key that stands twice, NaN and the like make no object.
    """
    whole = text.strip()
    for candidate in (whole, *(m.strip() for m in _FENCE.findall(text))):
        found = _object_at(candidate, 0)
        if found is not None and found[1] == len(candidate):
            return found[0]
    for start in _braces(text):
        if found := _object_at(text, start):
            return found[0]
    return None


def _braces(text: str) -> Iterator[int]:
    at = -1
    for _ in range(_TRIES):
        at = text.find("{", at + 1)
        if at < 0:
            return
        yield at


def _object_at(text: str, start: int) -> tuple[dict[str, Any], int] | None:
    try:
        value, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    return (value, end) if isinstance(value, dict) else None


def same(one: Any, other: Any) -> bool:
    """Deep equality of JSON values: the order of keys is free, the order of lists is not, `true` is not 1, and 1.0 is 1."""
    if _kind(one) != _kind(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def _kind(value: Any) -> str:
    """`number` for ints and floats, else the type's name; a bool is none."""
    return "number" if type(value) in (int, float) else type(value).__name__


@dataclass(frozen=True)
class JsonScore:
    """`score` = matched fields / fields; `passed` only if all match; `schema` that the keys and the kinds of their values are the expected ones."""

    score: float
    passed: bool
    valid: bool
    schema: bool
    fields: Mapping[str, bool]


def json_fields(expected: str, actual: str, fields: Sequence[str] = ()) -> JsonScore | None:
    """The answer's object against the expected one, over `fields` (default: all of the expected object's).

    None where the expectation is no JSON object or has none of the fields: then exact match stands in.
    """
    wanted = find_object(expected)
    if wanted is None:
        return None
    names = [name for name in fields if name in wanted] if fields else list(wanted)
    if not names:
        return None
    given = find_object(actual)
    if given is None:
        return JsonScore(0.0, False, False, False, dict.fromkeys(names, False))
    matched = {name: name in given and same(wanted[name], given[name]) for name in names}
    keys = set(names) <= given.keys() if fields else wanted.keys() == given.keys()
    schema = keys and all(_kind(wanted[name]) == _kind(given[name]) for name in names)
    return JsonScore(sum(matched.values()) / len(names), all(matched.values()), True, schema, matched)


@dataclass(frozen=True)
class Constraint:
    """A rule that a program can check: `Never <verb> X` (the answer must not hold X) or `Always <verb> X` (it must)."""

    text: str
    wanted: bool
    phrase: str

    def kept(self, answer: str) -> bool:
        return (self.phrase in normalised(answer)) == self.wanted


def parse_constraint(text: str) -> Constraint | None:
    """The checkable rule in a constraint's text; None for prose, which every answer keeps."""
    match = _RULE.fullmatch(text)
    phrase = normalised(match.group(2)) if match else ""
    return Constraint(text, match.group(1).lower() == "always", phrase) if match and phrase else None


def constraints_kept(rules: Sequence[str], answer: str) -> list[bool]:
    """For each rule whether the answer keeps it."""
    return [(rule := parse_constraint(text)) is None or rule.kept(answer) for text in rules]
