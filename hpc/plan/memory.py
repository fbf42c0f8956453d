"""How much memory one rank will need, term by term (P51). Pure; docs/plan.md has the formulas, tests and docs/plan.md how far they are off.

The engine holds weights, gradients and AdamW's states, shared by ZeRO's stage; a step adds activations and logits, or what the update needs,
whichever is more. What torch keeps without using it, and what the process needs before there is a model, come on top.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from hpc.plan.model_facts import ModelFacts

GIB: Final = 1 << 30
BUCKET: Final = 500_000_000
"""DeepSpeed's reduce_bucket_size: numbers of the buffer in which gradients travel. On a GPU it is taken whole, on a CPU as far as it is used."""
LIVE: Final = 1_000_000_000 + 50_000_000
"""DeepSpeed's stage3_max_live_parameters, and stage3_prefetch_bucket_size: weights that ZeRO-3 holds whole before it lets go of any."""
GPU_SLACK: Final = 0.1
"""What torch reserves on a GPU beyond what it uses, as a share of activations and logits. An assumption: no GPU has been measured."""
GPU_PROCESS: Final = 1.0 * GIB
"""CUDA's context and NCCL's buffers. An assumption, as above."""
CPU_SLACK: Final = 0.6
"""What the C library keeps of what a step frees, as a share of activations and logits; measured, see docs/plan.md."""
CPU_PROCESS: Final = 520 * (1 << 20)
"""Python, torch, DeepSpeed and transformers before there is a model; measured, see docs/plan.md."""
FOUR_BIT: Final = 0.5625
"""Bytes of a frozen weight in 4 bits, with a scale in fp32 for each 64."""
ROWS_OF: Final = {"dpo": 2, "rm": 2}
"""Rows that one example of a micro batch puts through the model, where it is not one."""


@dataclass(frozen=True)
class Setting:
    """What the memory depends on. `length`: tokens of the longest row; `rows`: rows a micro batch; `world`: ranks.

    `four_bit`: frozen layers are kept in 4 bits. `copies`: checkpoints are written from a copy in the node's memory.
    """

    world: int
    gpu: bool
    zero_stage: int
    bf16: bool
    checkpointing: bool
    lora_rank: int
    lora_targets: str
    lora_dropout: float
    rows: int
    accumulation: int
    length: int
    method: str = "sft"
    four_bit: bool = False
    copies: bool = False

    @classmethod
    def of(cls, hyperparams: Mapping[str, Any], method: str, *, world: int, gpu: bool, length: int) -> Setting:
        """From resolved hyperparameters. Raises KeyError where the recipe has not those of the training engine."""
        h = hyperparams
        precision = h["precision"]
        return cls(
            world=world,
            gpu=gpu,
            zero_stage=int(h["zero_stage"]),
            bf16=precision == "bf16" or (precision == "auto" and gpu),
            checkpointing=bool(h["gradient_checkpointing"]),
            lora_rank=int(h["lora_rank"]),
            lora_targets=str(h["lora_targets"]),
            lora_dropout=float(h["lora_dropout"]),
            rows=int(h["micro_batch_size"]) * ROWS_OF.get(method, 1),
            accumulation=int(h["gradient_accumulation"]),
            length=min(length, int(h["max_length"])),
            method=method,
            four_bit=bool(h.get("load_in_4bit")),
            copies=bool(h.get("async_save")) and int(h.get("save_steps") or 0) > 0,
        )

    @property
    def weight_bytes(self) -> int:
        """Bytes of a weight: bf16 under ZeRO, whose optimiser has an fp32 copy; fp32 else."""
        return 2 if self.bf16 and self.zero_stage else 4

    @property
    def activation_bytes(self) -> int:
        return 2 if self.bf16 else 4

    @property
    def share(self) -> int:
        """By how many ranks what a stage shares is divided."""
        return max(1, self.world)


@dataclass(frozen=True)
class Forecast:
    """Bytes of one rank. `total` = process + slack + weights + optimiser + the larger of backward and update."""

    process: float
    weights: float
    optimiser: float
    gradients: float
    buffers: float
    activations: float
    logits: float
    update: float
    accumulates: bool
    slack_share: float
    teacher: float = 0.0
    copy: float = 0.0

    @property
    def held(self) -> float:
        """What is there all the time."""
        return self.weights + self.optimiser + self.teacher + self.copy

    @property
    def backward(self) -> float:
        """At the start of the backward pass; gradients are there already only where several micro batches add up."""
        return self.buffers + self.activations + self.logits + (self.gradients if self.accumulates else 0.0)

    @property
    def stepping(self) -> float:
        """At the update."""
        return self.gradients + self.update

    @property
    def slack(self) -> float:
        return self.slack_share * (self.activations + self.logits)

    @property
    def total(self) -> float:
        return self.process + self.slack + self.held + max(self.backward, self.stepping)

    def terms(self) -> dict[str, int]:
        """Every term in bytes, by name."""
        names = (
            "process",
            "weights",
            "teacher",
            "optimiser",
            "gradients",
            "buffers",
            "activations",
            "logits",
            "update",
            "slack",
            "copy",
            "total",
        )
        return {name: round(getattr(self, name)) for name in names}


