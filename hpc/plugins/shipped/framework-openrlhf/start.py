"""OpenRLHF 0.11, after what a killed save left is gone: `start.py MODULE OPTIONS…` (docs/frameworks.md).

DeepSpeed writes `latest` when a save is complete. Without it OpenRLHF's grpo takes the folder for a checkpoint all the same and stops, in each
attempt; and a half checkpoint counts as one of those to keep, so that a complete one is removed for it.
"""

import os
import re
import runpy
import shutil
import sys

TAG = re.compile(r"global_step(\d+)")


def left_behind(folder):
    """What saves that did not end left in a folder of checkpoints: those newer than `latest` names; all where it is not there."""
    try:
        with open(os.path.join(folder, "latest")) as stream:
            newest = TAG.fullmatch(stream.read().strip())
    except FileNotFoundError:
        if os.path.basename(folder) == "_actor":
            return [folder]
        newest = TAG.fullmatch("global_step0")
    if newest is None:
        return []
    tags = [TAG.fullmatch(name) for name in os.listdir(folder)]
    return [os.path.join(folder, tag[0]) for tag in tags if tag and int(tag[1]) > int(newest[1])]


def clean(path):
    """Remove what killed saves left in `path`, where that lies in this run's own folder of checkpoints."""
    own = os.path.realpath(os.environ["TUNEPLANE_CHECKPOINT_DIR"])
    for folder in (path, os.path.join(path, "_actor")):
        if not os.path.isdir(folder) or not os.path.realpath(folder).startswith(own + os.sep):
            continue
        for found in left_behind(folder):
            if os.path.isdir(found) and not os.path.islink(found):
                print("start: " + found + " is removed: its save did not end", flush=True)
                shutil.rmtree(found, ignore_errors=True)  # what stays is no worse than before


def main():
    sys.argv = sys.argv[1:]
    if os.environ.get("RANK", "0") == "0":  # a driver of Ray has no rank
        clean(sys.argv[sys.argv.index("--ckpt.path") + 1])
    sys.path[0] = os.getcwd()  # as with `python -m`
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
