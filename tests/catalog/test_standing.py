from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tuneplane.record import files

from hpc.catalog.locks import make_lock, read_lock, write_lock
from hpc.catalog.shelf import Catalogue
from hpc.catalog.standing import Upgrade, apply_upgrades, plan_upgrade, standing
from hpc.errors import Refusal
from tests.catalog.packs import toy, toy_catalogue, toy_manifest, write_pack

CONFIG = {"epochs": 2}


def experiment(tmp_path: Path, name: str, **changes: str) -> Path:
    """An experiment with a lock of the toy recipe; changes are `recipe__version="0.9.0"`."""
    folder = tmp_path / "experiments" / name
    folder.mkdir(parents=True)
    lock = make_lock(toy(), core_version="0.4.0", config=CONFIG)
    for path, value in changes.items():
        part, key = path.split("__")
        lock[part][key] = value
    write_lock(folder, lock)
    return folder


def plan(folder: Path, catalogue: Catalogue, **options: Any) -> Upgrade:
    return plan_upgrade(folder, CONFIG, catalogue, core_version="0.4.0", **options)


@pytest.mark.parametrize(
    ("changes", "state", "codes"),
    [
        ({}, "current", []),
        ({"recipe__version": "0.9.0"}, "compatible", ["E-CATALOG-023"]),
        ({"recipe__digest": "sha256:" + "0" * 64}, "compatible", ["E-CATALOG-024"]),
        ({"recipe__template_digest": "sha256:" + "0" * 64}, "compatible", []),
        ({"framework__runtime_id": ""}, "compatible", ["E-CATALOG-026"]),
        ({"framework__version": "0.9.0"}, "runtime_removed", ["E-CATALOG-014"]),
        ({"recipe__name": "toyfw/gone"}, "malformed", ["E-CATALOG-001"]),
    ],
)
def test_both_verdicts_are_shown_and_an_upgrade_mends_either(
    tmp_path: Path, changes: dict[str, str], state: str, codes: list[str]
) -> None:
    catalogue, folder = toy_catalogue(tmp_path), experiment(tmp_path, "a", **changes)
    found = standing(folder, catalogue, "0.4.0")
    assert (found.lock.state, [r.code for r in found.refusals]) == (state, codes)
    assert found.good == (found.lock.admits and not codes)
    apply_upgrades([plan(folder, catalogue, method="toyfw/toy-sft" if state == "malformed" else "")])
    mended = standing(folder, catalogue, "0.4.0")
    assert (mended.lock.state, mended.good) == ("current", True)


@pytest.mark.parametrize("text", [None, "{", "[]", '{"apiVersion": "tuneplane/recipe-lock/v2"}'])
def test_a_lock_that_is_none_is_mended_by_naming_the_method(tmp_path: Path, text: str | None) -> None:
    catalogue, folder = toy_catalogue(tmp_path), tmp_path / "a"
    folder.mkdir()
    if text is not None:
        (folder / "recipe.lock.json").write_text(text, "utf-8")
    found = standing(folder, catalogue, "0.4.0")
    assert (found.lock.state, found.good) == ("malformed", False)
    assert len(found.refusals) == 1
    with pytest.raises(Refusal) as caught:
        plan(folder, catalogue)
    assert "--method" in caught.value.hint
    apply_upgrades([plan(folder, catalogue, method="toyfw/toy-sft")])
    assert standing(folder, catalogue, "0.4.0").good


def test_an_older_file_form_with_a_known_name_needs_no_method(tmp_path: Path) -> None:
    catalogue, folder = toy_catalogue(tmp_path), experiment(tmp_path, "a")
    lock = json.loads((folder / "recipe.lock.json").read_text("utf-8")) | {"apiVersion": "tuneplane/recipe-lock/v0"}
    write_lock(folder, lock)
    apply_upgrades([plan(folder, catalogue)])
    assert standing(folder, catalogue, "0.4.0").lock.state == "current"


