from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from hpc.catalog.manifest import parse_manifest
from hpc.catalog.recipes import load_recipe
from hpc.errors import Refusal, Refusals
from tests.catalog.packs import TOY, VECTORS, toy, toy_manifest, write_pack

CASES = json.loads((VECTORS / "recipe_cases.json").read_text("utf-8"))


def faults(exc: Refusal | Refusals) -> list[Refusal]:
    return exc.items if isinstance(exc, Refusals) else [exc]


def test_the_toy_packs_digests_are_the_documented_ones() -> None:
    recipe = toy()
    assert recipe.id == CASES["id"]
    assert recipe.manifest_digest == CASES["manifest_digest"]
    assert recipe.digest == CASES["digest"]
    assert recipe.template_digest == CASES["template_digest"]


@pytest.mark.parametrize("case", CASES["hyperparams"], ids=lambda c: json.dumps(c["input"]))
def test_hyperparameter_vectors(case: dict[str, Any]) -> None:
    recipe = toy()
    if case["verdict"] == "accept":
        resolved = recipe.resolve(case["input"])
        assert resolved == case["out"]
        assert [type(v) for v in resolved.values()] == [type(v) for v in case["out"].values()]
        assert recipe.overrides(case["input"]) == case["overrides"]
    else:
        with pytest.raises(Refusals) as caught:
            recipe.resolve(case["input"])
        assert [r.field for r in caught.value.items] == [case["field"]]


def test_all_hyperparameter_faults_come_at_once() -> None:
    with pytest.raises(Refusals) as caught:
        toy().resolve({"learning_rat": 1, "sched": "step"})
    assert [(r.code, r.field) for r in caught.value.items] == [
        ("E-CATALOG-010", "spec.hyperparams"),
        ("E-CATALOG-011", "spec.hyperparams"),
        ("E-CATALOG-012", "spec.hyperparams.sched"),
    ]
    assert "did you mean learning_rate?" in caught.value.items[0].message
    assert caught.value.items[2].allowed == "one of linear, cosine"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True, "0.1", None])
def test_a_float_parameter_takes_finite_numbers_only(value: object) -> None:
    with pytest.raises(Refusals) as caught:
        toy().resolve({"epochs": 1, "learning_rate": value})
    assert [r.field for r in caught.value.items] == ["spec.hyperparams.learning_rate"]


def test_byte_code_beside_a_template_does_not_move_the_digest(tmp_path: Path) -> None:
    folder = tmp_path / "toy-sft"
    shutil.copytree(TOY, folder)
    before = load_recipe(folder).template_digest
    cache = folder / "template" / "__pycache__"
    cache.mkdir()
    (cache / "train.cpython-311.pyc").write_bytes(b"\0compiled")
    (folder / "template" / "train.pyc").write_bytes(b"\0compiled")
    recipe = load_recipe(folder)
    assert recipe.template_digest == before == CASES["template_digest"]
    assert recipe.template_files() == ["train.py"]
    (folder / "template" / "other.py").write_text("1\n", "utf-8")
    assert load_recipe(folder).template_digest != before


def test_a_template_edit_leaves_the_handshake_digest_alone(tmp_path: Path) -> None:
    folder = tmp_path / "toy-sft"
    shutil.copytree(TOY, folder)
    (folder / "template" / "train.py").write_text("print(1)\n", "utf-8")
    recipe = load_recipe(folder)
    assert recipe.digest == CASES["digest"]
    assert recipe.template_digest != CASES["template_digest"]


def changed(path: str, value: Any) -> dict[str, Any]:
    """The toy manifest with one key set (or removed, by ...)."""
    manifest = toy_manifest()
    *parents, last = path.split("/")
    part = manifest
    for key in parents:
        part = part[key]
    if value is ...:
        del part[last]
    else:
        part[last] = value
    return manifest


