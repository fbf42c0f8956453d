"""verl 0.9, after checkpoints of earlier attempts are thinned: `start.py MODULE OPTION=VALUE…` (docs/frameworks.md).

verl counts what it saved itself since it began: what an earlier attempt left would stay for good, as many as are to be kept for each attempt.
"""

import os
import re
import runpy
import shutil
import sys

STEP = re.compile(r"global_step_(\d+)")
KEEP = ("trainer.max_actor_ckpt_to_keep", "trainer.max_ckpt_to_keep")


def too_old(folder, keep):
    """Checkpoints before the `keep` newest of those that verl's tracker knows, which end with the one that a run goes on from; none without it."""
    try:
        with open(os.path.join(folder, "latest_checkpointed_iteration.txt")) as stream:
            newest = int(stream.read())
    except (FileNotFoundError, ValueError):
        return []
    steps = sorted(int(step[1]) for step in map(STEP.fullmatch, os.listdir(folder)) if step)
    return [os.path.join(folder, "global_step_" + str(n)) for n in [n for n in steps if n <= newest][:-keep]]


def clean(folder, keep):
    """Remove checkpoints that are too old in `folder`, where that lies in this run's own folder of checkpoints."""
    own = os.path.realpath(os.environ["TUNEPLANE_CHECKPOINT_DIR"])
    if not os.path.isdir(folder) or not os.path.realpath(folder).startswith(own + os.sep):
        return
    for found in too_old(folder, keep):
        if os.path.isdir(found) and not os.path.islink(found):
            print("start: " + found + " is removed: an earlier attempt left more than " + str(keep), flush=True)
            shutil.rmtree(found, ignore_errors=True)


def main():
    sys.argv = sys.argv[1:]
    if os.environ.get("RANK", "0") == "0":  # a driver of Ray has no rank
        options = dict(word.split("=", 1) for word in sys.argv[1:])
        keep = next(int(options[name]) for name in KEEP if name in options)
        clean(options["trainer.default_local_dir"].strip("'"), keep)
    sys.path[0] = os.getcwd()  # as with `python -m`
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
