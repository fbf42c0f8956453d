"""What the training program refuses of settings and shape alone is refused before the queue, by the same rules."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tuneplane.training import tables, trl_settings
from tuneplane.training.refusals import Refused
from tuneplane.training.settings import SFT, Table, parse

from hpc.catalog.recipes import Recipe, load_recipe
from hpc.spec.parts import Peft
from hpc.submit.engine import settings_faults

RECIPES = Path(__file__).parents[2] / "recipes"
TABLES = {
    **{f"deepspeed/{name}": table for name, table in {"sft": SFT, **tables.TABLES}.items()},
    **{f"trl/{name}": table for name, table in trl_settings.TABLES.items()},
}


def recipe(name: str) -> Recipe:
    return load_recipe(RECIPES / name)


def told(
    name: str,
    *variants: dict[str, Any],
    peft: dict[str, Any] | None = None,
    lead_s: int = 60,
    pack: Any = None,
    **values: Any,
) -> list[tuple[str, str]]:
    """(code, field) of what is refused."""
    pack = pack or recipe(name)
    model = SimpleNamespace(peft=Peft(**peft) if peft else None)
    spec: Any = SimpleNamespace(spec=SimpleNamespace(hyperparams=values, model=model))
    return [(f.code, f.field) for f in settings_faults(spec, pack, pack.default_version, variants, lead_s=lead_s)]


def in_the_job(name: str, values: dict[str, Any], peft: dict[str, Any] | None = None) -> list[tuple[str, str]]:
    """The same, of the training program, which is given every hyperparameter of launch.json."""
    pack = recipe(name)
    try:
        parse(pack.resolve(values, pack.default_version), peft, TABLES[name])
    except Refused as refused:
        return [(r.code, f"spec.{r.field}") for r in refused.reasons]
    return []


@pytest.mark.parametrize(
    ("name", "values", "fields"),
    [
        ("deepspeed/grpo", {"micro_batch_size": 1, "gradient_accumulation": 4}, ["micro_batch_size"]),
        ("deepspeed/grpo", {"micro_batch_size": 6}, ["micro_batch_size"]),
        ("trl/grpo", {"micro_batch_size": 6}, ["micro_batch_size"]),
        ("deepspeed/grpo", {"max_completion_length": 1020, "beta": 0.1}, ["max_completion_length", "beta"]),
        ("deepspeed/grpo", {"lora_rank": 4, "lora_dropout": 0.1}, ["lora_dropout"]),
        ("deepspeed/grpo", {"lora_rank": 4, "beta": 0.1}, []),
        ("deepspeed/sft", {"load_in_4bit": True, "zero_stage": 3}, ["load_in_4bit", "zero_stage"]),
        ("trl/kto", {"load_in_4bit": True}, ["load_in_4bit"]),
        ("deepspeed/dpo", {"loss_type": "ipo", "label_smoothing": 0.1}, ["label_smoothing"]),
        ("deepspeed/dpo", {"label_smoothing": 0.1}, []),
    ],
)
def test_values_that_contradict_each_other(name: str, values: dict[str, Any], fields: list[str]) -> None:
    wanted = [("E-TRAIN-016", f"spec.hyperparams.{field}") for field in fields]
    assert told(name, **values) == in_the_job(name, values) == wanted


@pytest.mark.parametrize(
    ("values", "peft", "field"),
    [
        ({}, {"kind": "dora", "dim": 8}, "kind"),
        ({}, {"kind": "lora"}, "dim"),
        ({}, {"kind": "lora", "dim": 5000}, "dim"),
        ({"lora_rank": 4}, {"kind": "lora", "dim": 8}, "dim"),
        ({}, {"kind": "lora", "dim": 8, "alpha": 200_000}, "alpha"),
        ({"lora_rank": 8}, {"kind": "lora", "dim": 8, "alpha": 16}, ""),
    ],
)
def test_lora_of_the_spec_and_of_the_hyperparameters(values: dict[str, Any], peft: dict[str, Any], field: str) -> None:
    wanted = [("E-TRAIN-013", f"spec.model.peft.{field}")] if field else []
    assert told("deepspeed/sft", peft=peft, **values) == in_the_job("deepspeed/sft", values, peft) == wanted


def test_lora_of_the_spec_counts_where_values_need_adapters() -> None:
    peft = {"kind": "lora", "dim": 8}
    assert (
        told("deepspeed/sft", peft=peft, load_in_4bit=True)
        == in_the_job("deepspeed/sft", {"load_in_4bit": True}, peft)
        == []
    )
    assert told("deepspeed/grpo", peft=peft, beta=0.1) == []


@pytest.mark.parametrize("text", ["", "  ", "q_proj\n"])
def test_a_text_that_says_nothing(text: str) -> None:
    values = {"lora_targets": text}
    assert (
        told("deepspeed/sft", **values)
        == in_the_job("deepspeed/sft", values)
        == [("E-TRAIN-011", "spec.hyperparams.lora_targets")]
    )


def test_each_variant_of_a_sweep_is_asked_and_a_fault_said_once() -> None:
    rows = [{"num_generations": 8}, {"num_generations": 3}, {"num_generations": 5}]
    pack = recipe("deepspeed/grpo")
    spec: Any = SimpleNamespace(spec=SimpleNamespace(hyperparams={}, model=None))
    (fault,) = settings_faults(spec, pack, pack.default_version, rows, lead_s=60)
    assert (fault.code, fault.message) == (
        "E-TRAIN-016",
        "a rank's answers of a step are not whole groups, in variant 1",
    )
    assert told("deepspeed/grpo", {"num_generations": "x"}, {"nothing": 1}) == []  # wrong alone: the recipe refuses it


def test_a_warning_without_time_to_save() -> None:
    assert told("deepspeed/sft", lead_s=0) == [("E-SPEC-044", "spec.slurm.signal")]


def test_of_another_s_method_and_another_framework_nothing_is_known() -> None:
    pack = load_recipe(RECIPES / "deepspeed/grpo", owner="alice")
    assert told("", pack=pack, micro_batch_size=1) == []
    assert told("verl/grpo") == []


def test_a_wrong_value_is_left_to_the_recipe() -> None:
    assert told("deepspeed/grpo", micro_batch_size=-1) == []


@pytest.mark.parametrize("name", sorted(TABLES))
def test_a_method_s_defaults_contradict_nothing(name: str) -> None:
    needed: dict[str, Any] = {"teacher": "t"} if name.endswith("/distill") else {}
    table: Table[Any] = TABLES[name]
    assert told(name, **needed) == in_the_job(name, needed) == []
    assert set(recipe(name).typed.params) == {f.name for f in table.fields}
