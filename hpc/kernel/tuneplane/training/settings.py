"""The hyperparameters that all methods share: names, types, ranges, defaults; parsed strictly. Standard library only.

`FIELDS` is the table that the recipes' `params` and `docs/training.md` repeat; what single methods add is in `tuneplane.training.tables`. `exact`
marks what the numbers depend on: such a value may not change between a checkpoint and its resume.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Generic, TypeVar

from tuneplane.contract.contradictions import Declared, contradictions, lora_of
from tuneplane.training.refusals import Reason, Refused


@dataclass(frozen=True)
class Field:
    """One hyperparameter. `kind` is int, float, bool, str or enum; `low` is exclusive where `above` is set. Without a default it must be given."""

    name: str
    kind: str
    default: Any
    doc: str
    low: float | None = None
    high: float | None = None
    above: bool = False
    choices: tuple[str, ...] = ()
    exact: bool = True

    @property
    def allowed(self) -> str:
        if self.kind == "enum":
            return " | ".join(self.choices)
        if self.low is None:
            return {"bool": "true | false", "str": "text"}.get(self.kind, f"a finite {self.kind}")
        left = f"{'>' if self.above else '>='} {self.low:g}"
        return f"{self.kind} {left}" + (f" and <= {self.high:g}" if self.high is not None else "")

    def fault(self, value: Any) -> str:
        """Why `value` is refused; empty when it is good. An int passes as a float, a bool never as a number."""
        types: tuple[type, ...] = {"int": (int,), "float": (int, float), "bool": (bool,)}.get(self.kind, (str,))
        if type(value) not in types:
            return f"not {'an' if self.kind == 'int' else 'a'} {'text' if self.kind in ('enum', 'str') else self.kind}"
        if self.kind == "enum":
            return "" if value in self.choices else "not one of the choices"
        if self.kind == "str":
            return "" if value.strip() and value.isprintable() else "empty, or holds control characters"
        return "" if self.kind == "bool" else self._range_fault(value)

    def _range_fault(self, value: float) -> str:
        if not math.isfinite(value):
            return "not finite"
        if self.low is not None and (value < self.low or (self.above and value == self.low)):
            return "too small"
        return "too large" if self.high is not None and value > self.high else ""


FIELDS: tuple[Field, ...] = (
    Field("learning_rate", "float", 1e-4, "peak learning rate of AdamW", 0, 1, above=True),
    Field(
        "lr_schedule",
        "enum",
        "cosine",
        "after the warm-up: down to 0, or constant",
        choices=("linear", "cosine", "constant"),
    ),
    Field("warmup_steps", "int", 0, "steps from 0 up to the peak", 0, 10_000_000),
    Field("max_steps", "int", 0, "optimiser steps; 0 = as many as `epochs` needs", 0, 100_000_000),
    Field("epochs", "float", 1.0, "passes over the rows, where max_steps is 0", 0, 100_000, above=True),
    Field("micro_batch_size", "int", 4, "rows a rank holds at once", 1, 65_536),
    Field("gradient_accumulation", "int", 1, "micro batches a rank adds up before a step", 1, 65_536),
    Field("max_length", "int", 1024, "longest row in tokens", 8, 1_048_576),
    Field("over_long", "enum", "error", "what happens to a longer row", choices=("error", "truncate", "skip")),
    Field("weight_decay", "float", 0.0, "AdamW's decay; never on biases and norms", 0, 1),
    Field("adam_beta1", "float", 0.9, "AdamW's first moment", 0, 0.9999),
    Field("adam_beta2", "float", 0.999, "AdamW's second moment", 0, 0.999999),
    Field("adam_epsilon", "float", 1e-8, "AdamW's epsilon", 0, 0.1, above=True),
    Field("grad_clip", "float", 1.0, "largest global gradient norm; 0 = no clipping", 0, 1_000_000),
    Field("seed", "int", 0, "order of the rows, new weights, dropout", 0, 4_294_967_295),
    Field("zero_stage", "int", 2, "what the ranks share: 0 nothing, 1 optimiser, 2 + gradients, 3 + weights", 0, 3),
    Field("precision", "enum", "auto", "auto = bf16 where the GPU has it, else fp32", choices=("auto", "bf16", "fp32")),
    Field("gradient_checkpointing", "bool", False, "recompute activations: less memory, about a third more time"),
    Field("lora_rank", "int", 0, "rank of LoRA adapters; 0 = train all weights", 0, 4096),
    Field("lora_alpha", "float", 16.0, "LoRA's scale is alpha / rank", 0, 100_000, above=True),
    Field("lora_dropout", "float", 0.0, "dropout before the adapters", 0, 0.95),
    Field("lora_targets", "str", "all-linear", "all-linear, or module names with commas: q_proj,v_proj"),
    Field(
        "load_in_4bit", "bool", False, "frozen weights in 4 bits (NF4, bitsandbytes); needs LoRA and zero_stage below 3"
    ),
    Field("deterministic", "bool", False, "refuse operations without a deterministic form (slower on a GPU)"),
    Field(
        "save_steps",
        "int",
        100,
        "a checkpoint every so many steps; 0 = at the end and on a warning only",
        0,
        100_000_000,
        exact=False,
    ),
    Field("async_save", "bool", True, "write checkpoints while training goes on, from a copy in memory", exact=False),
    Field("keep_checkpoints", "int", 2, "how many finished checkpoints stay", 1, 10_000, exact=False),
    Field(
        "log_steps",
        "int",
        10,
        "a progress line every so many steps; metrics.jsonl has every step",
        1,
        1_000_000,
        exact=False,
    ),
    Field(
        "eval_steps", "int", 0, "validation loss every so many steps; 0 = at the end only", 0, 100_000_000, exact=False
    ),
)
_CHANGEABLE = frozenset(f.name for f in FIELDS if not f.exact)


@dataclass(frozen=True)
class Settings:
    """Checked hyperparameters, one attribute a field of `FIELDS`; a method's own settings add theirs."""

    model_dropout: ClassVar[bool] = True
    """Whether the dropout that the model's configuration has is used in training."""

    learning_rate: float
    lr_schedule: str
    warmup_steps: int
    max_steps: int
    epochs: float
    micro_batch_size: int
    gradient_accumulation: int
    max_length: int
    over_long: str
    weight_decay: float
    adam_beta1: float
    adam_beta2: float
    adam_epsilon: float
    grad_clip: float
    seed: int
    zero_stage: int
    precision: str
    gradient_checkpointing: bool
    lora_rank: int
    lora_alpha: float
    lora_dropout: float
    lora_targets: str
    load_in_4bit: bool
    deterministic: bool
    save_steps: int
    async_save: bool
    keep_checkpoints: int
    log_steps: int
    eval_steps: int

    @property
    def lora(self) -> bool:
        return self.lora_rank > 0

    def exact(self) -> dict[str, Any]:
        """What the numbers of the run depend on; part of a checkpoint's fingerprint."""
        return {name: value for name, value in asdict(self).items() if name not in _CHANGEABLE}

    def faults(self) -> list[Reason]:
        """Values that are good alone and contradict each other."""
        return [Reason(c.code, c.message, c.field, c.found, c.allowed) for c in contradictions(asdict(self))]

    def lr_at(self, step: int, total_steps: int) -> float:
        """Learning rate of step 1, 2, …, total_steps. A function of the step alone, so that a resume needs no scheduler state."""
        if step <= self.warmup_steps:
            return self.learning_rate * step / self.warmup_steps
        if self.lr_schedule == "constant":
            return self.learning_rate
        done = (step - self.warmup_steps - 1) / max(1, total_steps - self.warmup_steps)
        return self.learning_rate * (1 - done if self.lr_schedule == "linear" else (1 + math.cos(math.pi * done)) / 2)


