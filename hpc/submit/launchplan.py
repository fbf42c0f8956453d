"""launch.json: everything the job needs beyond the spec, derived by rules that admission runs again on the package's own bytes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tuneplane.contract import schemas
from tuneplane.record.digest import digest_json

from hpc.errors import Refusal
from hpc.spec.durations import parse_time

if TYPE_CHECKING:
    from hpc.catalog.recipes import Recipe
    from hpc.site.sitefile import Site
    from hpc.spec.jobspec import JobSpec

RENDEZVOUS_S = 300
PEER_GRACE_S = 20
NODE_GRACE_S = 90
NODE_VERDICT_S = 330
"""Slurm takes a silent node for dead after SlurmdTimeout, 300 s unless a site says otherwise."""


def kind_of(recipe: Recipe) -> str:
    """What starts the entry: `rank` (once a rank), `node` (once a node: a script), `ray` (once, by a Ray that is formed on all nodes)."""
    if recipe.orchestrator == "ray":
        return "ray"
    return "node" if recipe.is_custom or recipe.orchestrator is None else "rank"


def is_per_node(recipe: Recipe) -> bool:
    """True where one process a node is started, not one a rank."""
    return kind_of(recipe) != "rank"


def needs_whole_nodes(recipe: Recipe) -> bool:
    """True where no other job may be on the nodes: Ray knows one cluster a node, and a driver that ends stops every Ray of its user there."""
    return kind_of(recipe) == "ray"


def merged_options(spec: JobSpec, site: Site, profile: Any, recipe: Recipe) -> dict[str, Any]:
    """Batch words without empty values: the spec's, then what its method needs, the profile's partition, the site's defaults."""
    from hpc.spec.slurm_options import SlurmOptions

    own = spec.spec.slurm or SlurmOptions()
    options = own.merged(dict(site.slurm.defaults)).model_dump(exclude_none=True)
    if profile.partition and not own.partition:
        options["partition"] = profile.partition
    if own.exclusive is None and needs_whole_nodes(recipe):
        options["exclusive"] = True
    return {k: v for k, v in options.items() if v not in ("", None)}


def whole_node_notes(spec: JobSpec, recipe: Recipe, fleet_kind: str) -> list[str]:
    """What a submitter hears of nodes that are asked for as a whole although nobody said so."""
    stated = spec.spec.slurm is not None and spec.spec.slurm.exclusive is not None
    if stated or fleet_kind == "local" or not needs_whole_nodes(recipe):
        return []
    return [f"{recipe.id} runs on Ray, which wants whole nodes: the job asks for --exclusive"]


def entry_of(
    recipe: Recipe, version: str, work: str, plan: Mapping[str, Any] | None = None, action: str = ""
) -> dict[str, Any]:
    """`{kind: rank|node|ray, argv}` of a recipe's entrypoint; `$PYTHON` is the job's own interpreter, the folder is the experiment's.

    With a framework integration the command is its launch plan's, and the entry carries the plan's digest.
    """
    if plan is not None:
        return {"kind": kind_of(recipe), "argv": list(plan["argv"]), "plan": digest_json(plan)}
    # An evaluation has a recipe of its own, whose entry it is; another action is one of the recipe of the run that it follows.
    point = recipe.typed.lifecycle[action] if action in recipe.typed.lifecycle else recipe.entrypoint(version)
    if point.kind == "module":
        argv = ["$PYTHON", "-u", "-m", point.value]
    else:
        path = (
            point.value
            if point.kind == "experiment"
            else f"{work}/tuneplane_recipes/{recipe.id}/template/{point.value}"
        )
        argv = ["/bin/bash", path] if path.endswith(".sh") else ["$PYTHON", "-u", path]
    return {"kind": kind_of(recipe), "argv": argv}


def shape_of(spec: JobSpec, recipe: Recipe) -> dict[str, Any]:
    """Nodes, ranks and GPUs of every pool, and the world they make."""
    pools: list[dict[str, Any]] = [
        {
            "name": p.name,
            "nodes": p.nodes,
            "gpus_per_node": p.gpus_per_node,
            "ranks_per_node": 1 if is_per_node(recipe) else p.ranks,
        }
        for p in spec.spec.resources.pools
    ]
    first = pools[0]
    return {
        "pools": pools,
        "nodes": sum(p["nodes"] for p in pools),
        "ranks_per_node": first["ranks_per_node"],
        "gpus_per_node": first["gpus_per_node"],
        "world_size": sum(p["nodes"] * p["ranks_per_node"] for p in pools),
    }


def policies_of(spec: JobSpec, site: Site, options: Mapping[str, Any]) -> dict[str, Any]:
    """What the kernel may decide by itself: which ends run again, how often, and every deadline in seconds."""
    lifecycle = spec.spec.lifecycle
    again = list(lifecycle.requeue_on) if options.get("requeue") is not False else []
    return {
        "requeue_on": again,
        "max_attempts": lifecycle.max_attempts,
        "lead_s": lead_of(options, site),
        "rendezvous_timeout_s": RENDEZVOUS_S,
        "peer_grace_s": PEER_GRACE_S,
        "peer_timeout_s": site.slurm.peer_timeout_s,
        "start_timeout_s": site.slurm.start_timeout_s,
        "save_timeout_s": site.slurm.save_timeout_s,
        "node_grace_s": NODE_GRACE_S,
        "node_verdict_s": NODE_VERDICT_S,
    }


