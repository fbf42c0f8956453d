"""The model that is asked: a base, an exported folder, or a base with a LoRA adapter; and digests that tell models apart by their bytes."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuneplane.record.digest import digest_file, digest_json
from tuneplane.training.refusals import refuse

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


@dataclass(frozen=True)
class Loaded:
    """A model ready to answer: end tokens, the longest text in tokens (None: unknown), device and precision that are really used."""

    network: Any
    tokenizer: Any
    ends: tuple[int, ...]
    context: int | None
    device: Any
    precision: str


def folder_digest(path: Path, files: Sequence[Mapping[str, Any]] = ()) -> str:
    """Digest of a folder's files by name and SHA-256, as a job's input record has it; the record saves the reading where it knows them all."""
    known = {str(f["path"]): str(f["sha256"]) for f in files if f.get("sha256")}
    if not known or len(known) != len(files):
        known = {}
        for folder, _, names in os.walk(path):
            for name in names:
                file = os.path.join(folder, name)
                known[os.path.relpath(file, path)] = digest_file(file, follow=True)
    return digest_json(sorted([name, digest] for name, digest in known.items()))


def check_adapter(path: Path) -> Path:
    """The folder itself if it can hold a LoRA adapter. Raises Refused E-EVAL-033."""
    for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
        if not (path / name).is_file():
            raise refuse("E-EVAL-033", f"there is no {name} in it", field="adapter", found=os.fspath(path))
    if not _tensors(path / ADAPTER_WEIGHTS):
        raise refuse("E-EVAL-033", "it holds no tensor", field="adapter", found=os.fspath(path))
    return path


def _tensors(path: Path) -> set[str]:
    try:
        with open(path, "rb") as stream:
            (size,) = struct.unpack("<Q", stream.read(8))
            header = json.loads(stream.read(min(size, 100 << 20)))
        return set(header) - {"__metadata__"}
    except (OSError, ValueError, TypeError, struct.error) as exc:
        raise refuse(
            "E-EVAL-033", f"not a whole safetensors file: {exc}", field="adapter", found=os.fspath(path)
        ) from exc


def choose(device: str, precision: str) -> tuple[Any, str]:
    """(torch device, `bf16` or `fp32`) for `auto | cpu | cuda` and `auto | bf16 | fp32`. Raises Refused E-EVAL-034. Imports torch."""
    import torch

    there = torch.cuda.is_available()
    if device == "cuda" and not there:
        raise refuse("E-EVAL-034", "no GPU is visible", field="device", found="cuda", allowed="cpu")
    chosen = torch.device("cuda" if there and device != "cpu" else "cpu")
    able = chosen.type == "cpu" or torch.cuda.is_bf16_supported(including_emulation=False)
    if precision == "bf16" and not able:
        raise refuse("E-EVAL-034", "this GPU has no bf16", field="precision", found=torch.cuda.get_device_name(chosen))
    if precision == "auto":
        return chosen, "bf16" if able and chosen.type == "cuda" else "fp32"
    return chosen, precision


def load(model: Path, adapter: Path | None, device: Any, precision: str) -> Loaded:
    """Model, adapter and tokenizer from local safetensors; no code of the folders is run. Raises Refused E-TRAIN-030 … 034, E-EVAL-033."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    from tuneplane.training.model import check_folder, load_tokenizer

    check_folder(model)
    tokenizer = load_tokenizer(model)
    try:
        network: Any = AutoModelForCausalLM.from_pretrained(
            os.fspath(model),
            dtype=torch.bfloat16 if precision == "bf16" else torch.float32,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError) as exc:
        raise refuse("E-TRAIN-034", f"cannot be loaded: {exc}", field="model", found=os.fspath(model)) from exc
    ends = _ends(network, tokenizer)
    # The folder's own sampling defaults (penalties among them) would change answers that these settings call greedy.
    network.generation_config = GenerationConfig(eos_token_id=list(ends) or None, pad_token_id=tokenizer.pad_token_id)
    if adapter is not None:
        network = _with_adapter(network, adapter)
    context = getattr(network.config, "max_position_embeddings", None)
    network = network.to(device).eval()
    return Loaded(network, tokenizer, ends, context if type(context) is int else None, device, precision)


def _ends(network: Any, tokenizer: Any) -> tuple[int, ...]:
    """Every token that ends an answer: the tokenizer's and those that the folder's generation_config names."""
    named = network.generation_config.eos_token_id
    listed = named if isinstance(named, list) else [named]
    return tuple(sorted({t for t in (*listed, tokenizer.eos_token_id) if t is not None}))


def _with_adapter(network: Any, adapter: Path) -> Any:
    """The model with the adapter. One whose tensors are not all taken is for another model, and would change nothing in silence."""
    from peft import PeftModel, get_peft_model_state_dict

    try:
        dressed = PeftModel.from_pretrained(network, os.fspath(adapter), local_files_only=True)
    except (OSError, ValueError, KeyError, RuntimeError, TypeError) as exc:
        raise refuse("E-EVAL-033", f"does not fit the model: {exc}", field="adapter", found=os.fspath(adapter)) from exc
    given, wanted = (
        _tensors(adapter / ADAPTER_WEIGHTS),
        set(get_peft_model_state_dict(dressed, save_embedding_layers=False)),
    )
    whole = given - wanted - set(dressed.state_dict())  # an adapter may carry whole embeddings, too
    if odd := sorted((wanted - given) | whole):
        message = f"is for another model: {len(odd)} tensors stand on one side only"
        raise refuse("E-EVAL-033", message, field="adapter", found=", ".join(odd[:3]), allowed=os.fspath(adapter))
    return dressed
