"""Model folders as transformers and PEFT write them, small enough to flip every byte."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8,
    "vocab_size": 16,
}
ADAPTER: dict[str, Any] = {
    "peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["v_proj", "q_proj"], "base_model_name_or_path": "org/tiny",
}  # fmt: skip


def safetensors(tensors: dict[str, list[float]]) -> bytes:
    """A file of one-dimensional F32 tensors."""
    header, data = {}, b""
    for name, values in tensors.items():
        raw = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": [len(values)], "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    head = json.dumps(header).encode()
    return struct.pack("<Q", len(head)) + head + data


def write_model(folder: Path, **more: bytes | None) -> Path:
    """A whole model; `more` replaces (or with None removes) files, `__` in a name meaning a dot."""
    files: dict[str, bytes | None] = {
        "config.json": json.dumps(CONFIG).encode(),
        "model.safetensors": safetensors({"a": [1.0, 2.0], "b": [0.5]}),
        "tokenizer.json": b"{}",
    }
    return _write(folder, files | {k.replace("__", "."): v for k, v in more.items()})


def write_adapter(folder: Path, b: float = 0.25, **more: bytes | None) -> Path:
    files: dict[str, bytes | None] = {
        "adapter_config.json": json.dumps(ADAPTER).encode(),
        "adapter_model.safetensors": safetensors({"x.lora_A.weight": [1.0], "x.lora_B.weight": [b, 0.0]}),
    }
    return _write(folder, files | {k.replace("__", "."): v for k, v in more.items()})


def _write(folder: Path, files: dict[str, bytes | None]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        if data is not None:
            (folder / name).write_bytes(data)
    return folder
