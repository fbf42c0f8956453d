"""What a package declares beside plugin.yaml: which file belongs to which capability, and whose check reads it."""

from __future__ import annotations

from dataclasses import dataclass, field

from hpc.errors import Refusal
from hpc.plugins.manifest import Manifest
from hpc.plugins.tree import Tree


@dataclass
class DeclarationFound:
    """`layout`: faults that decide the verdict; `faults`: those that only keep the package from being published."""

    layout: list[Refusal] = field(default_factory=list)
    faults: list[Refusal] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def check_declaration(tree: Tree, manifest: Manifest) -> DeclarationFound:
    """Open the declaration of the package's capability."""
    return DeclarationFound()
