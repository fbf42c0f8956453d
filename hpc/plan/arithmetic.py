"""Batches, steps, tokens and checkpoints: arithmetic that needs no guess. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpc.plan.memory import Setting


@dataclass(frozen=True)
class Batches:
    """`global_batch` examples a step; `epochs` passes that the steps make. Steps and epochs are None where the rows are not known."""

    micro_batch: int
    accumulation: int
    ranks: int
    global_batch: int
    steps_an_epoch: float | None
    total_steps: int | None
    epochs: float | None

    def as_json(self) -> dict[str, Any]:
        return dict(vars(self))


def batches(hyperparams: Mapping[str, Any], method: str, ranks: int, rows: int | None) -> Batches:
    """What a step and an epoch are. A step of grpo takes prompts: each of them is answered `num_generations` times."""
    micro, accumulation = int(hyperparams["micro_batch_size"]), int(hyperparams["gradient_accumulation"])
    whole = micro * accumulation * ranks
    if method == "grpo":
        whole //= int(hyperparams["num_generations"])
    if not whole:
        return Batches(micro, accumulation, ranks, 0, None, None, None)  # less than a group: the submission is refused
    asked = int(hyperparams["max_steps"])
    steps = asked or (max(1, math.ceil(rows * float(hyperparams["epochs"]) / whole - 1e-9)) if rows else None)
    return Batches(
        micro,
        accumulation,
        ranks,
        whole,
        rows / whole if rows else None,
        steps,
        steps * whole / rows if rows and steps else None,
    )


@dataclass(frozen=True)
class Disk:
    """Bytes: one checkpoint, all that are kept (one more while a new one is written), and the artefact at the end."""

    checkpoint: int
    kept: int
    artefact: int

    @property
    def needed(self) -> int:
        return self.kept + self.artefact

    def as_json(self) -> dict[str, int]:
        return {**vars(self), "needed": self.needed}


def disk(parameters: int, trained: int, setting: Setting, keep: int) -> Disk:
    """What a run writes: with LoRA no frozen weight is in a checkpoint, and the artefact is the adapter."""
    kept_weights = trained if setting.lora_rank else parameters
    states = 12 if setting.zero_stage else 8
    checkpoint = kept_weights * setting.weight_bytes + trained * states
    artefact = kept_weights * setting.activation_bytes
    return Disk(checkpoint, checkpoint * (keep + 1), artefact)
