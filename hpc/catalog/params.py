"""Hyperparameters of a recipe: what the pack declares, and what a job may set. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from hpc.errors import Refusal, Refusals

Scalar = int | float | bool | str
FIELD = "spec.hyperparams"


class Param(BaseModel):
    """One declared parameter. `path` is where it stands in config.yaml and in the framework's overrides."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, defer_build=True)

    type: Literal["int", "float", "bool", "str", "enum"]
    path: str = ""
    path_overrides: dict[str, str] = {}
    versions: list[str] = []
    default: Scalar | None = None
    required: bool = False
    min: int | float | None = None
    max: int | float | None = None
    exclusive_min: bool = False
    excluded: list[int | float] = []
    """Numbers between the bounds that have no meaning."""
    choices: list[Scalar] = []
    doc: str = ""
    group: str = ""

    def path_for(self, name: str, version: str) -> str:
        """The path in that framework version; the parameter's own name where none is declared."""
        return self.path_overrides.get(version) or self.path or name

    @property
    def allowed(self) -> str:
        """What may stand there, in words."""
        if self.choices:
            return "one of " + ", ".join(str(c) for c in self.choices)
        low = "" if self.min is None else f" {'>' if self.exclusive_min else '>='} {self.min}"
        high = "" if self.max is None else f" <= {self.max}"
        words = {"int": "an integer", "float": "a number", "bool": "true or false", "str": "text", "enum": "a choice"}
        but = "".join(f", not {number}" for number in self.excluded)
        return words[self.type] + low + (" and" if low and high else "") + high + but

    def accepts(self, value: object) -> bool:
        """True for a value of the type, within bounds and choices. Booleans are no numbers; floats are finite."""
        if not _has_type(self.type, value):
            return False
        if self.choices and not any(type(c) is type(value) and c == value for c in self.choices):
            return False
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return True
        if value in self.excluded:
            return False
        if self.min is not None and (value < self.min or (self.exclusive_min and value == self.min)):
            return False
        return self.max is None or value <= self.max


def _has_type(kind: str, value: object) -> bool:
    if kind == "bool":
        return isinstance(value, bool)
    if kind in ("str", "enum"):
        return isinstance(value, str)
    if isinstance(value, bool):
        return False
    if kind == "int":
        return isinstance(value, int)
    return isinstance(value, (int, float)) and math.isfinite(value)


def check_params(params: Mapping[str, Param], versions: Collection[str]) -> Iterator[Refusal]:
    """Contradictions inside the declarations themselves."""

    def bad(field: str, found: Any, allowed: str, message: str) -> Refusal:
        return Refusal("E-CATALOG-004", message, field=field, found=found, allowed=allowed)

    for name, p in params.items():
        here = f"params.{name}"
        if not name.isidentifier():
            yield bad(here, name, "letters, digits and _", "is no parameter name")
        if p.type == "enum" and not p.choices:
            yield bad(f"{here}.choices", p.choices, "at least one choice", "an enum needs choices")
        if any(not _has_type(p.type, c) for c in p.choices):
            yield bad(f"{here}.choices", p.choices, f"values of type {p.type}", "a choice has another type")
        if p.type not in ("int", "float") and (p.min is not None or p.max is not None or p.excluded):
            yield bad(here, p.type, "int or float", "bounds need a number")
        if p.min is not None and p.max is not None and p.min > p.max:
            yield bad(f"{here}.min", p.min, f"at most max ({p.max})", "is above max")
        if p.exclusive_min and p.min is None:
            yield bad(f"{here}.exclusive_min", True, "a min beside it", "there is no min to exclude")
        if p.default is not None and not p.accepts(p.default):
            yield bad(f"{here}.default", p.default, p.allowed, "the default itself would be refused")
        for version in [*p.versions, *p.path_overrides]:
            if version not in versions:
                yield bad(here, version, ", ".join(versions), "names a version that is not in runtime.versions")


def resolve(params: Mapping[str, Param], given: Mapping[str, object], version: str, method: str) -> dict[str, Any]:
    """Every parameter's value in the order of the declaration, defaults filled in. Raises Refusals, all at once."""
    faults = [_unknown(name, given[name], params, method) for name in given if name not in params]
    out: dict[str, Any] = {}
    for name, p in params.items():
        here = not p.versions or version in p.versions
        if name not in given:
            if here and p.default is not None:
                out[name] = p.default
            elif here and p.required:
                faults.append(Refusal("E-CATALOG-011", f"{method} needs {name}", field=FIELD, allowed=p.allowed))
            continue
        value = given[name]
        if not here:
            message = f"{name} is not in version {version}"
            faults.append(
                Refusal("E-CATALOG-013", message, field=f"{FIELD}.{name}", found=value, allowed=", ".join(p.versions))
            )
        elif p.accepts(value):
            out[name] = value
        else:
            message = f"{value!r} is not {p.allowed}"
            faults.append(Refusal("E-CATALOG-012", message, field=f"{FIELD}.{name}", found=value, allowed=p.allowed))
    if faults:
        raise Refusals(faults)
    return out


def _unknown(name: str, value: object, params: Mapping[str, Param], method: str) -> Refusal:
    import difflib

    near = difflib.get_close_matches(name, params, n=1)
    return Refusal(
        "E-CATALOG-010",
        f"{method} has no parameter {name!r}" + (f"; did you mean {near[0]}?" if near else ""),
        field=FIELD,
        found=f"{name}={value}",
        allowed=", ".join(params) or "no parameters at all",
    )


def overrides(params: Mapping[str, Param], resolved: Mapping[str, Any], version: str) -> list[str]:
    """`path=value` for each resolved parameter, in the order of the declaration; booleans in lower case."""
    out = []
    for name, p in params.items():
        if name in resolved:
            value = resolved[name]
            text = str(value).lower() if isinstance(value, bool) else str(value)
            out.append(f"{p.path_for(name, version)}={text}")
    return out
