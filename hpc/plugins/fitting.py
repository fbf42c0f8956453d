"""Whether a job is one that a profile of integration.json can honour: the form of its rows, and where its roles lie. Pure.

What a framework would only find out on the nodes, or would pass over in silence, is refused before the queue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hpc.errors import Refusal
from hpc.plugins.forms import Form
from hpc.spec.text import SEGMENT

FORMS: Final = ("arrow", "csv", "folder", "json", "jsonl", "parquet", "txt")
"""How rows may lie: files by the end of their name, and `folder`: one that the user names, which the framework loads as it sees fit."""
SEVERAL: Final = "several files"
"""The files of a split of a data set. Their folder has other splits, too, so that it stands for none of them."""
_ROLES: Final = "spec.resources.roles"


@dataclass(frozen=True)
class Machines:
    """One pool: how many nodes of which kind."""

    nodes: int
    gpus_per_node: int
    series: str = ""


def check_fitting(profile: Form) -> None:
    """Keep every fault of a profile's `rows`, `row_separators`, `unread` and `placements` in the form."""
    profile.texts("unread", most=16, limit=128)
    profile.texts("row_separators", most=8, limit=1)
    for form in profile.texts("rows", most=len(FORMS)):
        if form not in FORMS:
            profile.no("rows", "is no form of rows", found=form, allowed=", ".join(FORMS))
    for n, placement in enumerate(profile.items("placements", most=32)):
        groups = placement if isinstance(placement, list) else []
        names = [name for group in groups for name in (group if isinstance(group, list) else [None])]
        good = all(isinstance(name, str) and SEGMENT.fullmatch(name) for name in names) and all(groups)
        if not names or not good or len(set(names)) != len(names):
            allowed = 'lists of roles that share a pool, each role once: [["actor"], ["rollout"]]'
            profile.no(f"placements[{n}]", "is no placement of roles", found=placement, allowed=allowed)


def row_faults(
    profile: Mapping[str, Any], rows: Mapping[str, str], paths: Mapping[str, str] | None = None
) -> Iterator[Refusal]:
    """E-FRAME-013 for each of `rows` (train, validation: a form, or SEVERAL) that the framework does not read, and each of `paths` that it splits.

    Without a declaration it reads all.
    """
    allowed, separators = profile.get("rows"), profile.get("row_separators") or ()
    for name, path in (paths or {}).items():
        if found := [one for one in separators if one in path]:
            message = f"{profile['method']} takes a path of rows for several parts at {found[0]}"
            words = f"a path without {' or '.join(separators)}"
            yield Refusal("E-FRAME-013", message, field=f"spec.data.{name}", found=path, allowed=words)
    for name, form in rows.items():
        if allowed is not None and form not in allowed:
            words = ", ".join("a folder" if one == "folder" else f".{one}" for one in allowed)
            message = f"{profile['method']} does not read {form or 'a file without an ending'} as rows"
            hint = "name one file of the split with its path" if form == SEVERAL else ""
            yield Refusal("E-FRAME-013", message, field=f"spec.data.{name}", found=form, allowed=words, hint=hint)


def unread_faults(profile: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[Refusal]:
    """E-FRAME-015 for each part of the JobSpec that the job states and the profile calls `unread`."""
    for path in profile.get("unread") or ():
        value: Any = spec.get("spec")
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value:
            message = f"{profile['method']} does not read {path}"
            yield Refusal("E-FRAME-015", message, field=f"spec.{path}", found=value, allowed="nothing")


def placed(profile: Mapping[str, Any], pools: Mapping[str, Machines], roles: Mapping[str, str]) -> list[dict[str, Any]]:
    """`{roles, nodes, gpus_per_node}` of each group of roles that shares a pool; [] where the profile declares no placements and judges them itself.

    Raises Refusal E-FRAME-014 for roles, or pools, that the framework has no way to honour.
    """
    declared: Sequence[Sequence[Sequence[str]]] | None = profile.get("placements")
    if declared is None:
        return []
    found = ", ".join(f"{role}={pool}" for role, pool in roles.items()) or f"{len(pools)} pools without roles"
    allowed = " or ".join(" | ".join(",".join(group) for group in groups) for groups in declared)
    known = {role for groups in declared for group in groups for role in group}
    if strange := [role for role in roles if role not in known]:
        message = f"{profile['method']} has no role {strange[0]}"
        raise Refusal("E-FRAME-014", message, field=_ROLES, found=found, allowed=", ".join(sorted(known)))
    if len({(pool.gpus_per_node, pool.series) for pool in pools.values()}) > 1:
        message = "a framework places roles by numbers of nodes, so that all its nodes are of one kind"
        raise Refusal("E-FRAME-014", message, field="spec.resources.pools", found=found, allowed="pools of one profile")
    for groups in declared:
        of = [_pool_of(group, roles, pools) for group in groups]
        if len(of) == len(pools) and set(of) == set(pools):
            return [
                {"roles": list(group), "nodes": pools[pool].nodes, "gpus_per_node": pools[pool].gpus_per_node}
                for group, pool in zip(groups, of, strict=True)
            ]
    message = f"{profile['method']} cannot place its roles so"
    raise Refusal("E-FRAME-014", message, field=_ROLES, found=found, allowed=allowed)


def _pool_of(group: Sequence[str], roles: Mapping[str, str], pools: Mapping[str, Machines]) -> str:
    """The one pool of a group: where its roles are put, or the only one; "" where they are put apart or nowhere."""
    named = {roles[role] for role in group if role in roles} or (set(pools) if len(pools) == 1 else set())
    return named.pop() if len(named) == 1 else ""