def forecast(model: ModelFacts, setting: Setting) -> Forecast:
    """The memory of one rank."""
    trained = trainable(model, setting)
    whole = model.parameters + (trained if setting.lora_rank else 0)
    weights, gradients, buffers = _shared(model, setting, whole, trained)
    if setting.four_bit:
        weights -= (setting.weight_bytes - FOUR_BIT) * sum(i * o for _, i, o in model.linears)
    return Forecast(
        process=GPU_PROCESS if setting.gpu else CPU_PROCESS,
        weights=weights,
        optimiser=_optimiser(setting, trained),
        gradients=gradients,
        buffers=buffers,
        activations=_activations(model, setting),
        logits=_logits(model, setting),
        update=(4 + setting.weight_bytes) * trained / setting.share if setting.zero_stage else 0.0,
        accumulates=setting.accumulation > 1,
        copy=_copied(setting, model, trained) if setting.copies and not setting.gpu else 0.0,
        slack_share=GPU_SLACK if setting.gpu else CPU_SLACK,
    )


def with_teacher(found: Forecast, teacher: ModelFacts, setting: Setting) -> Forecast:
    """The same with a second model that is only asked, whole on each rank, and its logits."""
    return replace(found, teacher=float(teacher.parameters * setting.weight_bytes), logits=found.logits * 2)


def trainable(model: ModelFacts, setting: Setting) -> int:
    """How many weights are trained: all, or LoRA's."""
    if setting.lora_rank:
        return model.adapters(setting.lora_rank, setting.lora_targets)
    return model.parameters


def _shared(model: ModelFacts, s: Setting, whole: int, trained: int) -> tuple[float, float, float]:
    """Weights, gradients, and buffers of the exchange, by ZeRO's stage."""
    w = s.weight_bytes
    bucket = float(w * (BUCKET if s.gpu else min(BUCKET, trained)))
    if s.zero_stage == 0:
        cast = 2 * whole if s.bf16 else 0  # autocast keeps the bf16 form of each weight until the pass is over
        return float(w * whole + cast), float(4 * trained), 0.0
    if s.zero_stage == 1:
        return float(w * whole), float(w * trained), bucket
    if s.zero_stage == 2:
        return float(w * whole), w * trained / s.share, bucket
    return w * whole / s.share, w * trained / s.share, bucket + w * min(whole, LIVE)


def _optimiser(s: Setting, trained: int) -> float:
    """AdamW's two moments in fp32; ZeRO keeps an fp32 copy of the weights beside them, and each rank has its part."""
    return 12 * trained / s.share if s.zero_stage else float(8 * trained)


def _copied(s: Setting, model: ModelFacts, trained: int) -> float:
    """The first rank's part of a checkpoint, which lies in memory a second time while it is written. On a GPU node it is the host's memory."""
    kept = trained if s.lora_rank else model.parameters
    return kept * s.weight_bytes / (s.share if s.zero_stage == 3 else 1) + _optimiser(s, trained)


def _activations(model: ModelFacts, s: Setting) -> float:
    """What the forward pass keeps for the backward pass: of all layers, or with recomputation each layer's input and one layer whole."""
    tokens, a = s.rows * s.length, s.activation_bytes
    layer = tokens * _per_token(model, s)
    outside = tokens * model.hidden * (4 + 2 * a)  # after the embedding, and the last norm
    if s.checkpointing:
        return model.layers * tokens * model.hidden * a + layer + outside
    return model.layers * layer + outside


def _per_token(model: ModelFacts, s: Setting) -> float:
    """Bytes that one layer keeps a token: two norms, attention, the feed-forward part, and LoRA's own inputs."""
    a, h = s.activation_bytes, model.hidden
    norms = 2 * (4 * h + a * h + (0 if s.lora_rank else a * h))
    attention = 5 * model.attention * a
    forward = 4 * model.intermediate * a * model.experts
    return norms + attention + forward + _lora_inputs(model, s)


def _lora_inputs(model: ModelFacts, s: Setting) -> float:
    if not s.lora_rank or not model.linears:
        return 0.0
    wanted = None if s.lora_targets == "all-linear" else {t.strip() for t in s.lora_targets.split(",")}
    widths = [i for name, i, _ in model.linears if wanted is None or name in wanted]
    low = s.lora_rank * len(widths) * s.activation_bytes
    dropped = sum(widths) * (s.activation_bytes + 1) if s.lora_dropout else 0
    return (low + dropped) / max(1, model.layers)


def _logits(model: ModelFacts, s: Setting) -> float:
    """Logits and what the loss makes of them: 12 bytes a token and word of the vocabulary, in fp32 and in bf16; a reward model has one score."""
    words = 1 if s.method == "rm" else model.vocabulary
    return 12.0 * s.rows * s.length * words
