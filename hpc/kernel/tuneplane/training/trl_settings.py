"""Hyperparameters of trl/*: those of deepspeed/* with the same names and ranges, without what TRL's trainers do not do. Standard library only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tuneplane.training.settings import FIELDS, Field, Settings, Table
from tuneplane.training.tables import DPO, GRPO, KTO, RM, DpoSettings, GrpoSettings, KtoSettings, RewardSettings

GONE = ("packing", "rpo_alpha", "generation_batch_size", "num_iterations")
_STAGE = Field("zero_stage", "int", 2, "what the ranks share: 1 optimiser, 2 + gradients, 3 + weights", 1, 3)


def _fields(fields: tuple[Field, ...]) -> tuple[Field, ...]:
    return tuple(_STAGE if f.name == "zero_stage" else f for f in fields if f.name not in GONE)


@dataclass(frozen=True, kw_only=True)
class TrlDpoSettings(DpoSettings):
    """Settings of `trl/dpo`."""

    rpo_alpha: float = 0.0


@dataclass(frozen=True, kw_only=True)
class TrlGrpoSettings(GrpoSettings):
    """Settings of `trl/grpo`: the answers of a step are drawn at once and learnt from once."""

    generation_batch_size: int = 0
    num_iterations: int = 1


def _table(base: Table[Any], make: type[Any]) -> Table[Any]:
    return replace(base, make=make, fields=_fields(base.fields))


SFT: Table[Settings] = Table("sft", Settings, _fields(FIELDS))
TABLES: dict[str, Table[Any]] = {
    "sft": SFT,
    "dpo": _table(DPO, TrlDpoSettings),
    "kto": _table(KTO, KtoSettings),
    "rm": _table(RM, RewardSettings),
    "grpo": _table(GRPO, TrlGrpoSettings),
}
Extra = Callable[[Any], dict[str, Any]]
EXTRA: dict[str, Extra] = {
    "sft": lambda s: {"dataset_kwargs": {"skip_prepare_dataset": True}},
    "dpo": lambda s: {
        "loss_type": [s.loss_type], "beta": s.beta, "label_smoothing": s.label_smoothing, "precompute_ref_log_probs": True,
        "disable_dropout": False,
    },
    "kto": lambda s: {
        "beta": s.beta, "desirable_weight": s.desirable_weight, "undesirable_weight": s.undesirable_weight,
        "precompute_ref_log_probs": True, "disable_dropout": False,
    },
    "rm": lambda s: {"center_rewards_coefficient": s.center_rewards_coefficient or None, "disable_dropout": False},
    "grpo": lambda s: {
        "num_generations": s.num_generations, "max_completion_length": s.max_completion_length, "temperature": s.temperature,
        "steps_per_generation": s.gradient_accumulation, "num_iterations": 1, "loss_type": s.loss_type, "epsilon": s.epsilon,
        "epsilon_high": s.epsilon_high, "beta": s.beta, "scale_rewards": "group" if s.scale_rewards else "none", "use_vllm": False,
    },
}  # fmt: skip
"""What each method tells TRL's configuration beside what all of them do."""
