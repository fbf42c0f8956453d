"""A checkpoint for another number of ranks, by DeepSpeed's universal checkpoint: one file a parameter and moment, whatever wrote them."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from tuneplane.training.child import run
from tuneplane.training.going import size_below
from tuneplane.training.refusals import refuse

_LAST_LINES = 4


def universal(source: Path, target: Path, bound_s: float) -> None:
    """Convert a checkpoint's `deepspeed` folder into `target`, by DeepSpeed's own program, which may write nothing for `bound_s` seconds.

    Needs as much disk as the checkpoint twice over, and the memory of a few parts at a time. Raises Refused; Warned when a warning comes.
    """
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    workers = str(max(1, min(4, len(os.sched_getaffinity(0)))))
    command = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--inject_missing_state"]
    command += ["--input_folder", os.fspath(source), "--output_folder", os.fspath(target)]
    command += ["--num_extract_workers", workers, "--num_merge_workers", workers]
    env = os.environ | {"CUDA_VISIBLE_DEVICES": ""}  # files become files: no GPU has a part in it
    with tempfile.TemporaryFile() as said:
        code = run(command, env, bound_s, stdout=said, stderr=said, seen=lambda: size_below(target))
        if code != 0:
            said.seek(0)
            lines = said.read().decode(errors="replace").splitlines()[-_LAST_LINES:]
            how = f"wrote nothing for {bound_s:.0f} s" if code is None else f"ended with exit code {code}"
            raise refuse("E-TRAIN-050", f"the converter {how}", field=os.fspath(source), found=" | ".join(lines))
