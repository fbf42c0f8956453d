from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpc.catalog.locks import (
    admission_refusals,
    lock_state,
    make_lock,
    observability_refusal,
    read_lock,
    write_lock,
)
from hpc.catalog.manifest import parse_manifest
from hpc.catalog.recipes import Recipe
from hpc.errors import Refusal
from tests.catalog.packs import TOY, VECTORS, toy, toy_catalogue, toy_manifest, write_pack

CASES = json.loads((VECTORS / "recipe_lock_cases.json").read_text("utf-8"))["cases"]
CONFIG = {"optim": {"lr": 0.001}, "epochs": 2, "model": {"base": "tiny"}}
OTHER = "sha256:" + "0" * 64


def fresh(core_version: str = "0.4.0") -> dict[str, Any]:
    return make_lock(toy(), core_version=core_version, config=CONFIG)


def put(path: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    def change(lock: dict[str, Any]) -> Any:
        *parents, last = path.split("/")
        part = lock
        for key in parents:
            part = part[key]
        part[last] = value
        return lock

    return change


# What each vector's words do to a fresh lock; the result is written as the lock file's text.
CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "unchanged": lambda lock: lock,
    "recipe.version older": put("recipe/version", "0.9.0"),
    "recipe.digest other": put("recipe/digest", OTHER),
    "template_digest other": put("recipe/template_digest", OTHER),
    "framework.runtime_id other": put("framework/runtime_id", "toyfw-0.9.0"),
    "framework.runtime_id empty": put("framework/runtime_id", ""),
    "framework.kind other": put("framework/kind", "otherfw"),
    "framework.version gone": put("framework/version", "0.9.0"),
    "requires.core other": put("requires/core", ">=0.2,<2"),
    "recipe.name unknown": put("recipe/name", "toyfw/gone"),
    "apiVersion v2": put("apiVersion", "tuneplane/recipe-lock/v2"),
    "not json": lambda lock: "{",
    "list root": lambda lock: [],
    "binding param gone": put("bindings/params/warmup", {"path": "warmup", "type": "int"}),
    "binding param moved": put("bindings/params/epochs", {"path": "trainer.epochs", "type": "int"}),
    "binding param type changed": put("bindings/params/epochs", {"path": "epochs", "type": "str"}),
    "binding entrypoint moved": put("bindings/entrypoint/value", "main.py"),
}


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["change"])
def test_lock_vectors(case: dict[str, Any], tmp_path: Path) -> None:
    changed = CHANGES[case["change"]](fresh())
    (tmp_path / "recipe.lock.json").write_text(changed if isinstance(changed, str) else json.dumps(changed), "utf-8")
    catalogue = toy_catalogue(tmp_path)
    lock: object = None
    if case["change"] == "not json":
        with pytest.raises(Refusal) as caught:
            read_lock(tmp_path)
        assert caught.value.code == "E-CATALOG-021"
    else:
        lock = read_lock(tmp_path)
    state = lock_state(lock, catalogue, "0.4.0")
    assert (state.state, state.admits) == (case["state"], case["admits"])
    assert bool(state.reasons) == (case["state"] != "current")


def test_a_lock_has_the_documented_shape_and_binds_only_what_the_config_sets() -> None:
    recipe = toy()
    assert make_lock(recipe, core_version="0.4.0", config={"epochs": 2}) == {
        "apiVersion": "tuneplane/recipe-lock/v1",
        "recipe": {
            "name": "toyfw/toy-sft",
            "version": "1.0.0",
            "digest": recipe.digest,
            "manifest_digest": recipe.manifest_digest,
            "template_digest": recipe.template_digest,
        },
        "framework": {"kind": "toyfw", "version": "1.0.0", "runtime_id": "toyfw-1.0.0"},
        "created_by": {"core_version": "0.4.0"},
        "requires": {"core": ">=0.3,<1"},
        "bindings": {
            "params": {"epochs": {"path": "epochs", "type": "int"}},
            "entrypoint": {"kind": "experiment", "value": "train.py"},
        },
    }


def test_a_lock_file_is_sorted_json_and_comes_back_equal(tmp_path: Path) -> None:
    write_lock(tmp_path, fresh())
    text = (tmp_path / "recipe.lock.json").read_text("utf-8")
    assert text == json.dumps(fresh(), indent=2, sort_keys=True) + "\n"
    assert read_lock(tmp_path) == fresh()


def test_a_missing_lock_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(Refusal) as caught:
        read_lock(tmp_path)
    assert caught.value.code == "E-CATALOG-020"
    assert "tp recipe upgrade EXP --method" in caught.value.hint


@pytest.mark.parametrize("value", [None, 3, "x", [], {}, {"apiVersion": "tuneplane/recipe-lock/v1", "recipe": 1}])
def test_what_is_no_lock_is_malformed_and_nothing_raises(value: object, tmp_path: Path) -> None:
    assert lock_state(value, toy_catalogue(tmp_path)).state == "malformed"