def lead_of(options: Mapping[str, Any], site: Site) -> int:
    """Seconds between the warning and the end of the time limit."""
    if options.get("signal"):
        from hpc.spec.signals import parse_signal

        return parse_signal(str(options["signal"])).lead_s
    return int(site.slurm.signal_lead_s)


def limit_refusals(
    options: Mapping[str, Any], site: Site, spec: JobSpec, recipe: Recipe, *, fleet: str, swept: bool = False
) -> list[Refusal]:
    """The site's own limits, before Slurm would let the job wait for ever. `swept`: each element of the array has its own variant."""
    local = fleet in site.fleets and site.fleets[fleet].kind == "local"
    limits, out = site.slurm.limits, []
    nodes = sum(p.nodes for p in spec.spec.resources.pools)
    wanted = parse_time(str(options["time"])) if options.get("time") else None
    allowed = parse_time(limits.time) if limits.time else None
    if wanted is not None and allowed is not None and wanted > allowed:
        out.append(
            Refusal(
                "E-SUBMIT-060",
                "more time than the site allows",
                field="spec.slurm.time",
                found=options["time"],
                allowed=limits.time,
            )
        )
    if limits.nodes and nodes > limits.nodes:
        out.append(
            Refusal(
                "E-SUBMIT-060",
                "more nodes than the site allows",
                field="spec.resources.pools",
                found=nodes,
                allowed=str(limits.nodes),
            )
        )
    if options.get("array") and kind_of(recipe) != "node" and not swept:
        out.append(
            Refusal(
                "E-SUBMIT-065", "this recipe trains one model a job", field="spec.slurm.array", found=options["array"]
            )
        )
    for key, choices in (("partition", limits.partitions), ("account", limits.accounts)):
        if choices and options.get(key) and options[key] not in choices:
            out.append(
                Refusal(
                    "E-SUBMIT-060",
                    f"not one of the site's {key}s",
                    field=f"spec.slurm.{key}",
                    found=options[key],
                    allowed=", ".join(choices),
                )
            )
    if needs_whole_nodes(recipe) and not local and not options.get("exclusive"):
        text = f"{recipe.id} runs on Ray, which wants whole nodes"
        out.append(
            Refusal("E-SUBMIT-069", text, field="spec.slurm.exclusive", found="false", allowed="true, or nothing")
        )
    warned = local or bool(options.get("signal")) or kind_of(recipe) != "node"
    if wanted is not None and warned and wanted <= (lead := lead_of(options, site)):
        text = f"the warning comes {lead} s before the limit, so at the start"
        out.append(Refusal("E-SUBMIT-067", text, field="spec.slurm.time", found=options["time"]))
    return out + _signal_refusals(options) + (_local_refusals(spec, nodes, swept) if local else [])


def _signal_refusals(options: Mapping[str, Any]) -> list[Refusal]:
    """A warning that would kill the batch script instead of reaching the ranks."""
    from hpc.spec.signals import WARNINGS, parse_signal

    asked = parse_signal(str(options["signal"])) if options.get("signal") else None
    if asked is None or asked.name in WARNINGS:
        return []
    return [
        Refusal(
            "E-SUBMIT-068",
            "the batch script would die of it",
            field="spec.slurm.signal",
            found=options["signal"],
            allowed=f"USR2@{asked.lead_s}",
        )
    ]


def _local_refusals(spec: JobSpec, nodes: int, swept: bool) -> list[Refusal]:
    """Words that the local fleet would not heed: it runs one script, once, now, on this machine. What a sweep is told is the sweep's."""
    own = spec.spec.slurm
    asked: dict[str, Any] = {f"spec.slurm.{key}": getattr(own, key, "") for key in ("array", "dependency", "begin")}
    if swept:
        asked.pop("spec.slurm.array")
    asked["spec.resources.pools"] = f"{nodes} nodes" if nodes > 1 else ""
    text = "the fleet is this machine: one node, one job, now"
    return [Refusal("E-SUBMIT-066", text, field=field, found=found) for field, found in asked.items() if found]


def launch_document(
    spec: JobSpec, recipe: Recipe, site: Site, *, options: Mapping[str, Any], work: str, given: Mapping[str, Any],
    plan: Mapping[str, Any] | None = None, action: str = "",
) -> dict[str, Any]:  # fmt: skip
    """launch.json. `given` holds what rules cannot derive: profile names and environment, inputs, runtime, kernel, config; `plan` is plan.json."""
    version = spec.spec.framework.version
    return {
        "schema": "tuneplane-hpc/launch/v1",
        "jobspec": schemas.JOBSPEC,
        "entry": entry_of(recipe, version, work, plan, action),
        "shape": shape_of(spec, recipe),
        "hyperparams": recipe.resolve(dict(spec.spec.hyperparams), version),
        "peft": spec.normalised()["spec"].get("model", {}).get("peft"),
        "policies": policies_of(spec, site, options),
        "network": {
            "gloo_interfaces": list(site.network.gloo_interfaces),
            "nccl_interfaces": list(site.network.nccl_interfaces),
            "hcas": list(site.network.hcas),
        },
        **given,
    }
