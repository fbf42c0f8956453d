"""Models of zeros: what transformers would name their tensors, and files that hold them."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

LLAMA = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "vocab_size": 100, "model_type": "llama",
}  # fmt: skip


def llama_shapes(config: dict[str, Any], *, head: bool = False) -> dict[str, tuple[int, ...]]:
    """The tensors of such a model, as transformers names them."""
    h, i, v, d = config["hidden_size"], config["intermediate_size"], config["vocab_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * d, config["num_key_value_heads"] * d
    out: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (v, h), "model.norm.weight": (h,)}
    for layer in range(config["num_hidden_layers"]):
        base = f"model.layers.{layer}"
        for name, shape in (("q_proj", (q, h)), ("k_proj", (kv, h)), ("v_proj", (kv, h)), ("o_proj", (h, q))):
            out[f"{base}.self_attn.{name}.weight"] = shape
        for name, shape in (("gate_proj", (i, h)), ("up_proj", (i, h)), ("down_proj", (h, i))):
            out[f"{base}.mlp.{name}.weight"] = shape
        out |= {f"{base}.input_layernorm.weight": (h,), f"{base}.post_attention_layernorm.weight": (h,)}
    return out | ({"lm_head.weight": (v, h)} if head else {})


def write_safetensors(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """A whole file of zeros in bf16."""
    at, header = 0, {}
    for name, shape in shapes.items():
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with open(path, "wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        stream.truncate(8 + len(text) + at)
