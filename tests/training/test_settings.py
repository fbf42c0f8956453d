from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
from tuneplane.training.refusals import Refused
from tuneplane.training.settings import FIELDS, parse

DOCS = Path(__file__).resolve().parents[2] / "docs" / "training.md"


def refused(hyperparams: dict[str, Any], peft: dict[str, Any] | None = None) -> list[tuple[str, str]]:
    with pytest.raises(Refused) as caught:
        parse(hyperparams, peft)
    return [(r.code, r.field) for r in caught.value.reasons]


def test_nothing_given_means_the_declared_defaults() -> None:
    settings = parse({})
    assert {f.name: getattr(settings, f.name) for f in FIELDS} == {f.name: f.default for f in FIELDS}
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
    one, other = parse({}), parse({"save_steps": 7, "keep_checkpoints": 9, "log_steps": 1, "eval_steps": 5})
    assert one.exact() == other.exact()
    assert len(one.exact()) == len(FIELDS) - 4


def test_the_documented_table_is_the_code_s_table() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|$", DOCS.read_text(), re.MULTILINE))
    expected = {
        f.name: f"{f.allowed} | {str(f.default).lower() if f.kind == 'bool' else f.default} | {f.doc}".replace("|", "¦")
        for f in FIELDS
    }
    assert {n: re.sub(r"\\?\|", "¦", r) for n, r in rows.items() if n in expected} == expected
