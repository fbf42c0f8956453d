"""The integrations that come with the toolkit: their launch plans whole, and every option by the name that the framework's release knows.

The frameworks themselves are not run here: they need GPUs. `tests/data/frameworks/options/` holds the option names of their releases.
Committed plans are written anew by `UPDATE_PLANS=1 pytest tests/frameworks`; read the difference before you commit it.
"""

from __future__ import annotations

import json
import os
import re
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tuneplane.contract.plans import unknown_words
from tuneplane.record.digest import directory_digest_v1

from hpc.catalog.recipes import Recipe, load_recipe
from hpc.catalog.shipped import shipped
from hpc.errors import Refusal, Refusals
from hpc.plugins.compiling import Wanted, compile_plan
from hpc.plugins.fitting import FORMS, SEVERAL, Machines, row_faults
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
        orchestrator=recipe.orchestrator, inputs=("model", "train", "validation"), pools={"all": Machines(2, 8)}, world_size=16,
        hyperparams=recipe.resolve({}), paths={n: p.path_for(n, version) for n, p in recipe.typed.params.items()}, spec={}, recipe=recipe.manifest,
    )  # fmt: skip
    return replace(job, **changes)


def plan_of(method: str, **changes: Any) -> dict[str, Any]:
    recipe = recipe_of(method)
    folder = shipped("plugins") / recipe.integration.partition("/")[2]
    files = {p.relative_to(folder).as_posix(): p.stat().st_size for p in folder.rglob("*") if p.is_file()}
    version = parse_yaml((folder / "plugin.yaml").read_text("utf-8"), origin="plugin.yaml")["version"]
    identity = {"id": recipe.integration, "version": version, "digest": directory_digest_v1(folder)}
    return compile_plan(folder, files, identity, job_of(recipe, **changes))


def options_of(method: str, plan: dict[str, Any]) -> dict[str, Any]:
    """Every option of a plan by its name; a flag's value in a list, which is empty for a switch."""
    if method.startswith("nemo-rl"):
        return dict(_leaves(json.loads(plan["files"]["grpo.yaml"])))
    words = plan["argv"][4:]
    if method.startswith("verl"):
        return dict(word.split("=", 1) for word in words)
    pairs = zip(words, [*words[1:], "--"], strict=True)
    return {word[2:]: [] if value.startswith("--") else [value] for word, value in pairs if word.startswith("--")}


