"""A home folder of its own for git, and projects to work in."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from hpc.project.project import Project

Make = Callable[..., Project]


@pytest.fixture(autouse=True)
def quiet_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path_factory.mktemp("home")
    (home / ".gitconfig").write_text("[user]\n name = Test\n email = test@example.org\n[init]\n defaultBranch = main\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / ".config"))
    monkeypatch.delenv("TUNEPLANE_STORAGE_ROOT", raising=False)


def git(folder: Path, *arguments: str) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, env=environment)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """`make({path: text}, use_git=…)`: a project with these files; with git everything is committed."""

    def build(files: Mapping[str, str] | None = None, *, use_git: bool = False, folder: str = "lab") -> Project:
        root = tmp_path / folder
        for path, text in {"tuneplane.yaml": "name: lab\n", **(files or {})}.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        if use_git:
            git(root, "init", "-q")
            git(root, "add", "-A")
            git(root, "commit", "-q", "-m", "all")
        return Project(root, "lab")

    return build
