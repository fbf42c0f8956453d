"""verl 0.9: one Hydra override a value. Reads the request from stdin and writes the launch plan to stdout (docs/frameworks.md)."""

import json
import re
import sys

START = "${TUNEPLANE_WORK_DIR}/tuneplane_plugins/framework-verl/start.py"
"""What lies beside this file, in the job."""
PLAIN = re.compile(r"[A-Za-z0-9_./-]+")


def hydra(value):
    """A value as Hydra's grammar reads it back."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ",".join(hydra(item) for item in value) + "]"
    if not isinstance(value, str) or PLAIN.fullmatch(value):
        return str(value)
    return "'" + value.replace("'", "\\'") + "'"


def main():
    request = json.load(sys.stdin)
    config, shape = request["config"], request["shape"]
    if not shape["gpus_per_node"]:
        sys.exit("verl trains on GPUs: choose a profile that has some")
    sources = {
        **request["inputs"],
        **request["places"],
        "nodes": shape["nodes"],
        "gpus_per_node": shape["gpus_per_node"],
    }
    owned = dict(config["fixed"])
    for path, source in config["bindings"].items():
        value = sources[source]
        owned[path] = value + config["suffixes"][path] if path in config["suffixes"] else value
    for path, name in config.get("same", {}).items():  # a second option with the value of a parameter
        owned[path] = request["hyperparams"][name]
    given = {request["paths"][name]: value for name, value in request["hyperparams"].items()}
    if both := sorted(owned.keys() & given.keys()):
        sys.exit("the platform sets " + ", ".join(both))
    words = [path + "=" + hydra(value) for path, value in sorted({**given, **owned}.items())]
    plan = {
        "contract_version": 1,
        "launch_mode": config["launch_mode"],
        "argv": ["$PYTHON", "-u", START, config["module"], *words],
        "env": config["env"],
        "files": {},
        "summary": request["profile"]["method"]
        + " on "
        + str(shape["nodes"])
        + " x "
        + str(shape["gpus_per_node"])
        + " GPUs",
    }
    json.dump(plan, sys.stdout, sort_keys=True)


main()