def test_a_plan_says_what_changes_and_writes_nothing(tmp_path: Path) -> None:
    catalogue, folder = toy_catalogue(tmp_path), experiment(tmp_path, "a", recipe__version="0.9.0")
    before = (folder / "recipe.lock.json").read_bytes()
    planned = plan(folder, catalogue)
    assert planned.changes == ["recipe.version: 0.9.0 -> 1.0.0"]
    assert (folder / "recipe.lock.json").read_bytes() == before
    apply_upgrades([planned])
    assert plan(folder, catalogue).changes == []


def test_the_locked_framework_version_is_kept_while_it_exists(tmp_path: Path) -> None:
    catalogue, folder = toy_catalogue(tmp_path), experiment(tmp_path, "a")
    manifest = toy_manifest() | {"version": "2.0.0"}
    manifest["runtime"]["versions"]["2.0.0"] = {"runtime_id": "toyfw-2.0.0", "deployment_artifact": True}
    manifest["runtime"]["default_version"] = "2.0.0"
    write_pack(catalogue.folder, manifest)
    assert plan(folder, catalogue).lock["framework"]["version"] == "1.0.0"
    assert plan(folder, catalogue, framework_version="2.0.0").lock["framework"] == {
        "kind": "toyfw",
        "version": "2.0.0",
        "runtime_id": "toyfw-2.0.0",
    }
    with pytest.raises(Refusal) as caught:
        plan(folder, catalogue, framework_version="3.0.0")
    assert caught.value.code == "E-CATALOG-014"
    del manifest["runtime"]["versions"]["1.0.0"]
    write_pack(catalogue.folder, manifest)
    assert plan(folder, catalogue).lock["framework"]["version"] == "2.0.0"


def test_settings_that_the_new_recipe_refuses_are_remarked(tmp_path: Path) -> None:
    catalogue, folder = toy_catalogue(tmp_path), experiment(tmp_path, "a")
    manifest = toy_manifest() | {"version": "2.0.0"}
    manifest["params"]["epochs"]["min"] = 5
    write_pack(catalogue.folder, manifest)
    assert [(r.code, r.field) for r in plan(folder, catalogue).remarks] == [
        ("E-CATALOG-012", "spec.hyperparams.epochs")
    ]


def test_an_upgrade_is_no_way_round_requires_core(tmp_path: Path) -> None:
    catalogue, folder = toy_catalogue(tmp_path), experiment(tmp_path, "a")
    write_pack(catalogue.folder, toy_manifest() | {"requires": {"core": ">=0.9,<1"}})
    with pytest.raises(Refusal) as caught:
        plan(folder, catalogue)
    assert (caught.value.code, caught.value.found, caught.value.allowed) == ("E-CATALOG-027", "0.4.0", ">=0.9,<1")


@pytest.mark.parametrize("fault", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("fails_at", [0, 1, 2])
def test_of_several_locks_all_are_written_or_none(tmp_path: Path, fault: BaseException, fails_at: int) -> None:
    catalogue = toy_catalogue(tmp_path)
    folders = [experiment(tmp_path, n, recipe__version="0.9.0") for n in "abc"]
    (folders[1] / "recipe.lock.json").unlink()
    before = [(f / "recipe.lock.json").exists() and read_lock(f) for f in folders]
    planned = [plan(f, catalogue, method="toyfw/toy-sft") for f in folders]
    calls = iter(range(3))

    def replace(path: Path, data: bytes) -> None:
        if next(calls) == fails_at:
            raise fault
        files.replace(path, data)

    with pytest.raises(Refusal if isinstance(fault, OSError) else KeyboardInterrupt) as caught:
        apply_upgrades(planned, replace)
    assert not isinstance(caught.value, Refusal) or caught.value.code == "E-CATALOG-029"
    assert [(f / "recipe.lock.json").exists() and read_lock(f) for f in folders] == before
    apply_upgrades(planned)
    assert all(standing(f, catalogue, "0.4.0").good for f in folders)
