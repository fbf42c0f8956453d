"""What the pydantic models of this room share: strictness, grammars as validators, and their errors as refusals."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, ClassVar, NamedTuple, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from hpc.errors import Refusal
from hpc.spec.text import visible

_TYPES = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "above"),
    "less_than_equal": ("le", "at most"),
}


class Strict(BaseModel):
    """Frozen; no type is guessed; no unknown key passes."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", defer_build=True)
    always: ClassVar[frozenset[str]] = frozenset()
    """Fields that the sparse form keeps although they have their default."""

    def sparse(self) -> dict[str, Any]:
        """Plain JSON values, without the fields that have their default."""
        out = {}
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if field.is_required() or name in self.always or value != field.get_default(call_default_factory=True):
                out[field.alias or name] = _plain(value)
        return out


def _plain(value: Any) -> Any:
    if isinstance(value, Strict):
        return value.sparse()
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def via(grammar: Callable[[str], Any], *, empty: bool = False) -> Callable[[str], str]:
    """A validator that runs a grammar of this room; with `empty`, the empty text passes without it.

    A grammar that returns text gives the canonical spelling. What another grammar returns is a proof only: the text stays.
    """

    def check(value: str) -> str:
        if empty and value == "":
            return value
        try:
            result = grammar(value)
        except Refusal as refusal:
            raise PydanticCustomError(
                "refusal", "{message}", {"message": refusal.message, "refusal": refusal}
            ) from None
        return result if isinstance(result, str) else value

    return check


def path_of(loc: Iterable[int | str], prefix: str = "") -> str:
    """A field path as the documents write it: `spec.resources.pools[0].nodes`."""
    out = prefix
    for part in loc:
        out += f"[{part}]" if isinstance(part, int) else f".{part}" if out else part
    return out


def shown(value: Any) -> Any:
    """What a refusal may show of a value: scalars as they are, text made visible, containers by their kind."""
    if isinstance(value, str):
        return visible(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Mapping):
        return "an object"
    return "a list" if isinstance(value, (list, tuple)) else type(value).__name__


def refusals(exc: ValidationError, model: type[BaseModel], prefix: str = "") -> list[Refusal]:
    """Every error of one validation, in the order of the model, as refusals with full field paths."""
    return [_refusal(error, model, prefix) for error in exc.errors(include_url=False)]


def _refusal(error: ErrorDetails, model: type[BaseModel], prefix: str) -> Refusal:
    kind, ctx, field = error["type"], error.get("ctx", {}), path_of(error["loc"], prefix)
    if kind == "refusal":
        carried: Refusal = ctx["refusal"]
        carried.field = field + carried.field
        return carried
    found = shown(error["input"])
    if kind == "missing":
        return Refusal("E-SPEC-011", "is missing", field=field, allowed="a value; it has no default")
    if kind == "extra_forbidden":
        return unknown_key(path_of(error["loc"][:-1], prefix), str(error["loc"][-1]), _known(model, error["loc"][:-1]))
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        return Refusal("E-SPEC-014", "out of range", field=field, found=found, allowed=f"{words} {ctx[name]}")
    allowed = ctx["expected"] if kind == "literal_error" else _TYPES.get(kind, error["msg"])
    if isinstance(found, str):
        found = f'the text "{found}"'
    return Refusal("E-SPEC-013", f"must be {allowed}", field=field, found=found, allowed=allowed)


def unknown_key(parent: str, key: str, known: Iterable[str]) -> Refusal:
    """The refusal of a key that nobody reads, with the nearest one that is read."""
    names = sorted(known)
    near = difflib.get_close_matches(key, names, 1)
    return Refusal(
        "E-SPEC-012",
        f"unknown key {visible(key)!r}",
        field=f"{parent}.{visible(key)}" if parent else visible(key),
        allowed=", ".join(names),
        hint=f"did you mean {near[0]!r}?" if near else "",
    )


class Key(NamedTuple):
    """What is under one key: the model of its object, or of each object of its list; None for anything else."""

    model: type[BaseModel] | None
    many: bool


@cache
def keys_of(model: type[BaseModel]) -> dict[str, Key]:
    """The keys that a model reads."""
    return {
        field.alias or name: Key(next(_models_in(field.annotation), None), get_origin(field.annotation) is tuple)
        for name, field in model.model_fields.items()
    }


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for arg in get_args(annotation):
        yield from _models_in(arg)


def _known(model: type[BaseModel], loc: Iterable[int | str]) -> Iterable[str]:
    """The keys of the model that `loc` leads to from `model`."""
    for part in loc:
        if isinstance(part, str) and (inner := keys_of(model)[part].model):
            model = inner
    return keys_of(model)
