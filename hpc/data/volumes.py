"""Volumes: folders that change, under a name without a version. A push makes a new generation; the highest one is the volume.

A generation is a version of the shelf engine, called by its number. It appears by one rename, which is also what moves the volume on: there is no
pointer beside the folders that could say otherwise. A job records the generation that it was submitted with and keeps it, whatever is pushed
meanwhile; older generations stay until `tp volume rm --old` finds that no run needs them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuneplane.contract.layout import RunPaths, StorageRoot
from tuneplane.record.digest import digest_file
from tuneplane.record.files import read_json

from hpc.data.kinds import VOLUME
from hpc.data.push import Pusher, prepare_name
from hpc.data.remove import require_owner, trash
from hpc.data.uses import runs
from hpc.data.visibility import Visibility
from hpc.errors.core import Refusal, Refusals
from hpc.registry.order import newest_first
from hpc.registry.resolve import Version, load
from hpc.registry.shelf import RECORD, Ref, Shelf
from hpc.registry.tombstones import bury
from hpc.spec.text import segment
from hpc.store.faults import refusal

if TYPE_CHECKING:
    from hpc.site.sitefile import Site


def create(by: Pusher, name: str, ask: Visibility) -> Path:
    """The empty volume `name` of the caller. Raises Refusal E-REG-001 (it is there), E-DATA-021, E-SPEC-017, E-SITE-*, E-STORE-*."""
    segment(name, "NAME")
    shelf = Shelf(by.root, VOLUME, site=by.site)
    package = shelf.package(by.namespace, name)
    if os.path.lexists(package):
        raise Refusal("E-REG-001", f"{by.namespace}/{name} is there already", field="NAME", found=name)
    prepare_name(by, shelf, name, ask)
    return package


def newest(root: StorageRoot, site: Site | None, ref: str, field: str = "") -> Version:
    """The highest generation of `<owner>/<name>`.

    Raises Refusal E-DATA-030 (no such volume, or an empty one), E-DATA-031 (not readable for the caller), E-REG-*, E-SITE-*, E-STORE-*.
    """
    owner, _, name = ref.partition("/")
    shelf = Shelf(root, VOLUME, site=site)
    if not os.path.lexists(shelf.package(owner, name)):
        raise Refusal("E-DATA-030", f"there is no volume {ref}", field=field, found=ref)
    try:
        uid = shelf.require(owner, name)
        generations = newest_first(shelf.versions(owner, name))
        if not generations:
            raise Refusal("E-DATA-030", f"nothing was pushed into {ref} yet", field=field, found=ref)
        return load(shelf, Ref(owner, name, generations[0]), uid)
    except Refusal as fault:
        if fault.code != "E-STORE-021":
            raise
        raise Refusal(
            "E-DATA-031", f"{ref} is not readable for you: {fault.message}", field=field, found=ref
        ) from fault


def resolve_volumes(root: StorageRoot, site: Site | None, refs: Sequence[str]) -> dict[str, Any]:
    """`{leaf: {ref, generation, path, digest, …}}` as launch.json keeps them. Raises Refusals, one a volume that cannot be had."""
    out: dict[str, Any] = {}
    faults: list[Refusal] = []
    for index, ref in enumerate(refs):
        field = f"spec.data.volumes[{index}]"
        try:
            out[ref.rpartition("/")[2]] = _recorded(newest(root, site, ref, field), ref)
        except Refusal as fault:
            faults.append(fault)
        except Refusals as several:
            faults += several.items
    if faults:
        raise Refusals(faults)
    return out


def _recorded(version: Version, ref: str) -> dict[str, Any]:
    record = version.folder / RECORD
    try:
        sha256 = digest_file(record)
    except OSError as exc:
        raise refusal(exc, record, "read") from exc
    return {
        "ref": ref, "generation": int(version.version), "path": str(version.content), "digest": version.digest, "digest_v2": version.digest_v2,
        "size": version.size, "files": len(version.files), "record": {"path": str(record), "sha256": sha256},
    }  # fmt: skip


def has_ended(run: RunPaths) -> bool:
    """True where the records say that nothing of this run will start again: it is done, or its last attempt ended for good, or was stopped."""
    if run.report.exists():
        return True
    attempts = [int(n) for n in _names(run.attempts) if n.isdigit()]
    submitted = [int(n.removesuffix(".json")) for n in _names(run.submissions) if n.removesuffix(".json").isdigit()]
    if not attempts or (submitted and max(submitted) > max(attempts)):
        return False
    try:
        end = read_json(run.attempt(max(attempts)).end)
    except (OSError, ValueError):
        return False
    return isinstance(end, dict) and end.get("requeue") is False


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def holders(root: StorageRoot, shelf: Shelf, ref: Ref, closed: list[str]) -> dict[str, list[str]]:
    """Generation → runs that were submitted with it and have not ended. What cannot be read goes to `closed`."""
    out: dict[str, list[str]] = {}
    base = f"{shelf.package(ref.owner, ref.name)}/"
    for run in runs(root, closed):
        try:
            volumes = read_json(run.launch).get("volumes", {})
        except FileNotFoundError:
            continue
        except (OSError, ValueError, AttributeError):
            closed.append(str(run.root))
            continue
        for volume in volumes.values() if isinstance(volumes, dict) else ():
            if str(volume.get("path", "")).startswith(base) and not has_ended(run):
                out.setdefault(str(volume.get("generation", "")), []).append(run.run_id)
    return out


def remove(by: Pusher, ref: Ref, *, old: bool = False, unseen: bool = False) -> list[str]:
    """Remove a volume, or with `old` its generations but the highest; what went. Nothing that a run needs which has not ended.

    Raises Refusal E-REG-003, E-DATA-020, E-DATA-030, E-STORE-*.
    """
    shelf = Shelf(by.root, VOLUME, site=by.site)
    package = shelf.package(ref.owner, ref.name)
    if not os.path.lexists(package):
        raise Refusal("E-DATA-030", f"there is no volume {ref.id}", found=ref.id)
    require_owner(ref, shelf.require(ref.owner, ref.name), by.user)
    closed: list[str] = []
    held = holders(by.root, shelf, ref, closed)
    if closed and not unseen:
        raise Refusal(
            "E-DATA-020", f"{len(closed)} folders of others cannot be read and may need {ref.id}", found=", ".join(closed[:5]),
            hint="let root or the service user run it, or accept that with --unseen",
        )  # fmt: skip
    generations = newest_first(shelf.versions(ref.owner, ref.name))
    if old:
        going = [g for g in generations[1:] if g not in held]
        _drop(shelf, ref, going, by)
        return going
    if held:
        names = sorted({run for several in held.values() for run in several})
        raise Refusal(
            "E-DATA-020", f"{ref.id} is needed by {len(names)} runs that have not ended", found=", ".join(names[:5])
        )
    # The newest goes last: until then the name means what it meant.
    _drop(shelf, ref, generations[::-1], by)
    trash(package)
    return generations


def _drop(shelf: Shelf, ref: Ref, generations: Sequence[str], by: Pusher) -> None:
    uid = shelf.uid(ref.owner)
    for generation in generations:
        bury(shelf, Ref(ref.owner, ref.name, generation), uid=uid, user=by.user, now=by.now)
        trash(shelf.package(ref.owner, ref.name) / generation)
