"""The model in a checkpoint, as a folder that other programs load: the same files that `export` would have left at that step.

A checkpoint holds each rank's part of DeepSpeed's state. Up to ZeRO-2 the whole weights lie in one file of it, in the run's precision; under ZeRO-3
they are put together from the ranks' fp32 copies, by DeepSpeed's own reader. One process does it, without the other ranks and without a GPU.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuneplane.training import model as models
from tuneplane.training import settings as tables
from tuneplane.training.engine import SHARDS, quiet_start, weights_dtype
from tuneplane.training.export import write_artefact
from tuneplane.training.refusals import refuse
from tuneplane.training.settings import Settings

_WHOLE = "mp_rank_00_model_states.pt"
_ADAPTERS = ("lora_rank", "lora_alpha", "lora_dropout", "lora_targets", "zero_stage")
"""Settings that say which tensors there are. The others change how a step is computed, not what it leaves."""


def write_model(checkpoint: Path, manifest: Mapping[str, Any], base: Path, out: Path) -> dict[str, Any]:
    """Write the checkpoint's model, or its adapter on `base`, to the new folder `out`; returns its description, as of `export`.

    The files must have been compared with the manifest: they are pickles. Raises Refused, and nothing named `out` is left then.
    """
    try:
        said, precision = manifest["settings"], str(manifest["precision"])
        chosen = tables.parse({name: said[name] for name in _ADAPTERS}, None, tables.SFT)
    except (KeyError, TypeError) as exc:
        raise refuse("E-TRAIN-052", f"its manifest says too little: {exc!r}", field=str(checkpoint)) from exc
    network = models.load_model(base, chosen, weights_dtype(chosen, precision))
    weights = _weights(checkpoint / SHARDS, network, chosen, precision)
    tokenizer = models.load_tokenizer(base)
    temp = out.with_name(f".{out.name}.tmp")
    for folder in (temp, out):  # of an attempt that was cut short
        shutil.rmtree(folder, ignore_errors=True)
    shapes = {n: tuple(p.shape) for n, p in network.named_parameters() if p.requires_grad or not chosen.lora}
    return write_artefact(network, tokenizer, temp, out, weights, shapes, adapter=chosen.lora)


def _weights(folder: Path, network: Any, chosen: Settings, precision: str) -> dict[str, Any]:
    """The tensors that `Engine.gathered` would give, on the CPU: trained ones alone with LoRA, else the buffers, too. Raises Refused."""
    import torch

    try:
        found = _partitioned(folder, chosen) if chosen.zero_stage == 3 else _whole(folder / _WHOLE)
    except (OSError, ValueError, KeyError, RuntimeError, AttributeError) as exc:
        raise refuse("E-TRAIN-052", f"its weights cannot be put together: {exc}", field=str(folder)) from exc
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    parameters = {n for n, p in network.named_parameters() if p.requires_grad or not chosen.lora}
    out = {name: found[name].detach().to(dtype) for name in parameters if name in found}
    if not chosen.lora:
        kept = set(network.state_dict())
        out |= {n: found.get(n, b).detach() for n, b in network.named_buffers() if n in kept}
    return out


def _whole(path: Path) -> dict[str, Any]:
    import torch

    return dict(torch.load(path, map_location="cpu", mmap=True, weights_only=False)["module"])


def _partitioned(folder: Path, chosen: Settings) -> dict[str, Any]:
    """DeepSpeed's reader says on standard output what it does; that stays in the log."""
    quiet_start()
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    return dict(
        get_fp32_state_dict_from_zero_checkpoint(str(folder.parent), folder.name, exclude_frozen_parameters=chosen.lora)
    )
