"""What a model is, from its folder alone: config.json and the headers of its safetensors. No weight is read, nothing of it is run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tuneplane.contract.weights import weight_files
from tuneplane.record.files import read_bytes

from hpc.data.safetensors import HeaderError, read_header
from hpc.errors import Refusal

_MAX_CONFIG: Final = 16 << 20
_HEADS: Final = ("lm_head", "embed_out", "output_layer")
_EMBEDDINGS: Final = (
    "embed_tokens",
    "embed_in",
    "wte",
    "wpe",
    "word_embeddings",
    "position_embeddings",
    "embed_positions",
)


@dataclass(frozen=True)
class ModelFacts:
    """Numbers of a causal language model. `linears`: (name of the module, inputs, outputs) of each layer that LoRA may adapt.

    `hidden`, `intermediate`, `attention` (heads x their size), `vocabulary` and `layers` are counts; `experts` how many of them a token meets.
    """

    parameters: int
    layers: int
    hidden: int
    intermediate: int
    attention: int
    vocabulary: int
    tied: bool
    experts: int = 1
    linears: tuple[tuple[str, int, int], ...] = field(default=(), repr=False)

    @property
    def block(self) -> int:
        """Weights of one layer, embeddings and head left out."""
        embedding = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return max(0, self.parameters - embedding) // max(1, self.layers)

    def adapters(self, rank: int, targets: str) -> int:
        """How many weights LoRA adds. `targets` as the recipes take it: all-linear, or names of modules with commas."""
        wanted = None if targets == "all-linear" else {t.strip() for t in targets.split(",")}
        return sum(rank * (i + o) for name, i, o in self.linears if wanted is None or name in wanted)

    def as_json(self) -> dict[str, Any]:
        return {
            "parameters": self.parameters, "layers": self.layers, "hidden": self.hidden, "intermediate": self.intermediate,
            "attention": self.attention, "vocabulary": self.vocabulary, "tied": self.tied, "experts": self.experts,
        }  # fmt: skip


def read_model(folder: Path, where: str = "spec.model.base") -> ModelFacts:
    """The facts of a Hugging Face folder. Raises Refusal E-PLAN-001 for one whose config or headers do not say enough."""
    try:
        config = json.loads(read_bytes((folder / "config.json").resolve(), limit=_MAX_CONFIG))
        tensors = [t for path in weight_files(folder) for t in read_header(path.resolve())]
        if not isinstance(config, dict) or not tensors:
            raise ValueError("no weights as safetensors" if isinstance(config, dict) else "config.json is no object")
        return _facts(_text_part(config), {t.name: t.shape for t in tensors})
    except (OSError, ValueError, KeyError, TypeError, HeaderError) as exc:
        message = f"config.json and the weights' headers do not say what it is: {exc}"
        raise Refusal("E-PLAN-001", message, field=where, found=str(folder)) from exc


def _text_part(config: dict[str, Any]) -> dict[str, Any]:
    """Of a model with several parts the one that writes text."""
    inner = config.get("text_config")
    return {**config, **inner} if isinstance(inner, dict) else config


def _facts(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> ModelFacts:
    hidden = _first(config, "hidden_size", "n_embd", "d_model")
    heads = _first(config, "num_attention_heads", "n_head", "num_heads")
    head_dim = config.get("head_dim") or hidden // heads
    experts = int(config.get("num_experts_per_tok") or 1)
    wide = config.get("moe_intermediate_size") if experts > 1 else None
    intermediate = wide or config.get("intermediate_size") or config.get("n_inner") or 4 * hidden
    vocabulary = _first(config, "vocab_size")
    # A head that is tied is not stored twice.
    tied = not any(_is(name, _HEADS) and name.endswith(".weight") for name in shapes)
    return ModelFacts(
        parameters=sum(math.prod(shape) for shape in shapes.values()),
        layers=_first(config, "num_hidden_layers", "n_layer", "num_layers"),
        hidden=hidden,
        intermediate=int(intermediate),
        attention=heads * int(head_dim),
        vocabulary=vocabulary,
        tied=tied,
        experts=experts,
        linears=tuple(_linears(shapes)),
    )


def _linears(shapes: Mapping[str, tuple[int, ...]]) -> list[tuple[str, int, int]]:
    out = []
    for name, shape in shapes.items():
        if len(shape) == 2 and name.endswith(".weight") and not _is(name, _HEADS) and not _is(name, _EMBEDDINGS):
            out.append((name.removesuffix(".weight").rpartition(".")[2], shape[1], shape[0]))
    return out


def _is(name: str, words: tuple[str, ...]) -> bool:
    return any(part in words for part in name.split("."))


def _first(config: Mapping[str, Any], *names: str) -> int:
    for name in names:
        value = config.get(name)
        if type(value) is int and value > 0:
            return value
    raise KeyError(f"none of {', '.join(names)} in config.json")
