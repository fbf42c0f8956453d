"""References of a spec to models and to data sets of hubs, as inputs of the job; and what the experiment's lock of inputs says about them.

Reads only. What the lock lacks is collected, for the submission to write when the job is queued: a dry run leaves the lock as it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuneplane.contract.layout import StorageRoot

from hpc.data.lock import Entry, Lock, accept_command, read_lock, runtime_refusal
from hpc.errors import Refusal
from hpc.spec.refs import HubRef, parse_hub_ref

if TYPE_CHECKING:
    from hpc.catalog.runtimes import Runtime
    from hpc.site.sitefile import Site

Digest = Callable[[str, os.stat_result], str]


@dataclass
class Pins:
    """The lock of an experiment as it was read, and the entries that it lacks."""

    exp: str
    lock: Lock = field(default_factory=Lock)
    entries: dict[str, Entry] = field(default_factory=dict)

    def completed(self, runtime: Runtime | None) -> Lock:
        """The lock to write once the job is queued; empty for an experiment that takes nothing from a hub."""
        if not self.lock.inputs and not self.entries:
            return self.lock
        image = {"runtime_id": runtime.id, "sif": runtime.sha256} if runtime is not None else {}
        return self.lock.completed(self.entries, image)


def read_pins(exp: str, folder: Path, runtime: Runtime | None) -> Pins:
    """The pins of an experiment. Raises Refusal E-LOCK-001, E-LOCK-007 (another image than the locked one)."""
    pins = Pins(exp, read_lock(folder))
    if runtime is not None:
        fault = runtime_refusal(pins.lock, runtime.id, runtime.sha256, accept=accept_command(exp))
        if fault is not None:
            raise fault
    return pins


def model_input(root: StorageRoot, site: Site, base: str, pins: Pins, digest: Digest) -> dict[str, Any]:
    """The input `model` for a reference: a version of this platform's shelf, or a commit of Hugging Face in the shared cache.

    Raises Refusal E-SPEC-026, E-HUB-*, E-LOCK-*, E-MODEL-010 … E-MODEL-012, E-MODEL-024, E-REG-*.
    """
    where = "spec.model.base"
    ref = parse_hub_ref(base, where, kind="model")
    if ref.hub == "tp":
        _require_unlocked("model", ref, pins, where)
        from hpc.data.model_inputs import shelf_input

        return shelf_input(root, site, f"{ref.namespace}/{ref.name}", ref.revision, field=where, digest=digest)
    from hpc.data.certified import Certified
    from hpc.data.hub_inputs import hub_input
    from hpc.data.hub_names import HubCache, repo_of

    repo = repo_of(ref, "model", where)
    table = Certified.load(root, site=site)
    revision = table.revision(repo.id, ref.revision, field=where)
    command = f"tp model prefetch {pins.exp}"
    table.require_pin(repo.id, revision, locked="model" in pins.lock.inputs, field=where, command=command)
    found = hub_input(HubCache(root), pins.lock, "model", repo, revision, field=where, exp=pins.exp, digest=digest)
    table.require_architecture(repo.id, HubCache(root).snapshot(repo, found.entry.commit) / "config.json")
    pins.entries["model"] = found.entry
    return found.row


def dataset_input(
    root: StorageRoot, role: str, source: Mapping[str, Any], pins: Pins, digest: Digest
) -> dict[str, Any]:
    """The input `train` or `validation` for a data set of Hugging Face: a file, or all shards of a split, in the cache.

    Raises Refusal E-HUB-*, E-LOCK-*.
    """
    from hpc.data.hub_inputs import data_files, hub_input
    from hpc.data.hub_names import HubCache, repo_of

    where = f"spec.data.{role}"
    ref = parse_hub_ref(str(source["dataset"]), f"{where}.dataset", kind="dataset")
    repo, cache = repo_of(ref, "dataset", f"{where}.dataset"), HubCache(root)
    named = str(source.get("path") or "")
    only = (
        (named,)
        if named
        else data_files(
            cache, pins.lock, role, repo, ref.revision, str(source.get("split") or ""), field=where, exp=pins.exp
        )
    )
    found = hub_input(
        cache, pins.lock, role, repo, ref.revision, field=f"{where}.dataset", exp=pins.exp, digest=digest, only=only
    )
    pins.entries[role] = found.entry
    return found.row


def _require_unlocked(role: str, ref: HubRef, pins: Pins, where: str) -> None:
    entry = pins.lock.inputs.get(role)
    if entry is not None:
        allowed = f"{entry.hub}:{entry.repo}"
        hint = f"run: {accept_command(pins.exp)}"
        raise Refusal(
            "E-LOCK-002", f"{role} is locked to {allowed}", field=where, found=str(ref), allowed=allowed, hint=hint
        )
