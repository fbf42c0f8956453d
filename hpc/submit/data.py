"""What a submission adds to launch.json for data beyond its inputs: volumes, the planned output, and the figures of the quality gates."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc.errors import Refusal, Refusals

if TYPE_CHECKING:
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
    faults: list[Refusal] = []
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


def make_ready(around: Around, launch: Mapping[str, Any], now: str) -> None:
    """Make what the job's container mounts and that must exist by then. Raises Refusal E-SITE-*, E-STORE-*."""
    if launch.get("output_dataset"):
        from hpc.data.output import make_place
        from hpc.data.push import Pusher
        from hpc.site.users import User

        user = User(around.user, around.uid, os.getgid())
        make_place(Pusher(around.root, around.site, user, now), launch["output_dataset"])
