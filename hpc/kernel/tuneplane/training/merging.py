"""A run's artefact as one Hugging Face folder: an adapter merged into its base, or the whole model; opened again and compared before it counts.

Two comparisons of logits on the same tokens. The merge is right: in fp32, the base with the adapter beside it and the merged weights agree. The files
are right: the model in memory, rounded to the precision that is stored, and the folder loaded again give the same numbers. What rounding itself
changes is measured and stated. Everything runs on the CPU: a model need not fit on a GPU a second time, and the peak is about one copy in fp32.
"""

from __future__ import annotations

import gc
import math
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuneplane.contract.weights import weight_files
from tuneplane.training import warning
from tuneplane.training.model import check_folder, load_tokenizer
from tuneplane.training.refusals import refuse

MERGE_TOLERANCE = 1e-4
"""Largest difference of a logit between merged and unmerged weights in fp32, as a share of the largest logit."""
FILE_TOLERANCE = 1e-6
"""The same between the weights in memory, rounded, and the folder loaded again: they are the same numbers. Both are asked in fp32."""
_ROWS, _TOKENS = 2, 24
_NAMES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


@dataclass(frozen=True)
class Checked:
    """What was measured: differences of logits as shares of the largest logit, and the stored dtype. `rounding` is what the dtype alone changes."""

    dtype: str
    parameters: int
    tensors: int
    merge: float
    files: float
    rounding: float

    def as_json(self) -> dict[str, Any]:
        shares = {"merge": self.merge, "files": self.files, "rounding": self.rounding}
        return {
            "dtype": self.dtype, "parameters": self.parameters, "tensors": self.tensors,
            "logits": {**shares, "merge_tolerance": MERGE_TOLERANCE, "file_tolerance": FILE_TOLERANCE},
        }  # fmt: skip


def write_merged(base: Path, adapter: Path | None, out: Path, say: Callable[[str], None]) -> Checked:
    """Write the model `base` with `adapter` merged in, or `base` alone, to `out`, in the dtype that most of `base` is stored in.

    Raises Refused E-TRAIN-030 … 034 (the folders), E-TRAIN-070 (the adapter does not fit), E-TRAIN-071 (the logits differ); Warned between two steps.
    """
    import torch

    check_folder(base)
    dtype = stored_dtype(base)
    kind = model_class(adapter or base)
    tokenizer = load_tokenizer(adapter if adapter and (adapter / "tokenizer_config.json").is_file() else base)
    network = _load(kind, base, torch.float32, tokenizer.pad_token_id)
    asked = _tokens(network.config.vocab_size)
    before = after = None
    if adapter is not None:
        say(f"merging {adapter} into {base} in fp32")
        dressed = _dress(network, adapter)
        before = _logits(dressed, asked)
        network = dressed.merge_and_unload(safe_merge=True)
    warning.check()
    after = _logits(network, asked)
    merge = _share(before, after) if before is not None else 0.0
    if not merge <= MERGE_TOLERANCE:
        raise _differ("the merged weights answer otherwise than the adapter on its base", merge, MERGE_TOLERANCE)
    with torch.no_grad():
        for weight in network.parameters():
            weight.copy_(weight.to(getattr(torch, dtype)))
    rounded = _logits(network, asked)
    say(f"writing {dtype} to {out.name}")
    network = network.to(getattr(torch, dtype))
    network.config.use_cache = True
    network.save_pretrained(out)
    tokenizer.save_pretrained(out)
    count, tensors = sum(p.numel() for p in network.parameters()), sum(1 for _ in network.parameters())
    del network
    gc.collect()
    warning.check()
    again = _logits(_load(kind, out, torch.float32, tokenizer.pad_token_id), asked)
    files = _share(rounded, again)
    if not files <= FILE_TOLERANCE:
        raise _differ("the folder answers otherwise than what was written", files, FILE_TOLERANCE)
    return Checked(dtype, count, tensors, merge, files, _share(after, rounded))


def _differ(message: str, found: float, allowed: float) -> Exception:
    return refuse("E-TRAIN-071", message, field="logits", found=f"{found:.3g} of the largest", allowed=f"{allowed:g}")


def model_class(folder: Path) -> Any:
    """The transformers class of a model's or adapter's folder: with a score head, or a causal language model."""
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    from tuneplane.record.files import read_json

    adapter = folder / "adapter_config.json"
    config = read_json(adapter if adapter.is_file() else folder / "config.json")
    named = [str(config.get("task_type")), *map(str, config.get("architectures") or ())]
    scores = any(n == "SEQ_CLS" or n.endswith("ForSequenceClassification") for n in named)
    return AutoModelForSequenceClassification if scores else AutoModelForCausalLM


def stored_dtype(folder: Path) -> str:
    """torch's name of the precision that most numbers of the model's weights have; whole ones and others count as float32."""
    from safetensors import safe_open

    counts: Counter[str] = Counter()
    for path in weight_files(folder):
        with safe_open(path, framework="pt") as stream:
            for name in stream.keys():  # noqa: SIM118 - it is no mapping
                part = stream.get_slice(name)
                counts[part.get_dtype()] += math.prod(part.get_shape())
    return _NAMES.get(max(counts, key=lambda k: counts[k], default="F32"), "float32")


def _load(kind: Any, folder: Path, dtype: Any, pad_id: int | None) -> Any:
    more = {} if kind.__name__ == "AutoModelForCausalLM" else {"num_labels": 1}
    try:
        network = kind.from_pretrained(
            os.fspath(folder), dtype=dtype, local_files_only=True, trust_remote_code=False, use_safetensors=True, **more
        )
    except (OSError, ValueError, KeyError, RuntimeError) as exc:
        raise refuse("E-TRAIN-034", f"cannot be loaded: {exc}", field="inputs.model", found=os.fspath(folder)) from exc
    if more:
        network.config.pad_token_id = pad_id
    return network.eval()


def _dress(network: Any, adapter: Path) -> Any:
    from peft import PeftModel

    try:
        return PeftModel.from_pretrained(network, os.fspath(adapter), local_files_only=True).eval()
    except (OSError, ValueError, KeyError, RuntimeError, TypeError) as exc:
        raise refuse(
            "E-TRAIN-070", f"does not fit the model: {exc}", field="adapter", found=os.fspath(adapter)
        ) from exc


def _tokens(vocabulary: int) -> Any:
    import torch

    return torch.randint(0, vocabulary, (_ROWS, _TOKENS), generator=torch.Generator().manual_seed(0))


def _logits(network: Any, asked: Any) -> Any:
    import torch

    with torch.no_grad():
        return network(input_ids=asked, attention_mask=torch.ones_like(asked)).logits.float()


def _share(one: Any, other: Any) -> float:
    """Largest difference as a share of the largest logit; not a number where either holds one."""
    return float((one - other).abs().max() / one.abs().max().clamp_min(1e-12))