BAD = [
    *(
        (key, ..., key, "E-CATALOG-003")
        for key in ("name", "version", "framework", "entrypoint", "template", "metrics", "artifacts")
    ),
    *((key, ..., key, "E-CATALOG-003") for key in ("lifecycle", "lifecycle_resources", "adapter_options", "runtime")),
    ("adapter_options/observability", ..., "adapter_options.observability", "E-CATALOG-003"),
    ("name", "two/parts", "name", "E-CATALOG-004"),
    ("version", 1.0, "version", "E-CATALOG-004"),
    ("contract_version", "1.0", "contract_version", "E-CATALOG-004"),
    ("category", "cooking", "category", "E-CATALOG-004"),
    ("modalities", ["text", "smell"], "modalities.1", "E-CATALOG-004"),
    ("adapter_options/observability", "none", "adapter_options.observability", "E-CATALOG-004"),
    ("adapter_options/orchestrator", "mpi", "adapter_options.orchestrator", "E-CATALOG-004"),
    ("adapter_options/required_inputs", ["corpus"], "adapter_options.required_inputs.0", "E-CATALOG-004"),
    ("entrypoint/kind", "script", "entrypoint.kind", "E-CATALOG-004"),
    ("entrypoint/value", "../train.py", "entrypoint.value", "E-CATALOG-004"),
    ("entrypoint/value", "", "entrypoint.value", "E-CATALOG-004"),
    ("template", "/etc", "template", "E-CATALOG-004"),
    ("lifecycle", {"export": {"kind": "module", "value": "m"}}, "lifecycle_resources", "E-CATALOG-004"),
    ("lifecycle_resources", {"export": 0}, "lifecycle_resources", "E-CATALOG-004"),
    ("lifecycle_resources", {"export": -1}, "lifecycle_resources.export", "E-CATALOG-004"),
    ("roles", ["two words"], "roles.0", "E-CATALOG-004"),
    ("artifacts/version", "tuneplane/artifacts/v2", "artifacts.version", "E-CATALOG-004"),
    ("artifacts/logs", ["../logs"], "artifacts.logs[0]", "E-CATALOG-004"),
    ("runtime/default_version", "2.0.0", "runtime.default_version", "E-CATALOG-004"),
    ("runtime/versions", {}, "runtime.versions", "E-CATALOG-004"),
    ("runtime/versions/1.0.0/runtime_id", ..., "runtime.versions.1.0.0.runtime_id", "E-CATALOG-003"),
    ("runtime/versions/1.0.0/deployment_artifact", False, "runtime.versions.1.0.0", "E-CATALOG-004"),
    (
        "runtime/versions/1.0.0/source",
        {"kind": "oci", "reference": "example.org/a:1"},
        "runtime.versions.1.0.0",
        "E-CATALOG-004",
    ),
    (
        "runtime/versions/1.0.0/source",
        {"kind": "tar", "reference": "a"},
        "runtime.versions.1.0.0.source.kind",
        "E-CATALOG-004",
    ),
    ("runtime/versions/1.0.0/image", "example.org/a:1", "runtime.versions.1.0.0.image", "E-CATALOG-004"),
    ("runtime/versions/1.0.0/status", "beta", "runtime.versions.1.0.0.status", "E-CATALOG-004"),
    ("params/epochs/type", "integer", "params.epochs.type", "E-CATALOG-004"),
    ("params/epochs/max", 0, "params.epochs.min", "E-CATALOG-004"),
    ("params/epochs/default", 0, "params.epochs.default", "E-CATALOG-004"),
    ("params/epochs/versions", ["9.9.9"], "params.epochs", "E-CATALOG-004"),
    ("params/learning_rate/default", True, "params.learning_rate.default", "E-CATALOG-004"),
    ("params/learning_rate/min", ..., "params.learning_rate.exclusive_min", "E-CATALOG-004"),
    ("params/sched/excluded", [0], "params.sched", "E-CATALOG-004"),
    ("params/learning_rate/excluded", [1e-05], "params.learning_rate.default", "E-CATALOG-004"),
    ("params/sched/choices", [], "params.sched.choices", "E-CATALOG-004"),
    ("params/sched/choices", ["linear", 1], "params.sched.choices", "E-CATALOG-004"),
    ("params/sched/min", 1, "params.sched", "E-CATALOG-004"),
    ("requires/core", "about 1", "requires.core", "E-CATALOG-004"),
]


@pytest.mark.parametrize(("path", "value", "field", "code"), BAD)
def test_one_bad_value_is_refused_with_its_field(path: str, value: Any, field: str, code: str) -> None:
    with pytest.raises(Refusals) as caught:
        parse_manifest(changed(path, value))
    assert (code, field) in [(r.code, r.field) for r in caught.value.items]


