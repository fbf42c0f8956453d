"""Hyperparameters that are good alone and contradict each other, or `model.peft`: asked before the queue wait and again in the job. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Contradiction:
    """One of them; `code` is the catalogue's, `field` a path as the user wrote it."""

    message: str
    field: str
    found: str
    allowed: str
    code: str = "E-TRAIN-016"


def contradictions(values: Mapping[str, Any]) -> list[Contradiction]:
    """What is wrong with the resolved settings of a training method together, LoRA's as `model.peft` says. Each must be good alone."""
    out = _four_bit(values)
    if values.get("loss_type") == "ipo" and values.get("label_smoothing"):
        smoothing = str(values["label_smoothing"])
        out.append(Contradiction("ipo has no such term", "hyperparams.label_smoothing", smoothing, "0"))
    return out + (_groups(values) if "num_generations" in values else [])


def _four_bit(values: Mapping[str, Any]) -> list[Contradiction]:
    if not values.get("load_in_4bit"):
        return []
    out = []
    if not values["lora_rank"]:
        text = "weights in 4 bits cannot be trained, and there are no adapters"
        out.append(Contradiction(text, "hyperparams.load_in_4bit", "true", "false, or lora_rank above 0"))
    if values["zero_stage"] == 3:
        text = "weights in 4 bits cannot be shared out among the ranks"
        out.append(Contradiction(text, "hyperparams.zero_stage", "3", "0, 1 or 2"))
    return out


def _groups(values: Mapping[str, Any]) -> list[Contradiction]:
    """Of methods that draw groups of answers to a prompt."""
    out = []
    micro, accumulation, group = (values[k] for k in ("micro_batch_size", "gradient_accumulation", "num_generations"))
    if micro * accumulation % group:
        text, found = "a rank's answers of a step are not whole groups", f"{micro} x {accumulation} answers"
        out.append(
            Contradiction(text, "hyperparams.micro_batch_size", found, f"a multiple of num_generations ({group})")
        )
    answer, room = values["max_completion_length"], values["max_length"] - 8
    if answer > room:
        text, field = "leaves no room for a prompt", "hyperparams.max_completion_length"
        out.append(Contradiction(text, field, str(answer), f"at most max_length - 8 ({room})"))
    if values["beta"] and not values["lora_rank"]:
        text = "the reference is the model without its adapters, and there are none"
        out.append(Contradiction(text, "hyperparams.beta", str(values["beta"]), "0, or lora_rank above 0"))
    if values["lora_dropout"]:
        text = "the model that answers must be the one that is trained"
        out.append(Contradiction(text, "hyperparams.lora_dropout", str(values["lora_dropout"]), "0"))
    return out


@dataclass(frozen=True)
class Declared:
    """What is known of a hyperparameter: its default, what may stand there, and why a value may not ("" if it may)."""

    default: Any
    allowed: str
    fault: Callable[[Any], str]


def lora_of(
    peft: Mapping[str, Any], hyperparams: Mapping[str, Any], known: Mapping[str, Declared]
) -> tuple[dict[str, Any], list[Contradiction]]:
    """The LoRA settings that `{kind: lora, dim, alpha}` of the spec means, and why they cannot be taken.

    A hyperparameter that says something else is a contradiction, unless it is the default. `known`: of `lora_rank` and `lora_alpha`.
    """
    values: dict[str, Any] = {}
    wrong: list[Contradiction] = []

    def bad(key: str, message: str, found: str = "", allowed: str = "") -> None:
        wrong.append(Contradiction(message, f"model.peft.{key}", found, allowed, "E-TRAIN-013"))

    if peft.get("kind") != "lora":
        bad("kind", "unknown kind", repr(peft.get("kind")), "lora")
    for key in sorted(set(peft) - {"kind", "dim", "alpha"}):
        bad(key, "unknown key", allowed="kind, dim, alpha")
    for key, name in (("dim", "lora_rank"), ("alpha", "lora_alpha")):
        if (value := peft.get(key)) is None:
            continue
        said = hyperparams.get(name, known[name].default)
        if fault := known[name].fault(value) or ("0 is no adapter" if value == 0 else ""):
            bad(key, fault, repr(value), known[name].allowed)
        elif said not in (known[name].default, value):
            bad(key, f"hyperparams.{name} says {said!r}", repr(value))
        else:
            values[name] = value
    if peft.get("dim") is None and not hyperparams.get("lora_rank", known["lora_rank"].default):
        bad("dim", "no rank is given", allowed=known["lora_rank"].allowed)
    return values, wrong
