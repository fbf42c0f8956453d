"""OpenRLHF 0.11: flags. Reads the request from stdin and writes the launch plan to stdout (docs/frameworks.md)."""

import json
import sys

START = "${TUNEPLANE_WORK_DIR}/tuneplane_plugins/framework-openrlhf/start.py"
"""What lies beside this file, in the job."""


def placed(groups, given):
    """Options that put actor, reference and rollout on the pools of their groups; all share every GPU where there is one group."""
    at = {role: group for group in groups for role in group["roles"]}
    out = {}
    for role, name in (("actor", "actor"), ("reference", "ref")):
        out[name + ".num_nodes"] = at[role]["nodes"]
        out[name + ".num_gpus_per_node"] = at[role]["gpus_per_node"]
    together = given["tensor_parallel"]
    engines, left = divmod(at["rollout"]["nodes"] * at["rollout"]["gpus_per_node"], together)
    if left:
        sys.exit(f"tensor_parallel {together} does not divide {engines * together + left} GPUs")
    out["vllm.num_engines"] = engines
    if len(groups) == 1:
        return {**out, "train.colocate_all": True, "vllm.enable_sleep": True, "ds.enable_sleep": True}
    shared = at["actor"] is at["reference"]
    if not shared and not given["kl_coef"]:
        sys.exit("with kl_coef 0 there is no reference model: give it no pool of its own")
    return {**out, "train.colocate_actor_ref": shared}


def main():
    request = json.load(sys.stdin)
    config, shape = request["config"], request["shape"]
    nodes, gpus = shape["nodes"], shape["gpus_per_node"]
    if not gpus:
        sys.exit("OpenRLHF trains on GPUs: choose a profile that has some")
    sources = {**request["inputs"], **request["places"], "nodes": nodes, "gpus_per_node": gpus}
    owned = dict(config["fixed"])
    for flag, source in config["bindings"].items():
        if source in sources:  # validation rows are not a must
            value = sources[source]
            owned[flag] = value + config["suffixes"][flag] if flag in config["suffixes"] else value
    owned.update(dict.fromkeys(config["flags"], True))
    if config["roles"]:
        owned.update(placed(request["placement"], request["hyperparams"]))
    given = {request["paths"][name]: value for name, value in request["hyperparams"].items()}
    if both := sorted(owned.keys() & given.keys()):
        sys.exit("the platform sets " + ", ".join(both))
    argv = ["$PYTHON", "-u", START, config["module"]]
    for flag, value in sorted({**given, **owned}.items()):
        if value is not False:  # a switch that is off is not there
            argv += ["--" + flag] if value is True else ["--" + flag, str(value)]
    plan = {
        "contract_version": 1,
        "launch_mode": config["launch_mode"],
        "argv": argv,
        "env": {},
        "files": {},
        "summary": request["profile"]["method"] + " on " + str(nodes) + " x " + str(gpus) + " GPUs",
    }
    json.dump(plan, sys.stdout, sort_keys=True)


main()
