"""What a finished run's report says of where it came from: everything that the job itself knows, each by digest. What it cannot know is None.

Accounting's figures are not among it: they are there only when the job is over, and are joined when the report is read.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

import tuneplane
from tuneplane.contract import schemas
from tuneplane.contract.layout import RunPaths
from tuneplane.contract.sweeps import INDEX, variant_of
from tuneplane.launch.place import Place
from tuneplane.record.digest import digest_bytes, digest_json
from tuneplane.record.files import read_bytes, read_object
from tuneplane.record.times import utc_now


def provenance(
    place: Place, spec: Mapping[str, Any], launch: Mapping[str, Any], recipe: Mapping[str, Any], env: Mapping[str, str]
) -> dict[str, Any]:
    """The block `tuneplane-hpc/provenance/v1` of report.json."""
    result = read_object(place.attempt.out / "result.json") or {}
    submission = _submission(place)
    return {
        "schema": schemas.PROVENANCE,
        "recorded_at": utc_now(),
        "software": {
            "core": tuneplane.__version__, "python": platform.python_version(), "platform": platform.system().lower(),
            "arch": platform.machine(), "kernel": launch.get("kernel", {}), "versions": result.get("versions"),
        },
        "container": launch.get("runtime", {}),
        "execution": {
            "fleet": launch.get("fleet"), "backend": recipe.get("framework"), "entry": launch.get("entry"), "shape": launch.get("shape"),
            "script_sha256": env.get("TP_SCRIPT_SHA256") or None, "template": submission.get("template"),
            "template_sha256": submission.get("template_sha256"), "template_parts": submission.get("template_parts"),
            "environment": _environments(place),
        },
        "slurm": _slurm(place, launch, env),
        "spec": {
            "spec_sha256": digest_json(spec), "launch_sha256": digest_json(launch), "recipe_sha256": digest_json(recipe),
            "config_sha256": (spec.get("provenance") or {}).get("config_sha") or None,
        },
        "git": {
            "commit": (spec.get("provenance") or {}).get("git_commit") or None,
            "dirty": bool((spec.get("provenance") or {}).get("git_dirty")), "diff_sha256": launch.get("git_diff_sha256"),
        },
        "model": _input(launch, "model"),
        "data": {name: _input(launch, name) for name in launch.get("inputs", {}) if name != "model"},
        "training": {
            "hyperparams": {**launch.get("hyperparams", {}), **_variant(place, env)}, "peft": launch.get("peft"),
            "variant": _variant(place, env) or None, "deepspeed_config_sha256": result.get("deepspeed_config_sha256"),
            "samples_sha256": result.get("samples_sha256"),
        },
        "used": used(place),
    }  # fmt: skip


def used(place: Place) -> dict[str, Any]:
    """CPU seconds of all ranks and the largest one's memory in bytes, from the nodes' ends; None where a node did not say."""
    ends = [(read_object(place.attempt.nodes / f"{k}.end.json") or {}).get("used") for k in range(len(place.hosts))]
    known = [u for u in ends if isinstance(u, dict)]
    whole = len(known) == len(ends)
    return {
        "cpu_s": round(sum(float(u["cpu_s"]) for u in known), 3) if whole else None,
        "largest_process_bytes": max(int(u["largest_process_bytes"]) for u in known) if whole and known else None,
    }


def _slurm(place: Place, launch: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    pools = (launch.get("shape") or {}).get("pools") or []

    def number(name: str) -> int | None:
        return int(env[name]) if env.get(name, "").isdecimal() else None

    return {
        "job_id": place.job_id, "cluster": place.cluster or None, "partition": env.get("SLURM_JOB_PARTITION") or None,
        "account": env.get("SLURM_JOB_ACCOUNT") or None, "nodes": list(place.hosts), "restart_count": place.restart_count,
        "gpus": sum(p["nodes"] * p["gpus_per_node"] for p in pools) if pools else None,
        "cpus_per_node": number("SLURM_CPUS_PER_TASK"), "memory_mb_per_node": number("SLURM_MEM_PER_NODE"),
        "time_limit_s": number("TP_TIME_S"), "options": launch.get("options", {}),
    }  # fmt: skip


def _submission(place: Place) -> dict[str, Any]:
    """The record of the submission that this attempt is of: the newest that is not later."""
    root = place.run.root
    run = RunPaths(root.parents[1]) if root.parent.name == "array" else place.run
    try:
        firsts = [int(p.stem) for p in run.submissions.glob("*.json") if p.stem.isdecimal()]
    except OSError:
        return {}
    first = max((n for n in firsts if n <= place.attempt.number), default=None)
    return {} if first is None else read_object(run.submissions / f"{first}.json") or {}


def _environments(place: Place) -> dict[str, str]:
    """SHA-256 of the environment at each layer: the batch step, each node's step, the first rank."""
    out = {}
    for path in sorted(place.attempt.root.glob("env-*.sha256")):
        out[path.name[4:-7]] = "sha256:" + read_bytes(path, limit=4096).decode("ascii", "replace").strip()
    if place.attempt.env.is_file():
        out["rank-0"] = digest_bytes(read_bytes(place.attempt.env))
    return out


def _input(launch: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    found = (launch.get("inputs") or {}).get(name)
    if not isinstance(found, Mapping):
        return None
    kept = {k: found[k] for k in ("path", "dataset", "model", "revision", "method") if k in found}
    return {**kept, "content_sha256": digest_json(found["files"]) if found.get("files") else None}


def _variant(place: Place, env: Mapping[str, str]) -> dict[str, Any]:
    try:
        return variant_of(place.work, env) if env.get(INDEX) else {}
    except (OSError, ValueError):
        return {}