Chosen = TypeVar("Chosen", bound=Settings)


@dataclass(frozen=True)
class Table(Generic[Chosen]):
    """The hyperparameters of one method and what they are parsed into."""

    method: str
    make: type[Chosen]
    fields: tuple[Field, ...]


PACKING = Field("packing", "bool", False, "several rows in one sequence of max_length, which do not see each other")


@dataclass(frozen=True)
class PackedSettings(Settings):
    """Settings of methods whose rows may be packed."""

    packing: bool


SFT = Table("sft", PackedSettings, (*FIELDS, PACKING))


def parse(hyperparams: Mapping[str, Any], peft: Mapping[str, Any] | None, table: Table[Chosen]) -> Chosen:
    """Settings of a method from resolved hyperparameters and the spec's `model.peft`. Raises Refused with every fault of both at once."""
    wrong: list[Reason] = []
    known = {f.name: f for f in table.fields}
    values: dict[str, Any] = {f.name: f.default for f in table.fields}
    for name, value in hyperparams.items():
        field = known.get(name)
        if field is None:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else "see docs/training.md for the list"
            wrong.append(Reason("E-TRAIN-010", "unknown hyperparameter", f"hyperparams.{name}", hint=hint))
        elif name == "precision" and value == "fp16":
            wrong.append(
                Reason(
                    "E-TRAIN-012",
                    "fp16 is not offered: it needs loss scaling, which skips steps",
                    "hyperparams.precision",
                    "'fp16'",
                    field.allowed,
                )
            )
        elif fault := field.fault(value):
            wrong.append(Reason("E-TRAIN-011", fault, f"hyperparams.{name}", repr(value), field.allowed))
        else:
            values[name] = float(value) if field.kind == "float" else value
    wrong += [
        Reason("E-TRAIN-017", "is not given", f"hyperparams.{f.name}", allowed=f.allowed, hint=f.doc)
        for f in table.fields
        if f.default is None and f.name not in hyperparams
    ]
    if peft:
        lora, unfit = lora_of(peft, hyperparams, {n: Declared(f.default, f.allowed, f.fault) for n, f in known.items()})
        values |= {n: float(value) if known[n].kind == "float" else value for n, value in lora.items()}
        wrong += [Reason(c.code, c.message, c.field, c.found, c.allowed) for c in unfit]
    if wrong:
        raise Refused(wrong)
    chosen = table.make(**values)
    if faults := chosen.faults():
        raise Refused(faults)
    return chosen
