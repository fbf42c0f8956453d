"""What a submission adds to launch.json for data beyond its inputs: volumes, the planned output, and the figures of the quality gates."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuneplane.contract.layout import StorageRoot

from hpc.errors import Refusal, Refusals
from hpc.spec.refs import parse_hub_ref
from hpc.submit.engine import engine_faults

if TYPE_CHECKING:
    from hpc.site.sitefile import Site
    from hpc.submit.inputs import Digest
    from hpc.submit.prepare import Around


def data_records(
    around: Around,
    spec: Mapping[str, Any],
    inputs: Mapping[str, Any],
    options: Mapping[str, Any],
    digest: Digest,
    where: Callable[[str], Path],
) -> dict[str, Any]:
    """`volumes`, `output_dataset` and `quality`, each only where the spec asks for it. Raises Refusals, all at once; gates last.

    `where`: the place of an input's path now; the package is not written yet.
    """
    data = spec["spec"].get("data", {})
    out: dict[str, Any] = {}
    faults = engine_faults(spec, inputs, where)
    if refs := data.get("volumes"):
        from hpc.data.volumes import resolve_volumes

        try:
            out["volumes"] = resolve_volumes(around.root, around.site, refs)
        except Refusals as several:
            faults += several.items
    if ref := data.get("output_dataset"):
        from hpc.data.output import plan_output

        try:
            out["output_dataset"] = plan_output(
                around.root, around.site, around.user, ref, array=bool(options.get("array"))
            )
        except Refusal as fault:
            faults.append(fault)
    if faults:
        raise Refusals(faults)
    if any(value is not None for key, value in data.get("quality", {}).items() if key.startswith("max_")):
        from hpc.submit.gates import gate_record

        out["quality"] = gate_record(around, data["quality"], inputs, digest, where)
    return out


def admission_refusals(
    root: StorageRoot, site: Site, owner: str, spec: Mapping[str, Any], launch: Mapping[str, Any]
) -> list[Refusal]:
    """What launch.json says of data against the spec and the registry; read from the package, so the submitter wrote it.

    Data that the one who admits may not read is left to the job, which compares it as its owner.
    """
    data, faults = spec["spec"].get("data", {}), []
    inputs = _mapping(launch.get("inputs"))
    for name in ("train", "validation"):
        ref = (data.get(name) or {}).get("dataset", "")
        if ref and parse_hub_ref(ref, kind="dataset").hub == "tp":
            faults += _record_faults(root, site, name, ref, _mapping(_mapping(inputs.get(name)).get("dataset")))
    if ref := data.get("environment", ""):
        recorded = _mapping(_mapping(inputs.get("environment")).get("environment"))
        faults += _record_faults(root, site, "environment", ref, recorded)
    volumes = _mapping(launch.get("volumes"))
    if sorted(str(_mapping(v).get("ref")) for v in volumes.values()) != sorted(data.get("volumes", [])):
        faults.append(
            Refusal(
                "E-SUBMIT-075",
                "has not the volumes of the spec",
                field="launch.volumes",
                found=", ".join(volumes)[:200],
            )
        )
    faults += [
        Refusal(
            "E-SUBMIT-075",
            "lies not on the shelf under its name",
            field=f"launch.volumes.{leaf}",
            found=str(volume)[:200],
        )
        for leaf, volume in volumes.items()
        if not _is_generation(root, str(leaf), _mapping(volume))
    ]
    output = _mapping(launch.get("output_dataset"))
    place = str(root.shelf("datasets") / owner / str(output.get("name")))
    if (output.get("ref") or "") != data.get("output_dataset", "") or (
        output and (output.get("owner"), output.get("folder")) != (owner, place)
    ):
        faults.append(
            Refusal(
                "E-SUBMIT-075",
                "is not the output of the spec",
                field="launch.output_dataset",
                found=str(output.get("ref"))[:200],
            )
        )
    return faults


def _is_generation(root: StorageRoot, leaf: str, volume: Mapping[str, Any]) -> bool:
    """True if the path that will be mounted is the content of a generation of the volume that is named."""
    ref, generation = str(volume.get("ref")), volume.get("generation")
    place = root.shelf("volumes") / ref / str(generation) / "content"
    return type(generation) is int and volume.get("path") == str(place) and leaf == ref.rpartition("/")[2]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _record_faults(root: StorageRoot, site: Site, name: str, ref: str, recorded: Mapping[str, Any]) -> list[Refusal]:
    """What launch.json says of a version of a shelf (a data set, or the environment) against the shelf."""
    from hpc.data.kinds import DATASET
    from hpc.plugins.environment_shelf import ENVIRONMENT
    from hpc.registry.resolve import resolve
    from hpc.registry.shelf import parse_ref

    kind = ENVIRONMENT if name == "environment" else DATASET
    field, said = f"launch.inputs.{name}.{kind.name}", str(recorded.get("ref", ""))
    if said != ref and not said.startswith(f"{ref}@"):
        return [
            Refusal("E-SUBMIT-075", f"is not the {kind.name} of the spec", field=field, found=said[:200], allowed=ref)
        ]
    try:
        version = resolve(root, kind, parse_ref(said, field), site=site, for_new=False)
    except Refusal as fault:
        return [] if fault.code == "E-STORE-021" else [fault]
    except Refusals as several:
        return several.items
    if (recorded.get("digest_v2"), recorded.get("dir")) != (version.digest_v2, str(version.content)):
        return [
            Refusal(
                "E-SUBMIT-075",
                "is not the version on the shelf",
                field=field,
                found=str(recorded.get("digest_v2"))[:80],
                allowed=version.digest_v2,
            )
        ]
    return []


def make_ready(around: Around, launch: Mapping[str, Any], now: str) -> None:
    """Make what the job's container mounts and that must exist by then. Raises Refusal E-SITE-*, E-STORE-*."""
    if launch.get("output_dataset"):
        from hpc.data.output import make_place
        from hpc.data.push import Pusher
        from hpc.site.users import User

        user = User(around.user, around.uid, os.getgid())
        make_place(Pusher(around.root, around.site, user, now), launch["output_dataset"])
