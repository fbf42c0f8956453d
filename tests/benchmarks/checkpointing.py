"""The write of a checkpoint of 135M parameters, trained whole in fp32 by one rank: against write, fsync and SHA-256 of the same bytes."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from pathlib import Path
from typing import Any

from report import Figure, bound
from timing import Samples

ROUNDS = 4
_SHAPES = {"hidden": 576, "inner": 1536, "keys": 192, "layers": 30, "vocabulary": 49152}
"""SmolLM2-135M's."""


def state() -> dict[str, Any]:
    """What ZeRO-2 on one rank saves: the weights as views of one buffer, their fp32 copies, both moments."""
    import torch

    hidden, inner, keys = _SHAPES["hidden"], _SHAPES["inner"], _SHAPES["keys"]
    layer = (
        [(hidden, hidden)] * 2 + [(keys, hidden)] * 2 + [(inner, hidden)] * 2 + [(hidden, inner), (hidden,), (hidden,)]
    )
    shapes = [(_SHAPES["vocabulary"], hidden)] + layer * _SHAPES["layers"] + [(hidden,)]
    flat = torch.randn(sum(torch.Size(s).numel() for s in shapes))
    module, start = {}, 0
    for number, shape in enumerate(shapes):
        size = torch.Size(shape).numel()
        module[f"weight{number}"] = flat[start : start + size].view(shape)
        start += size
    moments = {0: {"exp_avg": torch.randn_like(flat), "exp_avg_sq": torch.rand_like(flat), "step": torch.tensor(9.0)}}
    inner_state = {"base_optimizer_state": {"state": moments}, "single_partition_of_fp32_groups": [flat.clone()]}
    return {"model": {"module": module}, "optim": {"optimizer_state_dict": inner_state}}


def plainly(folder: Path, blocks: list[memoryview]) -> float:
    """Seconds to write the same bytes into two files, hash and sync them, and do nothing else."""
    begin = time.perf_counter()
    for number, block in enumerate(blocks):
        sha = hashlib.sha256()
        with open(folder / f"plain{number}", "wb") as stream:
            for at in range(0, len(block), 1 << 20):
                piece = block[at : at + (1 << 20)]
                sha.update(piece)
                stream.write(piece)
            stream.flush()
            os.fsync(stream.fileno())
    return time.perf_counter() - begin


def checkpoints(folder: Path) -> list[Figure]:
    """Rounds in turn; the step loop stands still for the copy alone."""
    import torch
    from tuneplane.training.randomness import random_state
    from tuneplane.training.shards import Copies, Part
    from tuneplane.training.writing import Taken, write_part

    whole, copies = state(), Copies(pinned=False)
    ours, theirs, blocked = [], [], []
    for number in range(ROUNDS + 1):
        target = folder / f"checkpoint{number}"
        (target / "deepspeed").mkdir(parents=True)
        begin = time.perf_counter()
        items = copies.of([(str(target / "deepspeed" / f"{name}.pt"), value) for name, value in whole.items()])
        copied = time.perf_counter() - begin
        taken = Taken(
            number, Part(target, items, True), random_state(torch.device("cpu")), {}, 2, 600.0, "every save_steps"
        )
        begin = time.perf_counter()
        written = write_part(taken, 0)
        wrote = time.perf_counter() - begin
        blocks = [memoryview((target / f["path"]).read_bytes()) for f in written["files"] if f["path"].endswith(".pt")]
        peer = plainly(target, blocks)
        size = sum(len(block) for block in blocks)
        shutil.rmtree(target)
        if number:  # the first one warms up: memory for the copy is taken once a run
            ours.append(wrote)
            theirs.append(peer)
            blocked.append(copied / (copied + wrote))
    return figures(Samples(tuple(ours)), Samples(tuple(theirs)), Samples(tuple(blocked)), size)


def figures(ours: Samples, theirs: Samples, blocked: Samples, size: int) -> list[Figure]:
    name = f"writing a checkpoint of 135M parameters, {size / 1e9:.2f} GB"
    ratios = ours.over(theirs)
    peer = f"write + fsync + SHA-256 of the same bytes: {theirs.text('s', 2)}"
    shares = Samples(tuple(100 * share for share in blocked.values))
    return [
        Figure(name, ours.text("s", 2), peer, ratios.text("x", 2), "≤ 1.25 x", ratios.misses(1.25)),
        bound("share of that save in which training stands still", shares, "%", 10),
    ]
