"""What each method adds to the shared hyperparameters, and where its defaults are others. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tuneplane.training.refusals import Reason
from tuneplane.training.settings import FIELDS, Field, Settings, Table


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

    def faults(self) -> list[Reason]:
        if self.loss_type == "ipo" and self.label_smoothing:
            found = str(self.label_smoothing)
            return [Reason("E-TRAIN-016", "ipo has no such term", "hyperparams.label_smoothing", found, "0")]
        return []


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
class DistillSettings(Settings):
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

TABLES: dict[str, Table[Any]] = {t.method: t for t in (DPO, RM, KTO, DISTILL)}
"""Methods other than sft."""
