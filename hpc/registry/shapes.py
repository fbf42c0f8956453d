"""The shape of a record's facts: of which type each is. Pure.

Until a version is sealed its record is its owner's word alone, and whoever lists a shelf reads everybody's. What has another shape is damage of that
one version, and never a fault in a reader's code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

Shape = Any
"""A type; `[shape]` for a list; `{"key": shape}` for an object, where `key?` may be absent; `Named`. What is not named may be anything."""


@dataclass(frozen=True)
class Named:
    """An object whose keys are names, such as of splits, and whose values have one shape."""

    shape: Shape


TEXTS: Final = Named(str)


_ABSENT: Final = object()
_WORDS: Final = {str: "text", int: "whole number", bool: "truth value", dict: "object", list: "list"}


def misfit(value: Any, shape: Shape, where: str) -> str:
    """The first place in `value` that has another shape, in words; "" where all fits."""
    bad = _misfit(value, shape)
    return where + bad if bad else ""


def _misfit(value: Any, shape: Shape) -> str:
    # An audit asks this of every version: the place is put together only where there is a misfit.
    if isinstance(shape, type):
        return "" if type(value) is shape else _no(shape)  # True is no number here, as it is none in the record
    if isinstance(shape, list):
        if not isinstance(value, list):
            return _no(list)
        return next(("[]" + bad for item in value if (bad := _misfit(item, shape[0]))), "")
    if not isinstance(value, dict):
        return _no(dict)
    if isinstance(shape, Named):
        return next((".*" + bad for item in value.values() if (bad := _misfit(item, shape.shape))), "")
    return _fields(value, shape)


def _fields(value: dict[str, Any], shape: dict[str, Shape]) -> str:
    for name, inner in shape.items():
        key = name[:-1] if name[-1] == "?" else name
        item = value.get(key, _ABSENT)
        if type(item) is inner:
            continue
        if item is _ABSENT:
            if key == name:
                return f" has no {key}"
        elif bad := _misfit(item, inner):
            return f".{key}{bad}"
    return ""


def _no(kind: type) -> str:
    return f" is no {_WORDS.get(kind, kind.__name__)}"
