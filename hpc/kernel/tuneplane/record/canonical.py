"""Canonical JSON: one value, one byte string.

Keys are sorted by code point at every level, there is no white space, text is UTF-8 and is never escaped beyond what JSON demands.
What has no canonical form is refused: NaN and infinities, lone surrogates, keys that are not text, duplicate keys on reading.
"""

from __future__ import annotations

import json
import math
from typing import Any


class CanonicalError(ValueError):
    """The value or text has no canonical JSON form; the message says where."""


def _check(value: Any, where: str) -> None:
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as exc:
            raise CanonicalError(f"{where}: text holds a lone surrogate") from exc
    elif isinstance(value, float) and not math.isfinite(value):
        raise CanonicalError(f"{where}: {value} has no JSON form")
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise CanonicalError(f"{where}: key {key!r} is not text")
            _check(key, where)
            _check(item, f"{where}.{key}")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _check(item, f"{where}[{index}]")
    elif value is not None and not isinstance(value, (bool, int, float)):
        raise CanonicalError(f"{where}: {type(value).__name__} has no JSON form")


def canonical_text(value: Any) -> str:
    """The canonical JSON text of `value` (dict, list, tuple, str, int, float, bool, None)."""
    _check(value, "$")
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical_bytes(value: Any) -> bytes:
    """UTF-8 of `canonical_text(value)`; what every digest of a record is taken over."""
    return canonical_text(value).encode("utf-8")


def pretty_bytes(value: Any) -> bytes:
    """The same value for people: sorted, two-space indent, final newline."""
    _check(value, "$")
    return (json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, item in pairs:
        if key in out:
            raise CanonicalError(f"key {key!r} stands twice in one object")
        out[key] = item
    return out


def _no_constant(name: str) -> Any:
    raise CanonicalError(f"{name} is not JSON")


def parse_json(data: bytes | str) -> Any:
    """Parse JSON strictly: UTF-8, no duplicate keys, no NaN or Infinity. Raises CanonicalError for anything else."""
    try:
        text = data.decode("utf-8") if isinstance(data, bytes) else data
        value = json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
        _check(value, "$")
    except CanonicalError:
        raise
    except (ValueError, RecursionError) as exc:
        raise CanonicalError(f"not JSON: {exc}") from exc
    return value
