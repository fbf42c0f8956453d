"""tp recipe and tp runtime as a person or a program uses them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tuneplane.contract.layout import StorageRoot

from hpc.catalog.locks import make_lock, write_lock
from hpc.catalog.runtimes import parse_entries
from hpc.catalog.shelf import Catalogue, publish_shipped
from hpc.catalog.shipped import shipped
from hpc.cli.main import main
from tests.catalog.packs import toy_manifest, write_pack
from tests.catalog.roots import new_root
from tests.sif.sifs import small_sif


class Tp:
    """Runs the command in this process; keeps what it said."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys, self.out, self.err = capsys, "", ""

    def __call__(self, *args: str) -> int:
        with pytest.raises(SystemExit) as caught:
            main(list(args))
        self.out, self.err = self._capsys.readouterr()
        assert isinstance(caught.value.code, int)
        return caught.value.code

    def json(self, *args: str) -> Any:
        self(*args, "--json")
        return json.loads(self.out)


@pytest.fixture
def tp(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Tp:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    return Tp(capsys)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StorageRoot:
    """A storage root with the shipped recipes, in force."""
    laid = new_root(tmp_path)
    publish_shipped(laid)
    monkeypatch.setenv("TUNEPLANE_STORAGE_ROOT", str(laid.path))
    return laid


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with two experiments of deepspeed/sft, the working folder."""
    folder = tmp_path / "project"
    recipe = Catalogue.shipped().get("deepspeed/sft")
    for name in ("one", "two"):
        experiment = folder / "experiments" / name
        experiment.mkdir(parents=True)
        (experiment / "config.yaml").write_text("training: {lora_rank: 8}\n", "utf-8")
        write_lock(experiment, make_lock(recipe, core_version="0.4.0", config={"training": {"lora_rank": 8}}))
    (folder / "tuneplane.yaml").write_text("apiVersion: tuneplane/project/v1\nname: demo\n", "utf-8")
    monkeypatch.chdir(folder)
    return folder


def edit_lock(project: Path, name: str, part: str, key: str, value: str) -> None:
    path = project / "experiments" / name / "recipe.lock.json"
    lock = json.loads(path.read_text("utf-8"))
    lock[part][key] = value
    path.write_text(json.dumps(lock), "utf-8")


LATER = {"nemo-rl": "1.1.0", "openrlhf": "1.2.0", "verl": "1.2.0"}
"""Frameworks whose recipes are not in their first version."""


def test_recipe_ls_shows_the_catalogue_in_force(tp: Tp, root: StorageRoot) -> None:
    assert tp("recipe", "ls") == 0
    assert tp.out.splitlines()[0] == f"catalogue: {root.recipes}"
    assert [line.split()[:2] for line in tp.out.splitlines()[2:]] == [
        [recipe, LATER.get(recipe.partition("/")[0], "1.0.0")] for recipe in Catalogue.shipped().ids()
    ]
    assert tp.json("recipe", "ls")["recipes"][0]["runtimes"] == {"user-managed": "general-1"}


def test_recipe_ls_names_a_broken_pack_and_still_lists_the_others(tp: Tp, root: StorageRoot) -> None:
    write_pack(root.recipes, toy_manifest() | {"category": "cooking"})
    assert tp("recipe", "ls") == 1
    assert "custom/custom" in tp.out
    assert "E-CATALOG-004" in tp.err
    assert [e["code"] for e in tp.json("recipe", "ls")["errors"]] == ["E-CATALOG-004"]


def test_without_a_storage_root_the_shipped_catalogue_is_used_and_said(
    tp: Tp, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TUNEPLANE_STORAGE_ROOT", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(project))
    assert tp("recipe", "status") == 0
    assert tp.out.startswith("catalogue: shipped with this tp")


def test_status_shows_both_verdicts_and_upgrade_mends_them(tp: Tp, root: StorageRoot, project: Path) -> None:
    assert tp("recipe", "status") == 0
    edit_lock(project, "one", "recipe", "version", "0.9.0")
    edit_lock(project, "two", "framework", "runtime_id", "deepspeed-0.18.0")
    assert tp("recipe", "status") == 1
    rows = {line.split()[0]: line.split()[1:] for line in tp.out.splitlines()[2:4]}
    assert rows == {
        "one": ["deepspeed/sft", "compatible", "refuses"],
        "two": ["deepspeed/sft", "incompatible", "refuses"],
    }
    assert "mend: tp recipe upgrade --all" in tp.out
    assert tp("recipe", "status", "one") == 1
    found = tp.json("recipe", "status", "--all")["experiments"]
    assert [(e["experiment"], e["lock"]["admits"], e["admission"]["admits"]) for e in found] == [
        ("one", True, False),
        ("two", False, False),
    ]
    assert tp("recipe", "upgrade", "--all", "--dry-run") == 0
    assert "recipe.version: 0.9.0 -> 1.0.0" in tp.out
    assert tp("recipe", "status") == 1
    assert tp("recipe", "upgrade", "--all") == 0
    assert tp("recipe", "status") == 0


def test_upgrade_all_writes_nothing_when_one_experiment_cannot_be_upgraded(
    tp: Tp, root: StorageRoot, project: Path
) -> None:
    edit_lock(project, "one", "recipe", "version", "0.9.0")
    edit_lock(project, "two", "recipe", "name", "deepspeed/gone")
    before = (project / "experiments/one/recipe.lock.json").read_bytes()
    assert tp("recipe", "upgrade", "--all") == 1
    assert "E-CATALOG-001 two: " in tp.err
    assert (project / "experiments/one/recipe.lock.json").read_bytes() == before
    assert tp("recipe", "upgrade", "two", "--method", "deepspeed/sft") == 0
    assert tp("recipe", "upgrade", "--all") == 0
    assert tp("recipe", "status") == 0


def test_an_older_projects_method_file_names_the_recipe(tp: Tp, root: StorageRoot, project: Path) -> None:
    (project / "experiments/one/recipe.lock.json").unlink()
    assert tp("recipe", "status", "one") == 1
    assert "recipe.lock.json is missing" in tp.out
    assert "tp recipe upgrade one --method FRAMEWORK/METHOD" in tp.out
    (project / "experiments/one/method").write_text("deepspeed/sft\n", "utf-8")
    assert tp("recipe", "upgrade", "one") == 0
    assert tp("recipe", "status", "one") == 0


def test_a_config_that_cannot_be_read_is_a_refusal(tp: Tp, root: StorageRoot, project: Path) -> None:
    (project / "experiments/one/config.yaml").write_text("a: [\n", "utf-8")
    assert tp("recipe", "upgrade", "one") == 1
    assert "one: " in tp.err


@pytest.mark.parametrize(
    "args", [("upgrade",), ("upgrade", "one", "--all"), ("upgrade", "--all", "-m", "x/y"), ("status", "one", "--all")]
)
def test_contradictory_words_are_wrong_usage(tp: Tp, root: StorageRoot, project: Path, args: tuple[str, ...]) -> None:
    assert tp("recipe", *args) == 64


def test_publish_is_safe_to_run_again(tp: Tp, root: StorageRoot) -> None:
    assert tp("recipe", "publish") == 0
    assert {p["action"] for p in tp.json("recipe", "publish")} == {"unchanged"}


def test_a_runtime_from_registration_to_a_changed_file(tp: Tp, root: StorageRoot, tmp_path: Path) -> None:
    assert tp("runtime", "ls") == 0
    assert "none yet" in tp.err
    sif = small_sif(tmp_path / "g.sif", labels={"python.version": "3.13.5"})
    assert tp("runtime", "add", "general-1", str(sif)) == 0
    assert tp.out.splitlines()[0] == "general-1: new"
    done = tp.json("runtime", "add", "general-1", str(sif))
    assert (done["action"], done["runtime"]["python"]) == ("unchanged", "3.13.5")
    assert tp.json("runtime", "ls")["runtimes"] == [done["runtime"]]
    assert tp("runtime", "verify") == 0
    assert tp.out == "general-1: as registered (by sha256)\n"
    assert tp.json("runtime", "verify", "general-1", "--stat")["verified"][0]["how"] == "size+mtime+owner"
    with open(sif, "ab") as stream:
        stream.write(b"more")
    assert tp("runtime", "verify", "--stat") == 1
    assert "E-CATALOG-044" in tp.err
    assert done["runtime"]["sha256"] in tp.err
    assert [e["code"] for e in tp.json("runtime", "verify")["errors"]] == ["E-CATALOG-044"]
    assert tp("runtime", "verify", "other") == 1
    assert "E-CATALOG-040" in tp.err


def test_p56_verify_says_when_an_image_is_too_old_for_this_hosts_driver(
    tp: Tp, root: StorageRoot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = tmp_path / "libcuda.so.1"
    driver.write_bytes(b"\0GLIBC_2.38\0")
    add = "hpc.catalog.registering.image_glibc"
    monkeypatch.setattr(add, lambda sif: (2, 36))
    monkeypatch.setattr("hpc.sif.glibc.host_driver_libraries", lambda: [str(driver)])
    assert tp("runtime", "add", "general-1", str(small_sif(tmp_path / "g.sif"))) == 0
    assert tp("runtime", "verify") == 0
    assert "needs glibc 2.38, the image has 2.36" in tp.err
    assert tp.json("runtime", "verify")["notes"][0].startswith("general-1: ")


def test_a_definition_given_with_a_sif_is_recorded_by_its_digest(tp: Tp, root: StorageRoot, tmp_path: Path) -> None:
    sif = small_sif(tmp_path / "g.sif")
    definition = shipped("containers") / "general.def"
    done = tp.json("runtime", "add", "general-1", str(sif), "--definition", str(definition), "--copy")
    assert done["runtime"]["definition"].startswith("general.def@sha256:")
    (tmp_path / "no.def").write_text("nothing\n", "utf-8")
    assert tp("runtime", "add", "general-2", str(sif), "--definition", str(tmp_path / "no.def")) == 1
    assert "E-SIF-007" in tp.err


def test_build_without_apptainer_is_a_refusal_and_leaves_nothing(
    tp: Tp, root: StorageRoot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("hpc.sif.apptainer.SYSTEM_PATH", str(tmp_path))
    assert tp("runtime", "build", "general-1", "--tmp-dir", str(tmp_path)) == 1
    assert "E-SIF-001" in tp.err
    assert not root.runtimes_file.exists()
    assert list(tmp_path.glob("tp-build-*")) == []
    assert tp("runtime", "build", "mine-1") == 1
    assert "E-CATALOG-049" in tp.err


def test_a_failed_shipped_build_names_the_way_without_a_container_registry(
    tp: Tp, root: StorageRoot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "apptainer"
    program.parent.mkdir()
    program.write_text("#!/bin/bash\necho no such host >&2; exit 255\n", "utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    assert tp("runtime", "build", "general-1", "--tmp-dir", str(tmp_path)) == 1
    assert "E-SIF-003" in tp.err
    assert "containers/build-runtimes" in tp.err


def test_the_example_runtimes_file_is_read_by_the_same_rules() -> None:
    example = shipped("containers") / "runtimes.yaml"
    entries = parse_entries(example.read_text("utf-8"), origin="example")
    assert sorted(entries) == ["chem-3", "general-1"]


@pytest.mark.parametrize("group", ["recipe", "runtime"])
def test_every_command_has_help_and_json(tp: Tp, group: str) -> None:
    assert tp(group, "-h") == 0
    names = [line.split()[0] for line in tp.out.split("Commands:")[1].splitlines() if line.strip()]
    assert (
        names == {"recipe": ["ls", "publish", "status", "upgrade"], "runtime": ["add", "build", "ls", "verify"]}[group]
    )
    for name in names:
        assert tp(group, name, "-h") == 0
        assert "--json" in tp.out
