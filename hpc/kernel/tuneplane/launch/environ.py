"""The documented environment of a job, as a function of the JobSpec and where it runs.

Order: identity, scheduling, profile (never overwrites), storage, recipe, network, passthrough (overwrites). Empty values are dropped, except that a
CPU-only job states its blanks, so that nothing of an outer environment can stand in for them. Variables that only a server could fill
(ingest endpoints, tokens) are not set; TUNEPLANE_JOB_ENABLED says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "WANDB_MODE": "offline",
    "PYTHONNOUSERSITE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def tracker_variables(run_id: str, run_dir: str, element: str) -> dict[str, str]:
    """One run in an experiment tracker for all attempts, its files in the run's folder. `element`: the index in an array, or ""."""
    return {"WANDB_RUN_ID": f"{run_id}-{element}" if element else run_id, "WANDB_RESUME": "allow", "WANDB_DIR": run_dir}


@dataclass(frozen=True)
class Binding:
    """Where a spec runs: the facts that are not in it. Paths are absolute, text is taken as it is."""

    user: str
    run_id: str
    attempt: int
    run_dir: str = ""
    out_dir: str = ""
    storage_root: str = ""
    private_home: str = ""
    profile: str = ""
    pin_resource: str = ""
    overrides: tuple[str, ...] = ()
    profile_env: Mapping[str, str] = field(default_factory=dict)
    passthrough: Mapping[str, str] = field(default_factory=dict)


def _pools(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Pools with the primary one (of the first role, else the first) in front."""
    pools = [dict(p) for p in spec["spec"]["resources"]["pools"]]
    roles: Mapping[str, str] = spec["spec"]["resources"].get("roles", {})
    primary = next(iter(roles.values()), pools[0]["name"])
    return sorted(pools, key=lambda p: p["name"] != primary)


def _identity(spec: Mapping[str, Any], b: Binding) -> dict[str, str]:
    provenance = spec.get("provenance", {})
    init_from = spec["spec"].get("model", {}).get("init_from") or {}
    train_run = init_from.get("run_id", "") if isinstance(init_from, Mapping) else str(init_from).split("/")[1]
    return {
        "CLUSTER_PROFILE": b.profile,
        "RUN_USER": b.user,
        "NRL_RUN_ID": b.run_id,
        "NRL_SUBMIT_USER": b.user,
        "NRL_GIT_COMMIT": provenance.get("git_commit") or "unknown",
        "NRL_GIT_DIRTY": "1" if provenance.get("git_dirty") else "0",
        "NRL_CONFIG_SHA": provenance.get("config_sha") or "none",
        "NRL_TRAIN_RUN_ID": train_run,
    }


def _scheduling(spec: Mapping[str, Any], b: Binding) -> dict[str, str]:
    pools = _pools(spec)
    first = pools[0]
    roles: Mapping[str, str] = spec["spec"]["resources"].get("roles", {})
    out = {
        "NRL_PIN_RESOURCE": b.pin_resource,
        "TUNEPLANE_CLUSTER_NUM_NODES": str(first.get("nodes", 1)),
        "TUNEPLANE_CLUSTER_GPUS_PER_NODE": str(first.get("gpus_per_node", 1)),
        "TUNEPLANE_PROFILE_OVERRIDES": json.dumps(list(b.overrides)) if b.overrides else "",
    }
    if len(pools) > 1:
        rows = [
            {
                "name": p["name"],
                "series": p.get("series", ""),
                "nodes": p.get("nodes", 1),
                "gpus_per_node": p.get("gpus_per_node", 1),
                "pin_resource": b.pin_resource,
                "roles": [role for role, pool in roles.items() if pool == p["name"]],
            }
            for p in pools
        ]
        out["TUNEPLANE_POOL_TOPOLOGY"] = json.dumps(rows)
    return out


def _storage(spec: Mapping[str, Any], b: Binding) -> dict[str, str]:
    if not b.storage_root:
        return {}
    cache = f"{b.storage_root}/cache"
    wants_dataset = spec["spec"].get("data", {}).get("output_dataset")
    return {
        "TUNEPLANE_STORAGE_ROOT": b.storage_root,
        "TUNEPLANE_RUN_DIR": b.run_dir,
        "TUNEPLANE_OUT_DIR": b.out_dir,
        "TUNEPLANE_DATASET_OUT_DIR": f"{b.out_dir}/dataset" if wants_dataset else "",
        "TUNEPLANE_DATA_CACHE": f"{cache}/datasets",
        "TUNEPLANE_HUB_CACHE": f"{cache}/hubs",
        "HF_HOME": b.private_home,
        "HF_HUB_CACHE": f"{cache}/hf/hub",
        "HF_DATASETS_CACHE": f"{cache}/hf/datasets",
        "MODELSCOPE_CACHE": f"{cache}/modelscope",
    }


def _recipe(spec: Mapping[str, Any], b: Binding) -> dict[str, str]:
    body, provenance = spec["spec"], spec.get("provenance", {})
    return {
        "TUNEPLANE_JOB_ENABLED": "0",
        "TUNEPLANE_JOB_RUN_ID": b.run_id,
        "TUNEPLANE_JOB_ATTEMPT": str(b.attempt),
        "TUNEPLANE_RECIPE": body["recipe"]["name"],
        "TUNEPLANE_RECIPE_VERSION": body["recipe"]["version"],
        "TUNEPLANE_RECIPE_DIGEST": body["recipe"]["digest"],
        "TUNEPLANE_RECIPE_PLUGINS": ",".join(body["recipe"].get("plugins", [])),
        "TUNEPLANE_FRAMEWORK": body["framework"]["kind"],
        "TUNEPLANE_FRAMEWORK_VERSION": body["framework"]["version"],
        "TUNEPLANE_RUNTIME_ID": body["framework"].get("runtime_id", ""),
        "TUNEPLANE_IMAGE": body["framework"].get("image", "") if b.storage_root else "",
        "TUNEPLANE_CORE_VERSION": provenance.get("core_version", ""),
        "TUNEPLANE_EXTERNAL_OBSERVABILITY_URL": body["framework"].get("observability_url", ""),
    }


def _network(spec: Mapping[str, Any]) -> dict[str, str]:
    network = spec["spec"]["resources"].get("network")
    if not network:
        return {}
    interface = network.get("interface", "")
    out = {"NCCL_IB_DISABLE": "1"} if network.get("transport", "tcp") == "tcp" else {}
    if interface:
        # An exact match: without `=` NCCL takes every interface with that prefix.
        out |= {"NCCL_SOCKET_IFNAME": f"={interface}", "GLOO_SOCKET_IFNAME": interface}
    return out


def job_environment(spec: Mapping[str, Any], binding: Binding) -> dict[str, str]:
    """Variables for a normalised JobSpec, empty values dropped."""
    merged = _identity(spec, binding) | _scheduling(spec, binding)
    for name, value in binding.profile_env.items():
        if not merged.get(name):
            merged[name] = value
    for part in (_storage(spec, binding), _recipe(spec, binding), _network(spec), binding.passthrough):
        merged |= part
    out = {name: value for name, value in merged.items() if value != ""}
    if _pools(spec)[0].get("gpus_per_node", 1) == 0:
        blanks = {"CLUSTER_PROFILE": "", "NRL_PIN_RESOURCE": "", "TUNEPLANE_PROFILE_OVERRIDES": "[]"}
        out = blanks | {"TUNEPLANE_POOL_TOPOLOGY": "[]"} | out
    return out
