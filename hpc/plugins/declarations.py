"""What a package declares beside plugin.yaml: which file belongs to which capability, and whose check reads it.

An integration's declaration decides the verdict, since it names code of the package that must be there. The others are faults of their own: the
package is a package, and still cannot be published.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from hpc.errors import Refusal, Refusals
from hpc.plugins import benchmarks, environments, integrations, playbook, prompt
from hpc.plugins.forms import Form
from hpc.plugins.manifest import Manifest
from hpc.plugins.opening import MAX_BYTES, open_form
from hpc.plugins.tree import Tree

RECIPE: Final = "recipe.yaml"
_PREPARE = re.compile(r"prepare_[A-Za-z0-9_]+\.py")
_CHECKS: Final[dict[str, tuple[str, Callable[[Form, str], object]]]] = {
    "benchmark": (benchmarks.NAME, benchmarks.check_benchmark),
    "playbook": (playbook.NAME, playbook.read_playbook),
    "prompt": (prompt.NAME, prompt.read_prompts),
}


@dataclass
class DeclarationFound:
    """`layout`: faults that decide the verdict; `faults`: those that only keep the package from being published."""

    layout: list[Refusal] = field(default_factory=list)
    faults: list[Refusal] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def check_declaration(tree: Tree, manifest: Manifest) -> DeclarationFound:
    """Open the declaration of the package's capability."""
    found = DeclarationFound()
    if manifest.capability in _CHECKS:
        name, check = _CHECKS[manifest.capability]
        if (form := _open(tree, name, found.faults)) is not None:
            check(form, manifest.name)
            if manifest.capability == "benchmark" and not found.faults:
                found.remarks += benchmarks.remarks(form, manifest.name, tree)
    elif manifest.capability == "recipe":
        found.faults += _recipe(tree, manifest, found.remarks)
    elif manifest.capability == "framework-integration":
        if (form := _open(tree, integrations.NAME, found.layout)) is not None:
            integrations.check_integration(form, tree.files)
    elif manifest.capability == "environment" and environments.NAME in tree.files:
        if (form := _open(tree, environments.NAME, found.faults)) is not None:
            environments.check_environment(form)
    elif manifest.execution == "local" and not any(_PREPARE.fullmatch(path) for path in tree.files):
        allowed = "a file prepare_<name>.py at the root"
        found.faults.append(Refusal("E-PLUGIN-060", "has no prepare_<name>.py", field="package", allowed=allowed))
    return found


def _open(tree: Tree, name: str, faults: list[Refusal]) -> Form | None:
    if name not in tree.files:
        faults.append(Refusal("E-PLUGIN-060", "is not in the package", field=name, allowed="a file at the root"))
        return None
    return open_form(name, lambda: tree.read(name, MAX_BYTES), faults)


def _recipe(tree: Tree, manifest: Manifest, remarks: list[str]) -> list[Refusal]:
    """The catalogue's own checks, with fields that are relative to the package."""
    if RECIPE not in tree.files:
        return [Refusal("E-PLUGIN-060", "is not in the package", field=RECIPE, allowed="a file at the root")]
    from hpc.catalog.recipes import load_recipe

    try:
        recipe = load_recipe(tree.folder, name=manifest.name)
    except Refusal as exc:
        return [_ours(tree, exc)]
    except Refusals as exc:
        return [_ours(tree, fault) for fault in exc.items]
    remarks += [f"{RECIPE}: a key that this tp does not know: {key}" for key in recipe.typed.unknown_keys()]
    return []


def _ours(tree: Tree, fault: Refusal) -> Refusal:
    where = fault.field.replace(f"{tree.folder}/", "").replace(f"{tree.folder}: ", f"{RECIPE}: ") or RECIPE
    return Refusal(
        "E-PLUGIN-064", fault.message, field=where, found=fault.found, allowed=fault.allowed, hint=fault.hint
    )
