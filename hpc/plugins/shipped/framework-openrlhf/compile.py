"""OpenRLHF 0.11: flags. Reads the request from stdin and writes the launch plan to stdout (docs/frameworks.md)."""

import json
import sys


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
    if config["engines"]:
        together = request["hyperparams"]["tensor_parallel"]
        if nodes * gpus % together:
            sys.exit(f"tensor_parallel {together} does not divide {nodes * gpus} GPUs")
        owned["vllm.num_engines"] = nodes * gpus // together
    given = {request["paths"][name]: value for name, value in request["hyperparams"].items()}
    if both := sorted(owned.keys() & given.keys()):
        sys.exit("the platform sets " + ", ".join(both))
    argv = ["$PYTHON", "-u", "-m", config["module"]]
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
