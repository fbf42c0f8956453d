"""Strict YAML: text in, plain JSON values out, and every surprise of YAML is a refusal that names the line.

Plain scalars follow YAML 1.2 as far as JSON does: `null`, `~` and nothing are null; `true` and `false` are booleans;
decimal integers without a leading zero and decimal fractions (`1e3`, `1e-5` too) are numbers. Everything else is text
as written: `no`, `on`, `12:30:00`, `0123`, `0x1F`, `1_000`, `2026-01-01`.

Refused: anchors, aliases, tags, merge keys, several documents, keys that are not text, a key twice in one mapping,
`.inf` and `.nan`, text above 1 MiB, nesting above 32 levels, more than 50,000 values. Does no I/O and builds no Python
object other than dict, list, str, int, float, bool and None.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from hpc.errors import Refusal

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_VALUES = 50_000
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_JSON = re.compile(r"([-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))")
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


def parse_yaml(text: str, *, origin: str = "") -> Any:
    """The one document of `text`, None if it is empty.

    `origin`, a file name, starts the field of a refusal: `config.yaml:3`. Raises Refusal E-SPEC-001 (not YAML),
    002 (a feature that is not allowed here), 003 (a key twice), 004 (too large).
    """
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError as exc:
        raise _refusal("E-SPEC-001", "the text holds a lone surrogate", origin, 0) from exc
    if size > MAX_BYTES:
        allowed = f"at most {MAX_BYTES} bytes"
        raise Refusal("E-SPEC-004", "the document is too large", field=origin, found=size, allowed=allowed)
    try:
        return _Reader(text.removeprefix("\ufeff"), origin).document()
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        problem = getattr(exc, "problem", None) or str(exc).splitlines()[0]
        raise _refusal("E-SPEC-001", f"not YAML: {problem}", origin, mark.line + 1 if mark else 0) from exc


def _refusal(code: str, message: str, origin: str, line: int, found: Any = None, hint: str = "") -> Refusal:
    place = f"{origin}:{line}" if origin and line else origin or (f"line {line}" if line else "")
    return Refusal(code, message, field=place, found=found, hint=hint)


class _Reader:
    """Builds one value from libyaml's events; refuses on the way, so nothing is expanded first."""

    def __init__(self, text: str, origin: str) -> None:
        self.origin = origin
        self.events: Iterator[Any] = yaml.parse(text, Loader=_LOADER)
        self.values = 0

    def document(self) -> Any:
        event = next(self.events)
        while not isinstance(event, (yaml.DocumentStartEvent, yaml.StreamEndEvent)):
            event = next(self.events)
        if isinstance(event, yaml.StreamEndEvent):
            return None
        value = self.value(next(self.events), 1)
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                raise self.no("E-SPEC-002", "a second document starts here", event, hint="keep one document in a file")
        return value

    def no(self, code: str, message: str, event: Any, found: Any = None, hint: str = "") -> Refusal:
        return _refusal(code, message, self.origin, event.start_mark.line + 1, found, hint)

    def value(self, event: Any, depth: int) -> Any:
        self.values += 1
        if self.values > MAX_VALUES:
            raise self.no("E-SPEC-004", f"more than {MAX_VALUES} values", event)
        if depth > MAX_DEPTH:
            raise self.no("E-SPEC-004", f"nested deeper than {MAX_DEPTH} levels", event)
        if isinstance(event, yaml.AliasEvent):
            raise self.no("E-SPEC-002", "aliases are not allowed", event, f"*{event.anchor}", "write the value out")
        if event.anchor is not None:
            raise self.no("E-SPEC-002", "anchors are not allowed", event, f"&{event.anchor}", "write the value out")
        if event.tag is not None:
            raise self.no("E-SPEC-002", "tags are not allowed", event, event.tag, "leave the tag out; quote text")
        if isinstance(event, yaml.ScalarEvent):
            return self.scalar(event)
        if isinstance(event, yaml.SequenceStartEvent):
            return self.sequence(depth)
        return self.mapping(depth)

    def sequence(self, depth: int) -> list[Any]:
        out = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            out.append(self.value(event, depth + 1))
        return out

    def mapping(self, depth: int) -> dict[str, Any]:
        out: dict[str, Any] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key = self.key(event, depth)
            if key in out:
                raise self.no("E-SPEC-003", f"key {key!r} stands twice in one mapping", event)
            out[key] = self.value(next(self.events), depth + 1)
        return out

    def key(self, event: Any, depth: int) -> str:
        if isinstance(event, yaml.ScalarEvent) and event.value == "<<" and event.implicit[0]:
            raise self.no(
                "E-SPEC-002", "merge keys are not allowed", event, hint="use `defaults:` or write the keys out"
            )
        key = self.value(event, depth + 1)
        if not isinstance(key, str):
            kind = "null" if key is None else type(key).__name__
            raise self.no("E-SPEC-002", f"a key is not text but {kind}", event, key, "put the key in quotes")
        return key

    def scalar(self, event: Any) -> Any:
        text: str = event.value
        if not event.implicit[0]:  # quoted or a block: always text
            if any("\ud800" <= c <= "\udfff" for c in text):
                raise self.no("E-SPEC-001", "text holds a lone surrogate", event)
            return text
        if text in _WORDS:
            return _WORDS[text]
        if _INT.fullmatch(text):
            if len(text) > 20 or not -(1 << 63) <= int(text) < 1 << 63:
                raise self.no(
                    "E-SPEC-002", "an integer does not fit in 64 bits", event, text[:40], "quote it to keep it as text"
                )
            return int(text)
        if _FLOAT.fullmatch(text):
            number = float(text)
            if number in (float("inf"), float("-inf")):
                raise self.no("E-SPEC-002", "a number is too large", event, text[:40])
            return number
        if _NOT_JSON.fullmatch(text):
            raise self.no("E-SPEC-002", "infinity and not-a-number have no JSON form", event, text)
        return text
