from __future__ import annotations

import os
from typing import Any

import pytest
import tuneplane
from tuneplane.training import trl_settings
from tuneplane.training.settings import SFT, Table
from tuneplane.training.tables import TABLES

from hpc.catalog.locks import admits_core
from hpc.catalog.shelf import Catalogue
from hpc.catalog.shipped import shipped

METHODS = [
    "custom/custom",
    "deepspeed/distill",
    "deepspeed/dpo",
    "deepspeed/grpo",
    "deepspeed/kto",
    "deepspeed/rm",
    "deepspeed/sft",
    "evalkit/behaviour",
    "evalkit/benchmark",
    "nemo-rl/grpo",
    "openrlhf/grpo",
    "openrlhf/sft",
    "trl/dpo",
    "trl/grpo",
    "trl/kto",
    "trl/rm",
    "trl/sft",
    "verl/grpo",
    "verl/ppo",
    "verl/sft",
]


def test_the_shipped_catalogue_has_these_methods() -> None:
    good, bad = Catalogue.shipped().readable()
    assert [r.id for r in good] == METHODS
    assert bad == []


@pytest.mark.parametrize("recipe_id", METHODS)
def test_a_shipped_pack_has_no_typo_admits_this_core_and_carries_its_entry(recipe_id: str) -> None:
    recipe = Catalogue.shipped().get(recipe_id)
    assert recipe.typed.unknown_keys() == []
    assert admits_core(recipe.requires_core, tuneplane.__version__)
    entry = recipe.entrypoint()
    assert (entry.kind == "experiment") == (entry.value in recipe.template_files())
    assert entry.kind in ("experiment", "module")
    assert recipe.observability == "platform"
    assert recipe.orchestrator in ("process-group", "ray" if recipe.integration else "process-group")


def test_the_custom_recipe_runs_train_sh_in_the_general_runtime_without_parameters() -> None:
    recipe = Catalogue.shipped().get("custom/custom")
    assert recipe.is_custom
    assert recipe.versions == ["user-managed"]
    assert (recipe.entrypoint().value, recipe.runtime_id()) == ("train.sh", "general-1")
    assert recipe.resolve({}) == {}
    assert os.access(shipped("recipes") / "custom/custom/template/train.sh", os.X_OK)


@pytest.mark.parametrize(
    ("framework", "table"),
    [*(("deepspeed", t) for t in (SFT, *TABLES.values())), *(("trl", t) for t in trl_settings.TABLES.values())],
    ids=lambda v: v if isinstance(v, str) else v.method,
)
def test_a_recipe_declares_exactly_what_the_training_program_reads(framework: str, table: Table[Any]) -> None:
    recipe = Catalogue.shipped().get(f"{framework}/{table.method}")
    version = {"deepspeed": "0.19.8", "trl": "1.16.0"}[framework]
    assert (recipe.default_version, recipe.runtime_id()) == (version, f"{framework}-{version}")
    rows = [] if table.method == "grpo" else ["train"]  # it may have tasks instead
    assert (recipe.roles, recipe.required_inputs) == (["trainer"], ["model", *rows])
    declared = {
        n: (p.type, p.default, p.required, p.min, p.max, p.exclusive_min, tuple(p.choices), p.doc)
        for n, p in recipe.typed.params.items()
    }
    assert declared == {
        f.name: (f.kind, f.default, f.default is None, f.low, f.high, f.above, f.choices, f.doc) for f in table.fields
    }
    assert all(p.path == f"training.{n}" and p.group for n, p in recipe.typed.params.items())
    assert recipe.configured({"training": {"lora_rank": 8}}) == {"lora_rank": 8}


def test_unknown_kinds_of_data_are_our_bug() -> None:
    with pytest.raises(ValueError, match="unknown kind"):
        shipped("secrets")  # type: ignore[arg-type]
