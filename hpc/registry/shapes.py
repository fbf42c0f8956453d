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


def misfit(value: Any, shape: Shape, where: str) -> str:
    """The first place in `value` that has another shape, in words; "" where all fits."""
    if isinstance(shape, type):
        # True is no number here, as it is none in the record.
        return "" if type(value) is shape else f"{where} is no {_WORDS.get(shape, shape.__name__)}"
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{where} is no list"
        return next((bad for item in value if (bad := misfit(item, shape[0], f"{where}[]"))), "")
    if not isinstance(value, dict):
        return f"{where} is no object"
    if isinstance(shape, Named):
        return next((bad for item in value.values() if (bad := misfit(item, shape.shape, f"{where}.*"))), "")
    return _fields(value, shape, where)


def _fields(value: dict[str, Any], shape: dict[str, Shape], where: str) -> str:
    for name, inner in shape.items():
        key = name.removesuffix("?")
        if key not in value:
            if key == name:
                return f"{where} has no {key}"
        elif bad := misfit(value[key], inner, f"{where}.{key}"):
            return bad
    return ""


_WORDS: Final = {str: "text", int: "whole number", bool: "truth value", dict: "object", list: "list"}
