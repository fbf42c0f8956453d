"""What makes a folder a model: a configuration and safetensors that fit it, or an adapter that changes something. Nothing of it is loaded or run.

Two forms: the folder that `save_pretrained` of transformers writes, and the one that PEFT writes. Pickles, code and configs that ask for code have
no place on the shelf. Does not promise that the weights are any good.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tuneplane.record.digest import digest_file, digest_json

from hpc.data.hub_choice import CODE, PICKLES, WEIGHTS
from hpc.data.safetensors import HeaderError, Tensor, is_zero, read_header
from hpc.errors.core import Refusal, Refusals
from hpc.spec.text import visible

CONFIG, ADAPTER_CONFIG = "config.json", "adapter_config.json"
INDEX = "model.safetensors.index.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
CONFIGS = (CONFIG, "tokenizer_config.json", "processor_config.json", "generation_config.json")
_TOKENIZER = (
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt",
    "merges.txt", "spiece.model", "chat_template.jinja",
)  # fmt: skip
MAX_JSON = 64 << 20
SHOWN = 20
Headers = dict[str, list[Tensor]]


def check_model(folder: Path) -> dict[str, Any]:
    """The facts of a model's folder: form, architecture, parameters, kinds of numbers, tokenizer, adapter. JSON without fractions.

    Raises Refusals E-MODEL-020 (no model), 021 (weights that are not whole), 022 (code), 023 (an empty adapter), all that is found at once.
    """
    names = sorted(_names(folder))
    faults = list(_foreign(names))
    headers, broken = _headers(folder, [n for n in names if n.endswith(WEIGHTS)])
    faults += broken
    adapter = ADAPTER_CONFIG in names
    config = _json(folder, ADAPTER_CONFIG if adapter else CONFIG, faults) if adapter or CONFIG in names else None
    if config is None and not faults:
        text = "holds neither config.json nor adapter_config.json"
        faults.append(Refusal("E-MODEL-020", text, field=str(folder), found=", ".join(names[:10]) or "nothing"))
    for name in CONFIGS:
        if name in names and "auto_map" in (_json(folder, name, faults) or {}):
            faults.append(Refusal("E-MODEL-022", "asks for code of its own (auto_map)", field=name))
    if config is not None:
        faults += (
            _adapter_faults(folder, config, headers) if adapter else _weight_faults(folder, config, names, headers)
        )
    if faults:
        raise Refusals(faults[:SHOWN])
    assert config is not None
    facts = _adapter_facts(config) if adapter else _model_facts(config)
    return {**facts, **_sums(headers), "tokenizer": _tokenizer(folder, names)}


def _names(folder: Path) -> Iterator[str]:
    for base, folders, names in os.walk(folder):
        folders.sort()
        for name in names:
            yield os.path.relpath(os.path.join(base, name), folder)


def _foreign(names: Sequence[str]) -> Iterator[Refusal]:
    for name in names:
        lower = name.lower()
        if lower.endswith(CODE):
            yield Refusal("E-MODEL-022", "is code", field=visible(name), found=visible(name))
        elif lower.endswith(PICKLES):
            yield Refusal("E-MODEL-021", "is a pickle", field=visible(name), allowed="safetensors")


def _headers(folder: Path, names: Sequence[str]) -> tuple[Headers, list[Refusal]]:
    out: Headers = {}
    faults = []
    for name in names:
        try:
            out[name] = read_header(folder / name)
        except HeaderError as exc:
            faults.append(Refusal("E-MODEL-021", str(exc), field=visible(name)))
        except OSError as exc:
            faults.append(Refusal("E-MODEL-021", f"cannot be read: {exc.strerror}", field=visible(name)))
    return out, faults


def _json(folder: Path, name: str, faults: list[Refusal]) -> dict[str, Any] | None:
    try:
        with open(folder / name, "rb") as stream:
            data = stream.read(MAX_JSON + 1)
        value = json.loads(data.decode("utf-8")) if len(data) <= MAX_JSON else None
    except (OSError, ValueError, RecursionError) as exc:
        value, why = None, str(exc)[:200]
    else:
        why = "is no object"
    if not isinstance(value, dict) or not value:
        fault = Refusal("E-MODEL-020", why or "says nothing", field=name)
        if not any(f.field == name for f in faults):
            faults.append(fault)
        return None
    return value


def _weight_faults(folder: Path, config: Mapping[str, Any], names: Sequence[str], headers: Headers) -> list[Refusal]:
    if not config.get("model_type") and not config.get("architectures"):
        return [Refusal("E-MODEL-020", "names no model_type and no architectures", field=CONFIG)]
    if not any(n.endswith(WEIGHTS) for n in names):
        return [Refusal("E-MODEL-021", "has no safetensors", field=str(folder), allowed="model.safetensors")]
    out = [Refusal("E-MODEL-021", "holds no tensor", field=n) for n, tensors in headers.items() if not tensors]
    if INDEX not in names:
        return out
    index = _json(folder, INDEX, out)
    table = (index or {}).get("weight_map")
    if not isinstance(table, dict):
        return [*out, Refusal("E-MODEL-021", "has no weight_map", field=INDEX)]
    have = {n: {t.name for t in tensors} for n, tensors in headers.items()}
    for shard in sorted(set(map(str, table.values()))):
        if shard not in names:
            out.append(Refusal("E-MODEL-021", f"the index names {visible(shard)}, which is missing", field=INDEX))
    for tensor, shard in table.items():
        if shard in have and tensor not in have[shard]:
            out.append(Refusal("E-MODEL-021", f"{visible(tensor)} is not in {shard}", field=INDEX))
    return out


def _adapter_faults(folder: Path, config: Mapping[str, Any], headers: Headers) -> list[Refusal]:
    if not config.get("peft_type"):
        return [Refusal("E-MODEL-020", "names no peft_type", field=ADAPTER_CONFIG)]
    tensors = headers.get(ADAPTER_WEIGHTS)
    if tensors is None:
        if (folder / ADAPTER_WEIGHTS).exists():
            return []  # its header was found to be broken already
        return [Refusal("E-MODEL-023", f"{ADAPTER_WEIGHTS} is missing", field=str(folder))]
    changing = [t for t in tensors if config["peft_type"] != "LORA" or "lora_B" in t.name]
    if not changing or all(is_zero(folder / ADAPTER_WEIGHTS, t) for t in changing):
        found = f"{len(tensors)} tensors, {len(changing)} of them B matrices, all zero"
        return [Refusal("E-MODEL-023", "changes nothing", field=ADAPTER_WEIGHTS, found=found)]
    return []


def _model_facts(config: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "max_position_embeddings")
    return {
        "form": "model",
        "model_type": str(config.get("model_type") or ""),
        "architectures": [str(a) for a in config.get("architectures") or []],
        "config": {k: config[k] for k in keys if type(config.get(k)) is int},
    }


def _adapter_facts(config: Mapping[str, Any]) -> dict[str, Any]:
    targets = config.get("target_modules") or []
    return {
        "form": "adapter",
        "peft_type": str(config["peft_type"]),
        "base_model": str(config.get("base_model_name_or_path") or ""),
        "base_revision": str(config.get("revision") or ""),
        "lora_targets": [targets] if isinstance(targets, str) else sorted(map(str, targets)),
        "lora": {k: config[k] for k in ("r", "lora_alpha") if type(config.get(k)) is int},
    }


def _sums(headers: Headers) -> dict[str, Any]:
    values: Counter[str] = Counter()
    for tensors in headers.values():
        for tensor in tensors:
            values[tensor.dtype] += tensor.values
    count = sum(len(t) for t in headers.values())
    return {"parameters": sum(values.values()), "dtypes": dict(sorted(values.items())), "tensors": count}


def _tokenizer(folder: Path, names: Sequence[str]) -> str:
    """One digest over the tokenizer's files, "" where there are none: two models with equal ones read text alike."""
    parts = {n: digest_file(folder / n) for n in _TOKENIZER if n in names}
    return digest_json(parts) if parts else ""
