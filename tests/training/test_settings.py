from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
from tuneplane.training import settings as module
from tuneplane.training.refusals import Refused
from tuneplane.training.settings import FIELDS, SFT, Settings
from tuneplane.training.tables import TABLES

EVERY = {"sft": SFT, **TABLES}
DOCS = Path(__file__).resolve().parents[2] / "docs" / "training.md"


def parse(hyperparams: dict[str, Any], peft: dict[str, Any] | None = None) -> Settings:
    return module.parse(hyperparams, peft, SFT)


def refused(hyperparams: dict[str, Any], peft: dict[str, Any] | None = None) -> list[tuple[str, str]]:
    with pytest.raises(Refused) as caught:
        parse(hyperparams, peft)
    return [(r.code, r.field) for r in caught.value.reasons]


def test_nothing_given_means_the_declared_defaults() -> None:
    settings = parse({})
    assert {f.name: getattr(settings, f.name) for f in SFT.fields} == {f.name: f.default for f in SFT.fields}
    assert not settings.lora


def test_every_fault_is_named_at_once() -> None:
    bad = {
        "learning_rate": 0,
        "learnig_rate": 1e-4,
        "epochs": True,
        "max_steps": 1.0,
        "zero_stage": 4,
        "lr_schedule": "poly",
        "gradient_checkpointing": "yes",
        "lora_targets": " ",
        "weight_decay": math.nan,
    }
    assert refused(bad) == [
        ("E-TRAIN-010" if name == "learnig_rate" else "E-TRAIN-011", f"hyperparams.{name}") for name in bad
    ]


def test_an_unknown_name_comes_with_a_suggestion() -> None:
    with pytest.raises(Refused, match="did you mean learning_rate"):
        parse({"learnig_rate": 1e-4})


def test_fp16_is_refused_with_the_reason() -> None:
    with pytest.raises(Refused, match=r"E-TRAIN-012.*loss scaling(.|\n)*allowed  auto \| bf16 \| fp32"):
        parse({"precision": "fp16"})


def test_an_int_passes_as_a_float_and_becomes_one() -> None:
    assert parse({"epochs": 2}).epochs == 2.0
    assert type(parse({"epochs": 2}).epochs) is float


def test_peft_of_the_spec_sets_the_lora_fields() -> None:
    settings = parse({}, {"kind": "lora", "dim": 8, "alpha": 32})
    assert (settings.lora, settings.lora_rank, settings.lora_alpha) == (True, 8, 32.0)
    assert parse({"lora_rank": 8}, {"kind": "lora", "dim": 8}).lora_rank == 8
    assert parse({"lora_rank": 8}, {"kind": "lora"}).lora_rank == 8


@pytest.mark.parametrize(
    ("peft", "field"),
    [
        ({"kind": "dora", "dim": 8}, "model.peft.kind"),
        ({"kind": "lora", "dim": 0}, "model.peft.dim"),
        ({"kind": "lora", "dim": 16}, "model.peft.dim"),
        ({"kind": "lora", "dim": 8, "alpha": -1}, "model.peft.alpha"),
        ({"kind": "lora", "dim": 8, "rank": 8}, "model.peft.rank"),
    ],
)
def test_peft_that_is_wrong_or_contradicts_a_hyperparameter_is_refused(peft: dict[str, Any], field: str) -> None:
    assert refused({"lora_rank": 8}, peft) == [("E-TRAIN-013", field)]


def test_peft_without_a_rank_anywhere_is_refused() -> None:
    assert refused({}, {"kind": "lora"}) == [("E-TRAIN-013", "model.peft.dim")]


def test_learning_rates_of_each_schedule() -> None:
    def rates(schedule: str, steps: int = 6) -> list[float]:
        settings = parse({"learning_rate": 1.0, "warmup_steps": 2, "lr_schedule": schedule})
        return [round(settings.lr_at(step, steps), 6) for step in range(1, steps + 1)]

    assert rates("constant") == [0.5, 1, 1, 1, 1, 1]
    assert rates("linear") == [0.5, 1, 1, 0.75, 0.5, 0.25]
    assert rates("cosine") == [0.5, 1, 1, 0.853553, 0.5, 0.146447]


def test_only_what_does_not_touch_the_numbers_may_change_between_attempts() -> None:
    changed = {"save_steps": 7, "keep_checkpoints": 9, "log_steps": 1, "eval_steps": 5, "async_save": False}
    one, other = parse({}), parse(changed)
    assert one.exact() == other.exact()
    assert len(one.exact()) == len(SFT.fields) - len(changed)


def documented(text: str, heading: str) -> dict[str, str]:
    """The rows of the hyperparameter table under a heading of the page."""
    section = text.partition(f"\n{heading}\n")[2].partition("\n## ")[0].partition("\n### ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \|$", section, re.MULTILINE)
    return {name: re.sub(r"\\?\|", "¦", row) for name, row in rows}


def row_of(field: module.Field) -> str:
    default = str(field.default).lower() if field.kind == "bool" else field.default
    default = "none, it must be given" if default is None else default
    return f"{field.allowed} | {default} | {field.doc}".replace("|", "¦")


def test_the_documented_table_is_the_code_s_table() -> None:
    assert documented(DOCS.read_text(), "## Hyperparameters") == {f.name: row_of(f) for f in FIELDS}


@pytest.mark.parametrize("method", EVERY)
def test_the_documented_table_of_a_method_has_its_own_names_and_its_other_defaults(method: str) -> None:
    known = {f.name: f for f in FIELDS}
    assert documented(DOCS.read_text(), f"### deepspeed/{method}") == {
        f.name: row_of(f) for f in EVERY[method].fields if f != known.get(f.name)
    }


@pytest.mark.parametrize("method", TABLES)
def test_a_method_s_settings_have_an_attribute_a_field(method: str) -> None:
    table = TABLES[method]
    given = {f.name: "/somewhere" for f in table.fields if f.default is None}
    made = module.parse(given, None, table)
    expected = {f.name: f.default for f in table.fields} | given
    assert {f.name: getattr(made, f.name) for f in table.fields} == expected
    assert set(made.exact()) == {f.name for f in table.fields if f.exact}


def test_a_value_without_a_default_must_be_given() -> None:
    with pytest.raises(Refused, match=r"E-TRAIN-017 hyperparams.teacher: is not given"):
        module.parse({}, None, TABLES["distill"])


def test_values_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(Refused, match=r"E-TRAIN-016 hyperparams.label_smoothing: ipo has no such term"):
        module.parse({"loss_type": "ipo", "label_smoothing": 0.1}, None, TABLES["dpo"])


@pytest.mark.parametrize("method", EVERY)
def test_weights_in_4_bits_need_adapters_and_a_stage_that_leaves_them_whole(method: str) -> None:
    given = {"load_in_4bit": True, **({"teacher": "/t"} if method == "distill" else {})}
    with pytest.raises(Refused) as caught:
        module.parse(given | {"zero_stage": 3}, None, EVERY[method])
    assert [(r.code, r.field) for r in caught.value.reasons] == [
        ("E-TRAIN-016", "hyperparams.load_in_4bit"),
        ("E-TRAIN-016", "hyperparams.zero_stage"),
    ]
    assert module.parse(given | {"lora_rank": 8}, None, EVERY[method]).load_in_4bit