def test_a_cli_outside_the_catalogues_range_is_sdk_incompatible(tmp_path: Path) -> None:
    state = lock_state(fresh(), toy_catalogue(tmp_path), "1.0.0")
    assert (state.state, state.admits) == ("sdk_incompatible", False)
    assert state.reasons == ["toyfw/toy-sft requires tp >=0.3,<1; this is 1.0.0"]


def test_a_deprecated_version_advises_an_upgrade(tmp_path: Path) -> None:
    catalogue = toy_catalogue(tmp_path)
    manifest = toy_manifest()
    manifest["runtime"]["versions"]["1.0.0"] |= {"status": "deprecated", "sunset": "2027-01-01"}
    write_pack(catalogue.folder, manifest)
    state = lock_state(fresh(), catalogue, "0.4.0")
    assert (state.state, state.admits) == ("upgrade_advised", True)
    assert state.reasons[0] == "toyfw 1.0.0 is deprecated, ends 2027-01-01"


ADMISSION = [
    ("recipe/name", "toyfw/gone", "E-CATALOG-022"),
    ("recipe/version", "0.9.0", "E-CATALOG-023"),
    ("recipe/digest", OTHER, "E-CATALOG-024"),
    ("framework/kind", "otherfw", "E-CATALOG-025"),
    ("framework/runtime_id", "toyfw-0.9.0", "E-CATALOG-026"),
    ("framework/runtime_id", "", "E-CATALOG-026"),
    ("framework/version", "0.9.0", "E-CATALOG-014"),
]


def spec_of(lock: dict[str, Any]) -> dict[str, Any]:
    framework = {k: v for k, v in lock["framework"].items() if v}
    return {
        "apiVersion": "tuneplane/v1",
        "spec": {"recipe": lock["recipe"], "framework": framework},
        "provenance": {"core_version": "0.4.0"},
    }


@pytest.mark.parametrize(("path", "value", "code"), ADMISSION)
def test_admission_refuses_any_difference_of_lock_and_spec(path: str, value: str, code: str) -> None:
    lock = put(path, value)(fresh())
    field = path.replace("/", ".")
    assert [(r.code, r.field) for r in admission_refusals(lock, toy(), "0.4.0")] == [(code, field)]
    assert [(r.code, r.field) for r in admission_refusals(spec_of(lock), toy(), "0.4.0")] == [(code, f"spec.{field}")]
    one = admission_refusals(lock, toy(), "0.4.0")[0]
    assert (one.found or "(none)") in one.message


def test_admission_of_an_unchanged_lock_and_its_spec_has_no_complaint() -> None:
    assert admission_refusals(fresh(), toy(), "0.4.0") == []
    assert admission_refusals(spec_of(fresh()), toy(), "0.4.0") == []


def test_admission_does_not_compare_the_template() -> None:
    assert admission_refusals(put("recipe/template_digest", OTHER)(fresh()), toy(), "0.4.0") == []


def test_requires_core_is_refused_naming_both_versions() -> None:
    (one,) = admission_refusals(fresh(), toy(), "1.2.0")
    assert (one.code, one.field, one.found, one.allowed) == (
        "E-CATALOG-027",
        "provenance.core_version",
        "1.2.0",
        ">=0.3,<1",
    )
    assert "tp 1.2.0" in one.message
    assert "toyfw/toy-sft 1.0.0" in one.message


def test_requires_core_of_the_lock_itself_is_refused_too() -> None:
    (one,) = admission_refusals(put("requires/core", ">=0.9,<1")(fresh()), toy(), "0.4.0")
    assert (one.code, one.field, one.allowed) == ("E-CATALOG-027", "requires.core", ">=0.9,<1")


def test_a_custom_job_with_an_image_has_its_runtime_chosen_by_the_image() -> None:
    manifest = toy_manifest() | {"framework": "custom", "name": "custom"}
    manifest["runtime"] = {"default_version": "user-managed", "versions": {"user-managed": {"runtime_id": "general-1"}}}
    recipe = Recipe(TOY, manifest, parse_manifest(manifest))
    spec = spec_of(make_lock(recipe, core_version="0.4.0", config={}))
    assert admission_refusals(spec, recipe, "0.4.0") == []
    spec["spec"]["framework"]["runtime_id"] = "mine-1"
    assert [r.code for r in admission_refusals(spec, recipe, "0.4.0")] == ["E-CATALOG-026"]
    spec["spec"]["framework"]["image"] = "example.org/mine:1"
    assert admission_refusals(spec, recipe, "0.4.0") == []


@pytest.mark.parametrize(
    ("observability", "url", "code"),
    [
        ("external", "", "E-CATALOG-030"),
        ("external", "https://dashboard.example.org/x", None),
        ("platform", "https://dashboard.example.org/x", "E-CATALOG-031"),
        ("platform", "", None),
    ],
)
def test_the_observability_rule_holds_both_ways(observability: str, url: str, code: str | None) -> None:
    manifest = toy_manifest()
    manifest["adapter_options"]["observability"] = observability
    refusal = observability_refusal(Recipe(TOY, manifest, parse_manifest(manifest)), url)
    assert (refusal and refusal.code) == code
    assert refusal is None or refusal.field == "spec.framework.observability_url"
