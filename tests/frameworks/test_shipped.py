"""The integrations that come with the toolkit: their launch plans whole, and every option by the name that the framework's release knows.

The frameworks themselves are not run here: they need GPUs. `tests/data/frameworks/options/` holds the option names of their releases.
Committed plans are written anew by `UPDATE_PLANS=1 pytest tests/frameworks`; read the difference before you commit it.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tuneplane.contract.plans import unknown_words
from tuneplane.record.digest import directory_digest_v1

from hpc.catalog.recipes import Recipe, load_recipe
from hpc.catalog.shipped import shipped
from hpc.errors import Refusal
from hpc.plugins.compiling import Wanted, compile_plan
from hpc.plugins.integrations import NAME
from hpc.spec.yamltext import parse_yaml

DATA = Path(__file__).parents[1] / "data" / "frameworks"
METHODS = {
    "nemo-rl/grpo": "nemo-rl-0.7.0-grpo",
    "openrlhf/grpo": "openrlhf-0.11.0-grpo",
    "openrlhf/sft": "openrlhf-0.11.0-sft",
    "verl/grpo": "verl-0.9.0-ppo",
    "verl/ppo": "verl-0.9.0-ppo",
    "verl/sft": "verl-0.9.0-sft",
}
NOT_IN_THE_FILE = {
    "nemo-rl/grpo": {"defaults", "data.train.data_path", "data.validation.data_path", "data.validation.dataset_name", "data.default.dataset_name",
                     "data.default.input_key", "data.default.output_key"},
    "verl/grpo": {"hydra.run.dir", "hydra.output_subdir"}, "verl/ppo": {"hydra.run.dir", "hydra.output_subdir"},
    "verl/sft": {"hydra.run.dir", "hydra.output_subdir"},
}  # fmt: skip
"""Options that the release documents elsewhere than in its default configuration."""


def recipe_of(method: str) -> Recipe:
    return load_recipe(shipped("recipes") / method)


def job_of(recipe: Recipe, **changes: Any) -> Wanted:
    """A job of two nodes with eight GPUs, model and rows given, every parameter at its default."""
    version = recipe.default_version
    job = Wanted(
        framework=recipe.framework, methods=(recipe.id,), engine=recipe.engine, runtime_id=recipe.runtime_id(), runtime_digest="",
        orchestrator=recipe.orchestrator, inputs=("model", "train", "validation"), nodes=2, gpus_per_node=8, world_size=16,
        hyperparams=recipe.resolve({}), paths={n: p.path_for(n, version) for n, p in recipe.typed.params.items()}, spec={}, recipe=recipe.manifest,
    )  # fmt: skip
    return replace(job, **changes)


def plan_of(method: str, **changes: Any) -> dict[str, Any]:
    recipe = recipe_of(method)
    folder = shipped("plugins") / recipe.integration.partition("/")[2]
    files = {p.relative_to(folder).as_posix(): p.stat().st_size for p in folder.rglob("*") if p.is_file()}
    identity = {"id": recipe.integration, "version": "1.0.0", "digest": directory_digest_v1(folder)}
    return compile_plan(folder, files, identity, job_of(recipe, **changes))


def options_of(method: str, plan: dict[str, Any]) -> dict[str, Any]:
    """Every option of a plan by its name."""
    if method.startswith("nemo-rl"):
        return dict(_leaves(json.loads(plan["files"]["grpo.yaml"])))
    words = plan["argv"][4:]
    if method.startswith("verl"):
        return dict(word.split("=", 1) for word in words)
    return {words[n][2:]: words[n + 1 : n + 2] for n in range(len(words)) if words[n].startswith("--")}


def _leaves(value: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    out: list[tuple[str, Any]] = []
    for key, item in value.items():
        out += _leaves(item, f"{prefix}{key}.") if isinstance(item, dict) else [(prefix + key, item)]
    return out


@pytest.mark.parametrize("method", METHODS)
def test_the_launch_plan_is_the_committed_one(method: str) -> None:
    plan, golden = plan_of(method), DATA / "plans" / f"{method.replace('/', '-')}.json"
    if os.environ.get("UPDATE_PLANS"):
        golden.write_text(json.dumps(plan, indent=1, sort_keys=True) + "\n", "utf-8")
    assert plan == json.loads(golden.read_text("utf-8"))


@pytest.mark.parametrize("method", METHODS)
def test_every_option_has_a_name_that_the_release_knows(method: str) -> None:
    known = set((DATA / "options" / f"{METHODS[method]}.txt").read_text("utf-8").split())
    used = set(options_of(method, plan_of(method)))
    assert used - known - NOT_IN_THE_FILE.get(method, set()) == set()
    without_default = {p.path for p in recipe_of(method).typed.params.values()} - used
    assert without_default - known - NOT_IN_THE_FILE.get(method, set()) == set()


@pytest.mark.parametrize("method", METHODS)
def test_a_set_parameter_reaches_its_option_and_the_platform_keeps_its_own(method: str) -> None:
    recipe = recipe_of(method)
    name = next(n for n, p in recipe.typed.params.items() if p.type == "int" and p.default not in (None, 7))
    given = recipe.resolve({name: 7})
    plan = plan_of(method, hyperparams=given)
    shown = options_of(method, plan)[recipe.typed.params[name].path]
    assert str(shown) in ("7", "['7']")
    text = json.dumps(plan)
    assert "${TUNEPLANE_MODEL_PATH}" in text
    assert "${TUNEPLANE_TRAIN_DATA}" in text
    assert "${TUNEPLANE_CHECKPOINT_DIR}" in text, "what a later attempt goes on from lies in the run's folder"
    assert re.search(r"hub|https?:", text) is None, "nothing is fetched in a job"
    assert unknown_words(text, {"TUNEPLANE_MODEL_PATH"}), "words are filled in by the launcher"


@pytest.mark.parametrize("method", METHODS)
def test_the_framework_gets_the_shape_of_the_job(method: str) -> None:
    options = options_of(method, plan_of(method, nodes=3, gpus_per_node=4, world_size=12))
    found = {
        k: str(v).strip("[']")
        for k, v in options.items()
        if re.search(r"nnodes|num_nodes|gpus_per_node|num_engines", k)
    }
    if method == "openrlhf/sft":  # its ranks are started by the launcher and know the shape from their environment
        assert found == {}
    else:
        assert set(found.values()) <= {"3", "4", "12"}
        assert {"3", "4"} <= set(found.values())


@pytest.mark.parametrize("method", [m for m in METHODS if not m.startswith("nemo")])
def test_a_job_without_gpus_is_refused_in_words(method: str) -> None:
    with pytest.raises(Refusal) as caught:
        plan_of(method, gpus_per_node=0)
    assert caught.value.code == "E-FRAME-004"
    assert "choose a profile" in caught.value.message


def test_gpus_that_do_not_divide_into_engines_are_refused_before_the_queue() -> None:
    recipe = recipe_of("openrlhf/grpo")
    with pytest.raises(Refusal) as caught:
        plan_of("openrlhf/grpo", hyperparams=recipe.resolve({"tensor_parallel": 3}))
    assert caught.value.message == "tuneplane/framework-openrlhf: tensor_parallel 3 does not divide 16 GPUs"


@pytest.mark.parametrize("method", METHODS)
def test_a_recipe_names_an_integration_that_names_it(method: str) -> None:
    recipe = recipe_of(method)
    owner, name = recipe.integration.split("/")
    declared = json.loads((shipped("plugins") / name / NAME).read_text("utf-8"))
    profile = next(p for p in declared["profiles"] if p["method"] == method)
    assert (owner, profile["framework"], profile["runtime_id"]) == ("tuneplane", recipe.framework, recipe.runtime_id())
    assert recipe.orchestrator == ("process-group" if method.endswith("/sft") else "ray")


@pytest.mark.parametrize("method", METHODS)
def test_every_key_of_the_template_s_configuration_is_a_parameter_in_its_range(method: str) -> None:
    recipe = recipe_of(method)
    config = parse_yaml((recipe.template / "config.yaml").read_text("utf-8"), origin="config.yaml")
    found = recipe.configured(config)
    assert len(found) == len(_leaves(config[recipe.typed.config_section])) > 5
    assert recipe.resolve(found) == recipe.resolve({}), "the template says the defaults"