def test_two_versions_may_not_share_a_runtime() -> None:
    manifest = toy_manifest()
    manifest["runtime"]["versions"]["1.0.1"] = dict(manifest["runtime"]["versions"]["1.0.0"])
    with pytest.raises(Refusals) as caught:
        parse_manifest(manifest)
    assert [r.field for r in caught.value.items] == ["runtime.versions.1.0.1.runtime_id"]


def test_unknown_keys_are_kept_and_named() -> None:
    manifest = toy_manifest()
    manifest["new_idea"] = 1
    manifest["params"]["epochs"]["mim"] = 0
    manifest["adapter_options"]["launcher"] = "torchrun"
    assert parse_manifest(manifest).unknown_keys() == ["new_idea", "params.epochs.mim"]


def test_a_pack_must_be_called_like_its_folder(tmp_path: Path) -> None:
    shutil.copytree(TOY, tmp_path / "other")
    with pytest.raises(Refusal) as caught:
        load_recipe(tmp_path / "other")
    assert caught.value.code == "E-CATALOG-005"


def test_a_pack_without_recipe_yaml_or_template_is_refused(tmp_path: Path) -> None:
    (tmp_path / "toy-sft").mkdir()
    with pytest.raises(Refusal) as caught:
        load_recipe(tmp_path / "toy-sft")
    assert caught.value.code == "E-CATALOG-002"
    folder = write_pack(tmp_path, toy_manifest())
    shutil.rmtree(folder / "template")
    with pytest.raises(Refusal) as caught:
        load_recipe(folder)
    assert caught.value.code == "E-CATALOG-006"


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_template_never_reaches_outside_the_pack_by_a_link(tmp_path: Path, kind: str) -> None:
    folder = write_pack(tmp_path / "shelf", toy_manifest())
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("x", "utf-8")
    (folder / "template" / "l").symlink_to(tmp_path / "secret" / ("key" if kind == "file" else ""))
    with pytest.raises(Refusal) as caught:
        load_recipe(folder)
    assert (caught.value.code, caught.value.found) == ("E-CATALOG-006", "a link")


def test_text_that_is_not_yaml_names_file_and_line(tmp_path: Path) -> None:
    folder = write_pack(tmp_path, toy_manifest())
    (folder / "recipe.yaml").write_text("name: [\n", "utf-8")
    with pytest.raises(Refusal) as caught:
        load_recipe(folder)
    assert caught.value.code == "E-SPEC-001"
    assert "recipe.yaml:" in caught.value.field


def test_versions_paths_and_entrypoints_follow_the_framework_version() -> None:
    manifest = toy_manifest()
    manifest["runtime"]["versions"]["2.0.0"] = {
        "runtime_id": "toyfw-2.0.0",
        "deployment_artifact": True,
        "entrypoint": {"kind": "module", "value": "toy.train"},
    }
    manifest["params"]["epochs"]["path_overrides"] = {"2.0.0": "trainer.epochs"}
    manifest["params"]["sched"]["versions"] = ["1.0.0"]
    typed = parse_manifest(manifest)
    from hpc.catalog.recipes import Recipe

    recipe = Recipe(TOY, manifest, typed)
    assert recipe.entrypoint().value == "train.py"
    assert recipe.entrypoint("2.0.0").value == "toy.train"
    assert recipe.runtime_id("2.0.0") == "toyfw-2.0.0"
    assert recipe.overrides({"epochs": 2}, "2.0.0") == ["optim.lr=1e-05", "trainer.epochs=2"]
    assert recipe.configured({"trainer": {"epochs": 3}, "epochs": 1}, "2.0.0") == {"epochs": 3}
    with pytest.raises(Refusals) as caught:
        recipe.resolve({"epochs": 2, "sched": "linear"}, "2.0.0")
    assert [(r.code, r.field) for r in caught.value.items] == [("E-CATALOG-013", "spec.hyperparams.sched")]
    with pytest.raises(Refusal) as one:
        recipe.runtime_id("3.0.0")
    assert (one.value.code, one.value.allowed) == ("E-CATALOG-014", "1.0.0, 2.0.0")
