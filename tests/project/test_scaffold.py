"""New projects and experiments: complete, committed, never over something that is there, nothing half-made."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from hpc.catalog.locks import lock_state, read_lock
from hpc.catalog.shelf import Catalogue
from hpc.errors import Refusal
from hpc.project import scaffold
from hpc.project.config import load_config
from hpc.project.git import facts
from hpc.project.parameters import yaml_scalar
from hpc.project.project import find_project
from hpc.project.scaffold import copy_experiment, init_project, new_experiment
from hpc.spec.yamltext import parse_yaml
from tests.project.conftest import Make

SFT, CUSTOM = "deepspeed/sft", "custom/custom"


def test_a_new_project_is_complete_and_committed(tmp_path: Path) -> None:
    made = init_project(tmp_path / "deep" / "lab", "my-lab", use_git=True, core_version="0.4.0")
    assert made.notes == ()
    assert made.files == (
        ".gitignore",
        "README.md",
        "experiments/README.md",
        "configs/README.md",
        "common/README.md",
        "tuneplane.yaml",
    )
    assert find_project(tmp_path / "deep" / "lab").name == "my-lab"
    found = facts(tmp_path / "deep" / "lab")
    assert (len(found.commit), found.dirty) == (40, False)
    assert parse_yaml((tmp_path / "deep/lab/tuneplane.yaml").read_text()) == {
        "apiVersion": "tuneplane/project/v1",
        "name": "my-lab",
        "created_by": "tp 0.4.0",
    }


@pytest.mark.parametrize("name", ["no", "123", "1e3", "null"])
def test_a_name_that_yaml_would_misread_is_quoted(tmp_path: Path, name: str) -> None:
    init_project(tmp_path / "x", name, use_git=False, core_version="0.4.0")
    assert find_project(tmp_path / "x").name == name


def test_without_git_there_is_no_repository(tmp_path: Path) -> None:
    init_project(tmp_path / "x", "x", use_git=False, core_version="0.4.0")
    assert not (tmp_path / "x" / ".git").exists()


def test_inside_a_repository_nothing_is_committed(make: Make) -> None:
    outer = make({"a": ""}, use_git=True).root
    (outer / "tuneplane.yaml").unlink()
    before = facts(outer).commit
    made = init_project(outer / "lab", "lab", use_git=True, core_version="0.4.0")
    assert made.notes == ("inside a git repository already: nothing was committed",)
    assert facts(outer).commit == before


def test_a_git_that_cannot_commit_is_a_note_and_the_project_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (Path(os.environ["HOME"]) / ".gitconfig").write_text("[user]\n useConfigOnly = true\n")
    monkeypatch.delenv("EMAIL", raising=False)
    made = init_project(tmp_path / "x", "x", use_git=True, core_version="0.4.0")
    assert len(made.notes) == 1
    assert made.notes[0].startswith("not committed: ")
    assert find_project(tmp_path / "x").name == "x"


@pytest.mark.parametrize("taken", ["tuneplane.yaml", "experiments", "configs", "common"])
def test_what_is_there_is_never_written_over(tmp_path: Path, taken: str) -> None:
    (tmp_path / taken).write_text("mine")
    with pytest.raises(Refusal) as caught:
        init_project(tmp_path, "x", use_git=False, core_version="0.4.0")
    assert (caught.value.code, caught.value.found) == ("E-PROJECT-040", taken)
    assert [p.name for p in tmp_path.iterdir()] == [taken]


def test_a_readme_that_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    made = init_project(tmp_path, "x", use_git=True, core_version="0.4.0")
    assert (tmp_path / "README.md").read_text() == "mine"
    assert made.notes == ("README.md was there already and stays as it is",)
    assert facts(tmp_path).dirty_paths == ("README.md",)


def test_a_project_inside_a_project_is_refused(make: Make) -> None:
    with pytest.raises(Refusal) as caught:
        init_project(make().root / "inner", "x", use_git=False, core_version="0.4.0")
    assert caught.value.code == "E-PROJECT-040"


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = scaffold.write_new

    def full(path: Path, data: bytes, **options: int) -> None:
        if path.name == "tuneplane.yaml":
            raise OSError(28, "No space left on device", str(path))
        write(path, data, **options)

    monkeypatch.setattr(scaffold, "write_new", full)
    with pytest.raises(Refusal) as caught:
        init_project(tmp_path / "x" / "y", "y", use_git=True, core_version="0.4.0")
    assert caught.value.code == "E-PROJECT-042"
    assert list(tmp_path.iterdir()) == []


def test_an_experiment_from_a_method_is_locked_and_documented(make: Make) -> None:
    project, catalogue = make(), Catalogue.shipped()
    recipe = catalogue.get(SFT)
    made = new_experiment(project, "my-exp", recipe, framework_version="", core_version="0.4.0")
    folder = project.root / "experiments" / "my-exp"
    assert made.path == folder
    assert set(made.files) == {*recipe.template_files(), "config.yaml", "recipe.lock.json"}
    assert lock_state(read_lock(folder), catalogue).state == "current"
    text = (folder / "config.yaml").read_text()
    set_already = recipe.configured(load_config(folder))
    for name, param in recipe.typed.params.items():
        assert (f"#   {param.path_for(name, recipe.default_version)}: " in text) == (name not in set_already)
    assert parse_yaml(text) == load_config(folder)
    assert [e.name for e in project.experiments()] == ["my-exp"]


def test_a_method_without_a_config_gets_one(make: Make) -> None:
    project = make()
    new_experiment(project, "own", Catalogue.shipped().get(CUSTOM), framework_version="", core_version="0.4.0")
    folder = project.root / "experiments" / "own"
    assert load_config(folder) == {}
    assert (folder / "config.yaml").read_text().startswith("# custom/custom 1.0.0.")
    assert os.access(folder / "train.sh", os.X_OK) == os.access(
        Catalogue.shipped().get(CUSTOM).template / "train.sh", os.X_OK
    )


def test_nested_names_and_the_long_spelling(make: Make) -> None:
    project, recipe = make(), Catalogue.shipped().get(CUSTOM)
    new_experiment(project, "group/one", recipe, framework_version="", core_version="0.4.0")
    new_experiment(project, "experiments/two/", recipe, framework_version="", core_version="0.4.0")
    assert [e.rel for e in project.experiments()] == ["experiments/group/one", "experiments/two"]


@pytest.mark.parametrize("name", ["..", "../x", "a b", "/x", ".hidden", "a\nb"])
def test_other_names_are_refused(make: Make, name: str) -> None:
    project = make()
    with pytest.raises(Refusal) as caught:
        new_experiment(project, name, Catalogue.shipped().get(CUSTOM), framework_version="", core_version="0.4.0")
    assert (caught.value.code, caught.value.field) == ("E-SPEC-017", "EXP")
    assert not (project.root / "experiments").exists()


def test_an_experiment_is_never_written_over(make: Make) -> None:
    project = make({"experiments/a/mine": "mine"})
    with pytest.raises(Refusal) as caught:
        new_experiment(project, "a", Catalogue.shipped().get(CUSTOM), framework_version="", core_version="0.4.0")
    assert caught.value.code == "E-PROJECT-041"
    assert [p.name for p in (project.root / "experiments/a").iterdir()] == ["mine"]


def test_an_unknown_framework_version_is_refused_before_anything_is_made(make: Make) -> None:
    project = make()
    with pytest.raises(Refusal) as caught:
        new_experiment(project, "a", Catalogue.shipped().get(SFT), framework_version="9.9.9", core_version="0.4.0")
    assert caught.value.code == "E-CATALOG-014"
    assert not (project.root / "experiments").exists()


def test_a_failure_in_the_middle_leaves_no_experiment(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    project = make()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "x")

    monkeypatch.setattr("hpc.catalog.locks.write_lock", full)
    with pytest.raises(Refusal) as caught:
        new_experiment(project, "a", Catalogue.shipped().get(SFT), framework_version="", core_version="0.4.0")
    assert caught.value.code == "E-PROJECT-042"
    assert list((project.root / "experiments").iterdir()) == []


def test_a_copy_takes_what_would_travel(make: Make) -> None:
    files = {
        "experiments/a/config.yaml": "a: 1\n",
        "experiments/a/sub/run.sh": "",
        "experiments/a/big.log": "",
        ".gitignore": "*.log\n",
        "common/x": "",
    }
    project = make(files, use_git=True)
    (project.root / "experiments/a/sub/run.sh").chmod(0o755)
    made = copy_experiment(project, "b", project.experiment("a"))
    assert made.files == ("config.yaml", "sub/run.sh")
    assert os.access(project.root / "experiments/b/sub/run.sh", os.X_OK)


@pytest.mark.parametrize(
    "value", ["all-linear", "a: b", "- x", "no", "1e3", "", "x # y", "'q'", "null", "[a", "@x", 1e-08, 3, True, "ü\n"]
)
def test_a_default_in_a_comment_reads_back_as_itself(value: object) -> None:
    assert parse_yaml(f"a: {yaml_scalar(value)}\n") == {"a": value}


def test_the_written_lock_is_sorted_two_space_json(make: Make) -> None:
    project = make()
    new_experiment(project, "a", Catalogue.shipped().get(CUSTOM), framework_version="", core_version="0.4.0")
    text = (project.root / "experiments/a/recipe.lock.json").read_text()
    assert text == json.dumps(json.loads(text), sort_keys=True, indent=2) + "\n"


def test_every_scaffolded_shell_script_is_valid_bash(make: Make) -> None:
    project = make()
    new_experiment(project, "a", Catalogue.shipped().get(CUSTOM), framework_version="", core_version="0.4.0")
    assert subprocess.run(["bash", "-n", str(project.root / "experiments/a/train.sh")], check=False).returncode == 0
