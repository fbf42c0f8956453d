"""What each method adds to the shared hyperparameters, and where its defaults are others. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from tuneplane.training.settings import FIELDS, PACKING, Field, PackedSettings, Settings, Table


def _fields(*own: Field, **defaults: Any) -> tuple[Field, ...]:
    """The shared fields with some other defaults, then the method's own."""
    return (*(replace(f, default=defaults.get(f.name, f.default)) for f in FIELDS), *own)


@dataclass(frozen=True)
class DpoSettings(Settings):
    """Settings of `deepspeed/dpo`."""

    loss_type: str
    beta: float
    label_smoothing: float
    rpo_alpha: float


DPO = Table(
    "dpo",
    DpoSettings,
    _fields(
        Field(
            "loss_type",
            "enum",
            "sigmoid",
            "sigmoid = DPO; ipo = squared loss on means a token",
            choices=("sigmoid", "ipo"),
        ),
        Field("beta", "float", 0.1, "how strongly the reference holds the model", 0, 100, above=True),
        Field("label_smoothing", "float", 0.0, "share of pairs that are assumed to be the wrong way round", 0, 0.5),
        Field("rpo_alpha", "float", 0.0, "weight of the chosen answers' own loss beside the pairs'; 0 = none", 0, 1000),
        learning_rate=1e-5,
    ),
)


@dataclass(frozen=True)
class RewardSettings(Settings):
    """Settings of `deepspeed/rm`."""

    center_rewards_coefficient: float


RM = Table(
    "rm",
    RewardSettings,
    _fields(
        Field(
            "center_rewards_coefficient",
            "float",
            0.0,
            "weight of (chosen + rejected)^2, which keeps scores near 0",
            0,
            100,
        ),
        learning_rate=1e-5,
    ),
)


@dataclass(frozen=True)
class KtoSettings(Settings):
    """Settings of `deepspeed/kto`."""

    beta: float
    desirable_weight: float
    undesirable_weight: float


KTO = Table(
    "kto",
    KtoSettings,
    _fields(
        Field("beta", "float", 0.1, "how strongly the reference holds the model", 0, 100, above=True),
        Field("desirable_weight", "float", 1.0, "weight of a good answer's loss", 0, 1000),
        Field("undesirable_weight", "float", 1.0, "weight of a bad answer's loss", 0, 1000),
        learning_rate=1e-5,
    ),
)


@dataclass(frozen=True)
class DistillSettings(PackedSettings):
    """Settings of `deepspeed/distill`."""

    teacher: str
    divergence: str
    jsd_beta: float
    temperature: float
    alpha: float
    top_k: int


DISTILL = Table(
    "distill",
    DistillSettings,
    _fields(
        PACKING,
        Field("teacher", "str", None, "folder of the teacher model, seen from the experiment or absolute"),
        Field(
            "divergence",
            "enum",
            "forward_kl",
            "between teacher p and student q: KL(p||q), KL(q||p), or their mixture",
            choices=("forward_kl", "reverse_kl", "jsd"),
        ),
        Field("jsd_beta", "float", 0.5, "the teacher's part of jsd's mixture", 0.001, 0.999),
        Field("temperature", "float", 1.0, "both models' logits are divided by it", 0, 100, above=True),
        Field("alpha", "float", 1.0, "weight of the divergence; the rows' own cross-entropy has the rest of 1", 0, 1),
        Field("top_k", "int", 0, "the teacher's likeliest tokens, all others being one class; 0 = all", 0, 1_000_000),
    ),
)


@dataclass(frozen=True)
class GrpoSettings(Settings):
    """Settings of `deepspeed/grpo`."""

    model_dropout: ClassVar[bool] = False  # ratios to what the model gave at the drawing would not begin at 1
    reward_functions: str
    num_generations: int
    max_completion_length: int
    temperature: float
    generation_batch_size: int
    num_iterations: int
    loss_type: str
    epsilon: float
    epsilon_high: float
    beta: float
    scale_rewards: bool


GRPO = Table(
    "grpo",
    GrpoSettings,
    _fields(
        Field(
            "reward_functions",
            "str",
            "auto",
            "functions of rewards.py with commas, `verifier` the environment's; auto = verifier, or exact_match",
        ),
        Field("num_generations", "int", 8, "answers to each prompt: a group", 2, 4096),
        Field(
            "max_completion_length",
            "int",
            256,
            "longest answer in tokens; prompts have what is left of max_length",
            1,
            1_000_000,
        ),
        Field("temperature", "float", 1.0, "of the drawing, and of all log-probabilities", 0, 100, above=True),
        Field(
            "generation_batch_size", "int", 0, "answers that a rank draws at once; 0 = all of its step", 0, 1_000_000
        ),
        Field("num_iterations", "int", 1, "updates with the answers of a step", 1, 1000),
        Field(
            "loss_type",
            "enum",
            "dapo",
            "tokens weigh the same in the batch (dapo), in their answer (grpo), in every batch (dr_grpo)",
            choices=("dapo", "grpo", "dr_grpo"),
        ),
        Field("epsilon", "float", 0.2, "how far below 1 a ratio still counts", 0, 1, above=True),
        Field("epsilon_high", "float", 0.2, "how far above 1 a ratio still counts", 0, 100, above=True),
        Field("beta", "float", 0.0, "weight of the divergence from the initial model; needs LoRA", 0, 100),
        Field("scale_rewards", "bool", True, "divide advantages by their group's standard deviation"),
        learning_rate=1e-5,
        micro_batch_size=8,
    ),
)

TABLES: dict[str, Table[Any]] = {t.method: t for t in (DPO, RM, KTO, DISTILL, GRPO)}
"""Methods other than sft."""
