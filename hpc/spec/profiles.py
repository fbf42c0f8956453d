"""`--profile` expressions: `[role[,role…]=]name[:count]` become pools.

The count is the number of GPUs in total: up to one node's it is one node with that many, above it must be whole nodes. For a CPU-only
profile it counts ranks in the same way. A part of a node takes the same part of its CPUs and memory. Without a count the
profile's own shape holds.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpc.errors import Refusal, Refusals
from hpc.spec.text import SEGMENT, SEGMENT_ALLOWED, visible

FIELD = "--profile"
ALLOWED = "[role[,role…]=]name[:count]"
DEFAULT_POOL = "all"
_COUNT = re.compile(r"[1-9][0-9]{0,7}")


@dataclass(frozen=True)
class ProfileShape:
    """What the site says about one profile's machines, and how many of them it means by default."""

    series: str = ""
    nodes: int = 1
    gpus_per_node: int = 1
    cpus: int = 0
    memory_gb: int = 0
    ranks_per_node: int = 0


@dataclass(frozen=True)
class PlacedPool:
    """One pool: its name in the JobSpec, the profile it came from, and its shape."""

    name: str
    profile: str
    shape: ProfileShape

    def as_json(self) -> dict[str, Any]:
        """The entry of `spec.resources.pools`."""
        shape = self.shape
        out = {"name": self.name, "series": shape.series, "nodes": shape.nodes, "gpus_per_node": shape.gpus_per_node}
        more = {"cpus": shape.cpus, "memory_gb": shape.memory_gb, "ranks_per_node": shape.ranks_per_node}
        return {key: value for key, value in (out | more).items() if value or key in ("nodes", "gpus_per_node")}


@dataclass(frozen=True)
class Placement:
    """All pools, the pool of each role, and the first entry's profile: the one whose environment and pin hold for the job."""

    profile: str
    pools: tuple[PlacedPool, ...]
    roles: dict[str, str]


def place(entries: Sequence[str], registry: Mapping[str, ProfileShape]) -> Placement:
    """Pools for the given expressions. Raises Refusals E-SPEC-060 … 063, all entries at once."""
    if not entries:
        message = "no profile is given, and the site has no default"
        raise Refusals([Refusal("E-SPEC-060", message, field=FIELD, allowed=", ".join(registry) or ALLOWED)])
    found: list[Refusal] = []
    pools: list[PlacedPool] = []
    roles: dict[str, str] = {}
    for entry in entries:
        try:
            names, pool = _pool(entry, registry)
            if len(entries) > 1 and not names:
                raise Refusal(
                    "E-SPEC-063",
                    "several profiles, and this one names no role",
                    found=entry,
                    allowed="role=name[:count]",
                )
            if taken := [name for name in names if name in roles]:
                raise Refusal(
                    "E-SPEC-063", f"role {taken[0]} stands twice", found=visible(entry), allowed="each role once"
                )
        except Refusal as refusal:
            refusal.field = FIELD
            found.append(refusal)
            continue
        pools.append(pool)
        roles.update(dict.fromkeys(names, pool.name))
    if found:
        raise Refusals(found)
    return Placement(pools[0].profile, tuple(pools), roles)


def _pool(entry: str, registry: Mapping[str, ProfileShape]) -> tuple[list[str], PlacedPool]:
    left, _, right = entry.rpartition("=")
    names = left.split(",") if left else []
    if bad := [name for name in names if not SEGMENT.fullmatch(name)]:
        message = f"not a role's name: {visible(bad[0])!r}"
        raise Refusal("E-SPEC-060", message, found=visible(entry), allowed=f"{ALLOWED}; a role: {SEGMENT_ALLOWED}")
    if len(set(names)) != len(names):
        raise Refusal("E-SPEC-063", "a role stands twice", found=visible(entry), allowed="each role once")
    profile, colon, count = right.partition(":")
    if not profile or (colon and not _COUNT.fullmatch(count)):
        allowed = f"{ALLOWED}, the count a whole number from 1"
        raise Refusal("E-SPEC-060", "not a profile expression", found=visible(entry), allowed=allowed)
    if profile not in registry:
        near = difflib.get_close_matches(profile, list(registry), 1)
        hint = f"did you mean {near[0]}?" if near else ""
        allowed = ", ".join(sorted(registry)) or "none, as the site has no profiles"
        raise Refusal(
            "E-SPEC-061", f"no profile is called {visible(profile)!r}", found=visible(entry), allowed=allowed, hint=hint
        )
    shape = _sized(registry[profile], int(count), entry) if colon else registry[profile]
    return names, PlacedPool(names[0] if names else DEFAULT_POOL, profile, shape)


def _sized(shape: ProfileShape, count: int, entry: str) -> ProfileShape:
    whole = shape.gpus_per_node or shape.ranks_per_node or 1
    if count > whole and count % whole:
        below, above = count // whole * whole, (count // whole + 1) * whole
        message = f"{count} is no multiple of {whole}, one node's size"
        allowed = f"up to {whole}, or whole nodes: {below}, {above}, …"
        raise Refusal("E-SPEC-062", message, found=entry, allowed=allowed)
    nodes, per_node = (1, count) if count <= whole else (count // whole, whole)
    shape = replace(
        shape, nodes=nodes, cpus=_share(shape.cpus, per_node, whole), memory_gb=_share(shape.memory_gb, per_node, whole)
    )
    return replace(shape, gpus_per_node=per_node) if shape.gpus_per_node else replace(shape, ranks_per_node=per_node)


def _share(amount: int, part: int, whole: int) -> int:
    """The part of a node's CPUs or memory that goes with a part of its GPUs; at least 1 of what is stated."""
    return max(1, amount * part // whole) if amount else 0
