"""Data sets and volumes of a job: the variables that name their folders, and where volumes are found.

In a container each volume is a read-only bind at VOLUMES/<leaf>, made by the batch script. Without one (the embedded fleet) a folder of links
stands in for it: the files are read-only by their modes, not by a mount.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tuneplane.contract.layout import VOLUMES
from tuneplane.launch.verify import LaunchRefused
from tuneplane.record.digest import digest_file

LAG_S = 75.0
"""How long another node's new name may stay unseen here: NFS keeps a folder's names for up to 60 s."""


def await_data(
    launch: Mapping[str, Any],
    *,
    lag_s: float = LAG_S,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Return when every record behind data sets and volumes can be seen from this node, or after `lag_s`; who needs them then says what is missing.

    A data set published or a volume pushed just before the submission may not be known to a node whose cache of names is older.
    """
    sources = [one for source in launch.get("inputs", {}).values() if (one := _of_a_shelf(source))]
    wanted = [one["record"]["path"] for one in (*sources, *launch.get("volumes", {}).values())]
    until = clock() + lag_s
    while any(not os.path.exists(path) for path in wanted) and clock() < until:
        sleep(1.0)


def _of_a_shelf(source: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What an input says of its version on a shelf: a data set's, or an environment's; None for any other input."""
    return source.get("dataset") or source.get("environment")


def data_variables(launch: Mapping[str, Any], scratch: Path) -> dict[str, str]:
    """`<NAME>_DATA_DIR` for each data set, `<NAME>_MODEL_DIR` for the model, `VOLUMES_DIR` where there are volumes, and the environment's.

    Raises LaunchRefused E-JOB-050.
    """
    out: dict[str, str] = {}
    for source in launch.get("inputs", {}).values():
        out |= source.get("variables", {})
        if dataset := source.get("dataset"):
            out[dataset["variable"]] = dataset["dir"]
        if environment := source.get("environment"):
            out |= environment_variables(environment)
    if volumes := launch.get("volumes"):
        mounted = bool(launch.get("runtime", {}).get("container"))
        out["VOLUMES_DIR"] = _mounted(volumes) if mounted else _links(volumes, scratch)
    return out


def environment_variables(environment: Mapping[str, Any]) -> dict[str, str]:
    """`TUNEPLANE_JOB_ENVIRONMENT_*` for what launch.json says of an environment. Pure."""
    out = {
        "DIR": environment["dir"],
        "ID": environment["ref"],
        "SPLIT": environment["split"],
        "PORT": str(environment["port"]),
    }
    out |= {"ENDPOINT": environment["endpoint"]} if environment.get("endpoint") else {}
    return {f"TUNEPLANE_JOB_ENVIRONMENT_{name}": value for name, value in out.items()}


def volume_note(launch: Mapping[str, Any]) -> str:
    """What the log says of the job's volumes, "" where it has none. Pure."""
    volumes = launch.get("volumes")
    if not volumes:
        return ""
    named = ", ".join(f"{v['ref']} (generation {v['generation']})" for _, v in sorted(volumes.items()))
    if launch.get("runtime", {}).get("container"):
        return f"volumes, read-only below {VOLUMES}: {named}"
    return f"volumes: {named}; no container here, so they are links, read-only by the modes of the files alone"


def _mounted(volumes: Mapping[str, Any]) -> str:
    for leaf, volume in volumes.items():
        place = f"{VOLUMES}/{leaf}"
        try:
            same = os.path.samestat(os.stat(place), os.stat(volume["path"]))
        except OSError as exc:
            raise LaunchRefused("E-JOB-050", f"volume {volume['ref']}: {place}: {exc.strerror or exc}") from exc
        if not same:
            raise LaunchRefused("E-JOB-050", f"volume {volume['ref']}: {place} is not what was recorded")
    return VOLUMES


def _links(volumes: Mapping[str, Any], scratch: Path) -> str:
    folder = scratch / "volumes"
    folder.mkdir(exist_ok=True)
    for leaf, volume in volumes.items():
        link = folder / leaf
        if not link.is_symlink():
            link.symlink_to(volume["path"])
    return str(folder)


def verify_data(launch: Mapping[str, Any]) -> list[dict[str, str]]:
    """Compare the registry's records behind data sets and volumes with those of the submission; as the user, so access is checked, too.

    One row each. Raises LaunchRefused E-JOB-009 (a data set), E-JOB-050 (a volume).
    """
    rows = []
    for name, source in sorted(launch.get("inputs", {}).items()):
        if one := _of_a_shelf(source):
            rows.append(_record(f"input {name} ({one['ref']})", one["record"], one["dir"], "E-JOB-009"))
    for leaf, volume in sorted(launch.get("volumes", {}).items()):
        rows.append(_record(f"volume {leaf} ({volume['ref']})", volume["record"], volume["path"], "E-JOB-050"))
    return rows


def _record(what: str, record: Mapping[str, str], folder: str, code: str) -> dict[str, str]:
    try:
        os.listdir(folder)
        found = digest_file(record["path"])
    except OSError as exc:
        raise LaunchRefused(code, f"{what}: {exc.filename or record['path']}: {exc.strerror or exc}") from exc
    if found != record["sha256"]:
        raise LaunchRefused(code, f"{what}: the registry's record changed: spec={record['sha256']} actual={found}")
    return {"input": what, "path": record["path"], "checked": "record"}