def _leaves(value: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    out: list[tuple[str, Any]] = []
    for key, item in value.items():
        out += _leaves(item, f"{prefix}{key}.") if isinstance(item, dict) else [(prefix + key, item)]
    return out


TRAIN, ROLLOUT, REFERENCE = Machines(2, 8), Machines(1, 8), Machines(1, 8)
APART: dict[str, Any] = {
    "pools": {"actor": TRAIN, "rollout": ROLLOUT},
    "roles": {"actor": "actor", "rollout": "rollout"},
    "world_size": 24,
}
ALL_APART: dict[str, Any] = {
    "pools": {"actor": TRAIN, "reference": REFERENCE, "rollout": ROLLOUT},
    "roles": {"actor": "actor", "reference": "reference", "rollout": "rollout"},
    "world_size": 32,
}
PLANS: list[tuple[str, str, dict[str, Any]]] = [
    *((method, "", {}) for method in METHODS),
    ("nemo-rl/grpo", "-apart", APART),
    ("openrlhf/grpo", "-apart", APART),
    ("openrlhf/grpo", "-all-apart", ALL_APART),
    ("openrlhf/grpo", "-without-validation", {"inputs": ("model", "train")}),
]


@pytest.mark.parametrize(("method", "way", "changes"), PLANS, ids=[method + way for method, way, _ in PLANS])
def test_the_launch_plan_is_the_committed_one(method: str, way: str, changes: dict[str, Any]) -> None:
    plan, golden = plan_of(method, **changes), DATA / "plans" / f"{method.replace('/', '-')}{way}.json"
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


NEMO = "policy.generation.colocated.resources"
SHAPES: dict[str, dict[str, Any]] = {
    "nemo-rl/grpo": {"cluster.num_nodes": 3, "cluster.gpus_per_node": 4, f"{NEMO}.num_nodes": None, f"{NEMO}.gpus_per_node": None},
    "openrlhf/grpo": {
        "actor.num_nodes": ["3"], "actor.num_gpus_per_node": ["4"], "ref.num_nodes": ["3"], "ref.num_gpus_per_node": ["4"],
        "vllm.num_engines": ["12"],
    },
    "openrlhf/sft": {},
    **{f"verl/{name}": {"trainer.nnodes": "3", "trainer.n_gpus_per_node": "4"} for name in ("grpo", "ppo", "sft")},
}  # fmt: skip
"""What says 3 nodes of 4 GPUs. The ranks of openrlhf/sft are started by the launcher and know it from their environment."""


@pytest.mark.parametrize("method", METHODS)
def test_the_framework_gets_the_shape_of_the_job(method: str) -> None:
    options = options_of(method, plan_of(method, pools={"all": Machines(3, 4)}, world_size=12))
    found = {k: v for k, v in options.items() if re.search(r"nnodes|num_nodes|gpus_per_node|num_engines", k)}
    assert found == SHAPES[method]


def test_roles_on_pools_of_their_own_get_their_nodes() -> None:
    options = options_of("openrlhf/grpo", plan_of("openrlhf/grpo", **APART))
    shape = {k: v for k, v in options.items() if re.search(r"num_nodes|num_engines|colocate|enable_sleep", k)}
    assert shape == {
        "actor.num_nodes": ["2"],
        "ref.num_nodes": ["2"],
        "vllm.num_engines": ["8"],
        "train.colocate_actor_ref": [],
    }, "a switch that is on, and no engine sleeps"
    apart = options_of("openrlhf/grpo", plan_of("openrlhf/grpo", **ALL_APART))
    assert (apart["actor.num_nodes"], apart["ref.num_nodes"], "train.colocate_actor_ref" in apart) == (
        ["2"],
        ["1"],
        False,
    )
    nemo = options_of("nemo-rl/grpo", plan_of("nemo-rl/grpo", **APART))
    assert (nemo["cluster.num_nodes"], nemo["policy.generation.colocated.enabled"]) == (3, False)
    assert (nemo[f"{NEMO}.num_nodes"], nemo[f"{NEMO}.gpus_per_node"]) == (1, 8)


@pytest.mark.parametrize(("method", "roles"), [
    ("verl/grpo", APART), ("verl/ppo", APART), ("nemo-rl/grpo", ALL_APART),
    ("openrlhf/grpo", APART | {"roles": {"actor": "actor", "reference": "rollout"}}),
    ("verl/sft", APART | {"roles": {"trainer": "actor"}}), ("openrlhf/sft", {"roles": {"actor": "all"}}),
])  # fmt: skip
def test_a_placement_that_the_framework_has_no_option_for_is_refused(method: str, roles: dict[str, Any]) -> None:
    with pytest.raises(Refusal) as caught:
        plan_of(method, **roles)
    assert caught.value.code == "E-FRAME-014"


def test_a_pool_for_a_model_that_there_is_not_is_refused() -> None:
    with pytest.raises(Refusal) as caught:
        plan_of("openrlhf/grpo", **ALL_APART, hyperparams=recipe_of("openrlhf/grpo").resolve({"kl_coef": 0}))
    assert "there is no reference model" in caught.value.message


@pytest.mark.parametrize("method", METHODS)
def test_the_roles_that_can_be_placed_are_the_recipe_s(method: str) -> None:
    recipe = recipe_of(method)
    declared = json.loads((shipped("plugins") / recipe.integration.partition("/")[2] / NAME).read_text("utf-8"))
    profile = next(p for p in declared["profiles"] if p["method"] == method)
    for groups in profile["placements"]:
        assert sorted(role for group in groups for role in group) == sorted(recipe.roles)


READ = {
    "nemo-rl/grpo": {"arrow", "csv", "folder", "json", "jsonl", "parquet"},
    "openrlhf/grpo": {"arrow", "csv", "folder", "json", "jsonl", "parquet"},
    "openrlhf/sft": {"arrow", "csv", "folder", "json", "jsonl", "parquet"},
    "verl/grpo": {"json", "jsonl", "parquet"}, "verl/ppo": {"json", "jsonl", "parquet"}, "verl/sft": {"parquet"},
}  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_rows_that_the_framework_s_reader_would_stop_at_are_refused(method: str) -> None:
    folder = shipped("plugins") / recipe_of(method).integration.partition("/")[2]
    profiles = json.loads((folder / NAME).read_text("utf-8"))["profiles"]
    profile = next(p for p in profiles if p["method"] == method)
    for form in (*FORMS, SEVERAL, ""):
        found = [(f.code, f.field) for f in row_faults(profile, {"train": "parquet", "validation": form})]
        assert found == ([] if form in READ[method] else [("E-FRAME-013", "spec.data.validation")])


@pytest.mark.parametrize("method", METHODS)
def test_a_path_of_rows_that_the_framework_would_split_is_refused(method: str) -> None:
    rows = {"train": "/shared/gsm8k/train.jsonl", "validation": "/shared/gsm8k@v2/test.jsonl"}
    if not method.startswith("openrlhf"):
        assert plan_of(method, row_paths=rows) == plan_of(method)
        return
    with pytest.raises(Refusals) as caught:
        plan_of(method, row_paths=rows)
    (fault,) = caught.value.items
    assert (fault.code, fault.field, fault.found) == ("E-FRAME-013", "spec.data.validation", rows["validation"])
    assert (fault.message, fault.allowed) == (
        f"{method} takes a path of rows for several parts at @",
        "a path without @ or ,",
    )


@pytest.mark.parametrize("method", METHODS)
def test_adapters_that_the_compiler_does_not_read_are_refused(method: str) -> None:
    """Else all weights would be trained, without a word."""
    spec = {"spec": {"model": {"base": "m", "peft": {"kind": "lora", "dim": 16}}}}
    with pytest.raises(Refusals) as caught:
        plan_of(method, spec=spec)
    assert [(f.code, f.field) for f in caught.value.items] == [("E-FRAME-015", "spec.model.peft")]


@pytest.mark.parametrize(
    ("method", "name", "value"),
    [
        ("openrlhf/grpo", "eval_steps", 0), ("openrlhf/grpo", "save_steps", 0), ("openrlhf/sft", "eval_steps", 0),
        ("openrlhf/sft", "save_steps", 0), ("verl/sft", "save_freq", 0), ("verl/sft", "test_freq", 0),
        *((method, "keep_checkpoints", 1) for method in METHODS if method.startswith("verl")),
        *((method, "keep_checkpoints", 2) for method in METHODS if method.startswith("openrlhf")),
    ],
)  # fmt: skip
def test_a_value_by_which_the_framework_would_stop_or_lose_its_checkpoint_is_refused(
    method: str, name: str, value: int
) -> None:
    """It takes steps modulo these, and removes what is there before the new checkpoint counts."""
    recipe = recipe_of(method)
    with pytest.raises(Refusals) as caught:
        recipe.resolve({name: value})
    assert [(f.code, f.field) for f in caught.value.items] == [("E-CATALOG-012", f"spec.hyperparams.{name}")]
    assert recipe.resolve({name: value + 1})[name] == value + 1


def test_the_number_of_kept_checkpoints_is_the_critic_s_too() -> None:
    options = options_of(
        "verl/ppo", plan_of("verl/ppo", hyperparams=recipe_of("verl/ppo").resolve({"keep_checkpoints": 5}))
    )
    assert (options["trainer.max_actor_ckpt_to_keep"], options["trainer.max_critic_ckpt_to_keep"]) == ("5", "5")


ANSWERS = [
    ("the answer is 42", "42", 1.0), ("\\boxed is not asked for: 42\n", "42", 1.0), ("42 it is", "42", 0.0), ("", "42", 0.0),
    ("the answer is 142", "42", 0.0), ("so it is -42", "42", 0.0), ("so it is -42", "-42", 1.0), ("about 3.42", "42", 0.0),
    ("答案是42", "42", 1.0), ("$42", 42, 1.0), ("anything", "", 0.0),
]  # fmt: skip
PROMPT = "<|im_start|>user\nWhat is 40 + 2? One says 42<|im_end|>\n<|im_start|>assistant\n"
ENDS = [
    "",
    "<|im_end|>",
    "<|im_end|>\n",
    "</s>",
    "<|eot_id|>",
    "<end_of_turn>\n<eos>",
    "<|endoftext|><|endoftext|>",
    "<｜end▁of▁sentence｜>",
]


def function_of(method: str, name: str) -> Any:
    return runpy.run_path(str(recipe_of(method).template / "reward.py"))[name]


def test_the_template_of_a_reward_counts_a_finished_answer() -> None:
    """OpenRLHF hands over the whole text with its special tokens, and may put one before the prompt; verl the answer alone, without them."""
    rewards = function_of("openrlhf/grpo", "reward_func")
    cases = [(before, end, *answer) for before in ("", "<s>") for end in ENDS for answer in ANSWERS]
    queries = [f"{before}{PROMPT}{answer}{end}" for before, end, answer, _, _ in cases]
    found = rewards(queries, [PROMPT] * len(cases), [label for *_, label, _ in cases])
    wanted = [score for *_, score in cases]
    assert (found["rewards"].tolist(), found["scores"].tolist(), found["extra_logs"]) == (wanted, wanted, {})
    for method in ("verl/grpo", "verl/ppo"):
        compute = function_of(method, "compute_score")
        assert [compute("toy", answer, label) for answer, label, _ in ANSWERS] == [score for *_, score in ANSWERS]


@pytest.mark.parametrize("method", [m for m in METHODS if not m.startswith("nemo")])
def test_a_job_without_gpus_is_refused_in_words(method: str) -> None:
    with pytest.raises(Refusal) as caught:
        plan_of(method, pools={"all": Machines(2, 0)})
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
