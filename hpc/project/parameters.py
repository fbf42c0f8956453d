"""A recipe's parameters as comments of a config.yaml, so that nobody has to look them up to set one. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from hpc.errors import Refusal
from hpc.spec.yamltext import parse_yaml

if TYPE_CHECKING:
    from hpc.catalog.params import Param
    from hpc.catalog.recipes import Recipe


def config_text(recipe: Recipe, version: str, before: str, set_already: Collection[str]) -> str:
    """The template's own config (`before`, may be empty) and a comment for every parameter that it does not set."""
    rows = [
        row(name, param, version)
        for name, param in recipe.typed.params.items()
        if name not in set_already and fits(param, version)
    ]
    head = f"# {recipe.id} {recipe.version}. `defaults:` names base configs, relative to this file; own keys win over them.\n"
    if not rows:
        return before or head
    place = f" inside `{recipe.typed.config_section}`" if recipe.typed.config_section else ""
    title = (
        f"# Parameters of {recipe.id} that are not set here, by their place{place}, with the value that holds then.\n"
    )
    width = max(len(left) for left, _ in rows)
    lines = "".join(f"#   {left.ljust(width)}  {right}".rstrip() + "\n" for left, right in rows)
    return (f"{before.rstrip()}\n" if before else head) + f"\n{title}{lines}"


def fits(param: Param, version: str) -> bool:
    """Whether the parameter exists in that framework version."""
    return not param.versions or version in param.versions


def row(name: str, param: Param, version: str) -> tuple[str, str]:
    """`path: default` and what is known about it."""
    path = param.path_for(name, version)
    value = "" if param.default is None else yaml_scalar(param.default)
    words = ["required" if param.required else "", param.allowed, param.doc]
    if path.rpartition(".")[2] != name:
        words.append(f"--set {name}=…")
    return f"{path}: {value}".rstrip(), "; ".join(word for word in words if word)


def yaml_scalar(value: Any) -> str:
    """A scalar as this project's YAML reads it back."""
    if not isinstance(value, str):
        return json.dumps(value)
    try:
        plain = value.isprintable() and parse_yaml(value) == value
    except Refusal:
        plain = False
    return value if plain else json.dumps(value, ensure_ascii=False)
