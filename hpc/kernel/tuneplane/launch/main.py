"""`python3 -I verifier.zip node | finish`: the two things that the batch script asks of the kernel."""

from __future__ import annotations

import os
import sys

from tuneplane.contract import exits
from tuneplane.launch.finish import finish
from tuneplane.launch.node import run_node, say
from tuneplane.launch.place import read_place
from tuneplane.launch.verify import LaunchRefused


def main(argv: list[str] | None = None) -> int:
    """`node` runs one node and returns its exit code; `finish` prints its word and returns 0."""
    words = sys.argv[1:] if argv is None else argv
    if words not in (["node"], ["finish"]):
        print("usage: node | finish", file=sys.stderr)
        return exits.USAGE
    try:
        place = read_place()
        if words == ["node"]:
            return run_node(place, os.environ)
        print(finish(place, os.environ))
    except LaunchRefused as exc:
        say(str(exc))
        return exits.LAUNCH_FAILED
    return exits.DONE


if __name__ == "__main__":
    sys.exit(main())
