"""Where the project is, and which folders are experiments."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc.errors import Refusal
from hpc.project.plugins import read_plugins_lock
from hpc.project.project import Project, find_project, find_root
from tests.project.conftest import Make


def test_the_project_is_found_from_below(make: Make) -> None:
    root = make({"experiments/a/b/config.yaml": ""}).root
    assert find_project(root / "experiments" / "a" / "b") == Project(root, "lab")
    assert find_project(root) == Project(root, "lab")


def test_no_project_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(Refusal) as caught:
        find_project(tmp_path)
    assert (caught.value.code, caught.value.found) == ("E-PROJECT-001", str(tmp_path))


@pytest.mark.parametrize(
    ("text", "code", "field"),
    [
        ("", "E-PROJECT-002", "tuneplane.yaml"),
        ("- a\n", "E-PROJECT-002", "tuneplane.yaml"),
        ("created_by: x\n", "E-PROJECT-002", "tuneplane.yaml: name"),
        ("name: 5\n", "E-PROJECT-002", "tuneplane.yaml: name"),
        ("name: a/b\n", "E-SPEC-017", "tuneplane.yaml: name"),
        ("name: ..\n", "E-SPEC-017", "tuneplane.yaml: name"),
        ('name: "a\\nb"\n', "E-SPEC-017", "tuneplane.yaml: name"),
        ("apiVersion: tuneplane/project/v9\nname: a\n", "E-PROJECT-002", "tuneplane.yaml: apiVersion"),
        ("name: a\nname: b\n", "E-SPEC-003", "tuneplane.yaml:2"),
    ],
)
def test_a_wrong_project_file_is_refused(make: Make, text: str, code: str, field: str) -> None:
    root = make({"tuneplane.yaml": text}).root
    with pytest.raises(Refusal) as caught:
        find_project(root)
    assert (caught.value.code, caught.value.field) == (code, field)


def test_the_documented_project_file_is_read(make: Make) -> None:
    text = "apiVersion: tuneplane/project/v1\nname: .hidden-_\ncreated_by: tuneplane 0.4.0\n"
    assert find_project(make({"tuneplane.yaml": text}).root).name == ".hidden-_"


@pytest.mark.parametrize("spelling", ["my-exp", "my-exp/", "experiments/my-exp", "experiments/my-exp/"])
def test_an_experiment_goes_by_its_name_or_path(make: Make, spelling: str) -> None:
    project = make({"experiments/my-exp/config.yaml": ""})
    found = project.experiment(spelling)
    assert (found.name, found.rel, found.path) == ("my-exp", "experiments/my-exp", project.root / "experiments/my-exp")


def test_smoke_is_a_second_root_of_experiments(make: Make) -> None:
    project = make({"smoke/x/config.yaml": "", "experiments/y/config.yaml": ""})
    assert (project.experiment("smoke/x").rel, project.experiment("smoke/x").name) == ("smoke/x", "smoke/x")
    assert project.experiment("x").rel == "smoke/x"


@pytest.mark.parametrize("name", ["..", ".", "../lab", "/abs", "a//b", "a\n", "", "~/x", "a/../b"])
def test_other_names_are_refused(make: Make, name: str) -> None:
    with pytest.raises(Refusal) as caught:
        make().experiment(name)
    assert caught.value.code in ("E-SPEC-015", "E-SPEC-017")
    assert caught.value.field == "EXP"


def test_an_unknown_experiment_gets_a_suggestion(make: Make) -> None:
    with pytest.raises(Refusal) as caught:
        make({"experiments/my-grpo/config.yaml": ""}).experiment("my-grop")
    assert caught.value.code == "E-PROJECT-003"
    assert "did you mean my-grpo?" in caught.value.message


def test_a_link_or_a_file_is_no_experiment(make: Make, tmp_path: Path) -> None:
    project = make({"experiments/file": ""})
    (project.root / "experiments" / "link").symlink_to(tmp_path)
    for name in ("link", "file"):
        with pytest.raises(Refusal) as caught:
            project.experiment(name)
        assert caught.value.code == "E-PROJECT-004"


def test_experiments_are_listed_by_their_marks(make: Make) -> None:
    project = make(
        {
            "experiments/b/config.yaml": "",
            "experiments/a/recipe.lock.json": "{}",
            "experiments/old/method": "nemo-rl/grpo\n",
            "experiments/deep/er/config.yaml": "",
            "experiments/b/inner/config.yaml": "",
            "experiments/.hidden/config.yaml": "",
            "experiments/none/x.py": "",
            "smoke/s/config.yaml": "",
        }
    )
    (project.root / "experiments" / "linked").symlink_to(project.root / "experiments" / "b")
    assert [e.name for e in project.experiments()] == ["a", "b", "deep/er", "old", "smoke/s"]
    assert make(folder="empty").experiments() == []


def test_the_one_line_files_of_older_projects_are_read(make: Make) -> None:
    experiment = make({"experiments/a/method": "nemo-rl/grpo\n", "experiments/a/cluster": "h200"}).experiment("a")
    assert (experiment.legacy_method, experiment.legacy_profile) == ("nemo-rl/grpo", "h200")
    assert make({"experiments/b/x": ""}).experiment("b").legacy_method == ""


def test_a_legacy_file_with_two_lines_is_refused(make: Make) -> None:
    with pytest.raises(Refusal) as caught:
        _ = make({"experiments/a/method": "x\ny\n"}).experiment("a").legacy_method
    assert caught.value.code == "E-PROJECT-051"


PLUGIN = '{"id": "a/x", "version": "1", "digest": "sha256:1"}'


@pytest.mark.parametrize("start", ['"apiVersion": "tuneplane/plugins-lock/v1", ', ""])
def test_both_forms_of_the_plugins_lock_are_read(make: Make, start: str) -> None:
    project = make({"experiments/a/plugins.lock.json": f'{{{start}"plugins": [{PLUGIN}]}}'})
    assert read_plugins_lock(project.root / "experiments/a") == [{"id": "a/x", "version": "1", "digest": "sha256:1"}]
    assert read_plugins_lock(project.root) == []


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("{", "plugins.lock.json"),
        ("[]", "plugins.lock.json"),
        ('{"plugins": {}}', "plugins.lock.json"),
        ('{"plugins": [], "x": 1}', "plugins.lock.json"),
        ('{"apiVersion": "v9", "plugins": []}', "plugins.lock.json: apiVersion"),
        ('{"plugins": [{"id": "a/x"}]}', "plugins.lock.json: plugins[0]"),
        (f'{{"plugins": [{PLUGIN}, {{"id": 1, "version": "1", "digest": "x"}}]}}', "plugins.lock.json: plugins[1]"),
    ],
)
def test_a_wrong_plugins_lock_is_refused(make: Make, text: str, field: str) -> None:
    with pytest.raises(Refusal) as caught:
        read_plugins_lock(make({"plugins.lock.json": text}).root)
    assert (caught.value.code, caught.value.field) == ("E-PROJECT-050", field)


def test_a_file_in_a_folder_that_everybody_can_write_makes_no_project(tmp_path: Path) -> None:
    (tmp_path / "tuneplane.yaml").write_text("name: trap\n")
    inside = tmp_path / "home" / "me"
    inside.mkdir(parents=True)
    assert find_root(inside) == tmp_path
    tmp_path.chmod(0o1777)
    assert find_root(inside) is None
