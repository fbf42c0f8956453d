"""What travels, and what refuses a whole package."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpc.errors import Refusals
from hpc.project.files import looks_secret, travelling
from hpc.project.project import Project
from tests.project.conftest import Make, git

FILES = {
    "experiments/a/config.yaml": "x: 1\n",
    "experiments/a/sub/train.py": "",
    "experiments/b/train.py": "",
    "common/data/load.py": "",
    "configs/base.yaml": "",
    "notes.txt": "",
    "other/x.py": "",
}
EXPECTED = ["common/data/load.py", "configs/base.yaml", "experiments/a/config.yaml", "experiments/a/sub/train.py"]
BOTH = pytest.mark.parametrize("use_git", [True, False], ids=["git", "walk"])


def paths(project: Project) -> list[str]:
    found = travelling(project, project.experiment("a"))
    assert all(t.source == project.root / t.path for t in found)
    return [t.path for t in found]


def faults(project: Project) -> list[tuple[str, str]]:
    with pytest.raises(Refusals) as caught:
        paths(project)
    return [(r.code, r.field) for r in caught.value.items]


@BOTH
def test_only_the_experiment_common_and_configs_travel_in_order(make: Make, use_git: bool) -> None:
    assert paths(make(FILES, use_git=use_git)) == EXPECTED


def test_p79_untracked_files_travel_and_ignored_ones_do_not(make: Make) -> None:
    project = make({**FILES, ".gitignore": "*.log\noutputs/\n"}, use_git=True)
    for path in (
        "experiments/a/new.py",
        "experiments/a/run.log",
        "experiments/a/outputs/big.bin",
        "common/data/.gitignore",
    ):
        (project.root / path).parent.mkdir(exist_ok=True)
        (project.root / path).write_text("")
    assert paths(project) == sorted([*EXPECTED, "experiments/a/new.py", "common/data/.gitignore"])


def test_a_file_that_is_gone_from_disk_is_left_out(make: Make) -> None:
    project = make(FILES, use_git=True)
    (project.root / "experiments/a/sub/train.py").unlink()
    (project.root / "experiments/a/sub").rmdir()
    (project.root / "experiments/a/sub").write_text("a file now")
    assert paths(project) == [
        "common/data/load.py",
        "configs/base.yaml",
        "experiments/a/config.yaml",
        "experiments/a/sub",
    ]


@BOTH
def test_byte_code_and_pdf_files_stay(make: Make, use_git: bool) -> None:
    extra = {"common/data/__pycache__/load.cpython-311.pyc": "", "common/x.pyc": "", "configs/Paper.PDF": ""}
    assert paths(make({**FILES, **extra}, use_git=use_git)) == EXPECTED


def test_a_walk_skips_results_environments_and_caches(make: Make) -> None:
    skipped = [
        "outputs/x",
        ".venv/bin/x",
        "wandb/x",
        "node_modules/x",
        ".git/x",
        ".tuneplane-data/x",
        "tuneplane_plugins/o/x",
        ".mypy_cache/x",
    ]
    assert paths(make({**FILES, **{f"experiments/a/{s}": "" for s in skipped}})) == EXPECTED


@BOTH
def test_every_file_that_looks_like_a_secret_is_named(make: Make, use_git: bool) -> None:
    extra = {
        "common/.env": "",
        "configs/deploy.pem": "",
        "experiments/a/.ssh/config": "",
        "experiments/a/HF_TOKEN.txt": "",
        "experiments/b/.env": "",
    }
    assert faults(make({**FILES, **extra}, use_git=use_git)) == [
        ("E-PROJECT-030", "common/.env"),
        ("E-PROJECT-030", "configs/deploy.pem"),
        ("E-PROJECT-030", "experiments/a/.ssh/config"),
        ("E-PROJECT-030", "experiments/a/HF_TOKEN.txt"),
    ]


def test_an_untracked_secret_refuses_and_an_ignored_one_does_not(make: Make) -> None:
    project = make({**FILES, ".gitignore": ".env\n"}, use_git=True)
    (project.root / "experiments/a/.env").write_text("TOKEN=1")
    assert paths(project) == EXPECTED
    (project.root / "experiments/a/.env.local").write_text("TOKEN=1")
    assert faults(project) == [("E-PROJECT-030", "experiments/a/.env.local")]


@pytest.mark.parametrize(
    "name",
    [
        ".env",
        ".env.prod",
        ".envrc",
        "prod.env",
        "a.pem",
        "server.KEY",
        "id_rsa",
        "id_ed25519.pub",
        "secrets.yaml",
        "hf_token",
        "credentials.json",
        ".netrc",
        "x.keytab",
        ".aws/x",
    ],
)
def test_names_that_look_like_secrets(name: str) -> None:
    assert looks_secret(f"common/{name}")


@pytest.mark.parametrize(
    "name",
    [
        "environment.py",
        "tokenizer.json",
        "monkey.py",
        "keys.py",
        "credentials_test.py",
        "train.sh",
        "envs/x.py",
        "special_tokens_map.json",
    ],
)
def test_names_that_do_not(name: str) -> None:
    assert not looks_secret(f"common/{name}")


@BOTH
def test_links_and_special_files_are_refused(make: Make, tmp_path: Path, use_git: bool) -> None:
    (tmp_path / "outside").mkdir()
    project = make(FILES, use_git=use_git)
    (project.root / "common/file-link").symlink_to("/etc/passwd")
    (project.root / "experiments/a/folder-link").symlink_to(tmp_path / "outside")
    expected = [("E-PROJECT-031", "common/file-link"), ("E-PROJECT-031", "experiments/a/folder-link")]
    if not use_git:  # git does not list what is neither file nor link
        os.mkfifo(project.root / "configs/pipe")
        expected.insert(1, ("E-PROJECT-031", "configs/pipe"))
    assert faults(project) == expected


@BOTH
def test_a_top_folder_that_became_a_link_is_refused(make: Make, tmp_path: Path, use_git: bool) -> None:
    project = make(FILES, use_git=use_git)
    (project.root / "common").rename(tmp_path / "elsewhere")
    (project.root / "common").symlink_to(tmp_path / "elsewhere")
    assert ("E-PROJECT-031", "common") in faults(project)
    if use_git:  # what was tracked behind the link must not travel either
        assert ("E-PROJECT-031", "common/data/load.py") in faults(project)


@BOTH
def test_names_that_no_record_can_hold_are_refused(make: Make, use_git: bool) -> None:
    project = make(FILES, use_git=use_git)
    for name in (b"line\nend.py", b"latin-\xe9.py", b"back\\slash.py"):
        with open(os.fsencode(project.root / "common") + b"/" + name, "wb"):
            pass
    assert faults(project) == [
        ("E-PROJECT-032", "common/back\\slash.py"),
        ("E-PROJECT-032", "common/latin-\\udce9.py"),
        ("E-PROJECT-032", "common/line\\nend.py"),
    ]


def test_names_in_any_script_travel(make: Make) -> None:
    assert "common/модель-東京.py" in paths(make({**FILES, "common/модель-東京.py": ""}, use_git=True))


def test_a_repository_inside_the_project_is_refused(make: Make) -> None:
    project = make(FILES, use_git=True)
    inner = project.root / "common/inner"
    inner.mkdir()
    git(inner, "init", "-q")
    (inner / "x").write_text("")
    git(inner, "add", "x")
    git(inner, "commit", "-q", "-m", "x")
    assert faults(project) == [("E-PROJECT-034", "common/inner/")]
    git(project.root, "add", "common/inner")
    assert faults(project) == [("E-PROJECT-034", "common/inner")]


def test_an_experiment_that_git_ignores_is_not_an_empty_package(make: Make) -> None:
    project = make({**FILES, ".gitignore": "experiments/a/\n"}, use_git=True)
    assert faults(project) == [("E-PROJECT-033", "experiments/a")]


def test_a_path_that_looks_like_git_magic_is_taken_literally(make: Make) -> None:
    project = make({"experiments/a.b/x.py": "", "experiments/aXb/y.py": ""}, use_git=True)
    found = travelling(project, project.experiment("a.b"))
    assert [t.path for t in found] == ["experiments/a.b/x.py"]


def test_many_files_take_one_process(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    project = make({**FILES, **{f"experiments/a/f{i:03}.py": "" for i in range(200)}}, use_git=True)
    started: list[Any] = []
    run = subprocess.run

    def counted(*args: Any, **kwargs: Any) -> Any:
        started.append(args)
        return run(*args, **kwargs)

    monkeypatch.setattr(subprocess, "run", counted)
    assert len(paths(project)) == len(EXPECTED) + 200
    assert len(started) == 1
