"""Whether what is active is there to be read: the selection in force against the shelf. For the audit; reads only."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tuneplane.contract.layout import StorageRoot

from hpc.errors.core import Refusal
from hpc.registry.activation import Active, active, capabilities
from hpc.registry.kinds import Kind
from hpc.registry.pointers import POLICY
from hpc.registry.problems import TAMPERED, Problem, of_refusal
from hpc.registry.resolve import look_at
from hpc.registry.shelf import Ref, Shelf

if TYPE_CHECKING:
    from hpc.site.sitefile import Site


def check_active(root: StorageRoot, kinds: Sequence[Kind], site: Site | None) -> list[Problem]:
    """A problem for each policy in force whose version is gone or has other bytes; what else is wrong with the version is said beside it."""
    problems: list[Problem] = []
    try:
        found = capabilities(root)
    except Refusal:
        return []  # the folder is judged, and named, by the walk
    for capability in found:
        where = f"registry/activation/{POLICY}/{capability}"
        try:
            selected = active(root, capability, site=site)
            if selected.id and (text := _missing(root, kinds, site, selected)):
                problems.append(Problem(TAMPERED, "E-REG-012", where, text))
        except Refusal as fault:
            if fault.code != "E-REG-022":  # each generation that is not whole is named already
                problems.append(of_refusal(fault, where))
    return problems


def _missing(root: StorageRoot, kinds: Sequence[Kind], site: Site | None, selected: Active) -> str:
    owner, _, name = selected.id.partition("/")
    what = f"{selected.id}@{selected.version}"
    for kind in kinds:
        shelf = Shelf(root, kind, site=site)
        if not os.path.lexists(shelf.version(owner, name, selected.version)):
            continue
        record, _ = look_at(shelf, Ref(owner, name, selected.version), shelf.uid(owner))
        other = record is not None and record["digest"] != selected.digest
        return f"selects {what}, which has other bytes than it had then" if other else ""
    return f"selects {what}, which is not there"
