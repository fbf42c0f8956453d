"""A site with a shelf, and a project on it, as one admin meets them at the terminal."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tuneplane.contract.layout import StorageRoot

from hpc.cli.main import main
from hpc.site.users import real_user

TOY = Path(__file__).parents[1] / "cluster" / "toy-ranks"
ME = real_user().name


class Tp:
    """Runs the command in this process; keeps what it said."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys, self.out, self.err = capsys, "", ""

    def __call__(self, *args: str | Path, code: int = 0) -> str:
        with pytest.raises(SystemExit) as caught:
            main([str(a) for a in args])
        self.out, self.err = self._capsys.readouterr()
        assert caught.value.code == code, (args, self.out, self.err)
        return self.out

    def json(self, *args: str | Path, code: int = 0) -> Any:
        return json.loads(self(*args, "--json", code=code))

    def codes(self, *args: str | Path, code: int = 1) -> list[str]:
        """Codes of a refusal."""
        return [e["code"] for e in self.json(*args, code=code)["errors"]]


@pytest.fixture
def tp(capsys: pytest.CaptureFixture[str]) -> Tp:
    return Tp(capsys)


@pytest.fixture
def root(tmp_path: Path, tp: Tp, monkeypatch: pytest.MonkeyPatch) -> StorageRoot:
    """A storage root with the local fleet, shipped recipes and plugins, and toy/ranks."""
    laid = StorageRoot(tmp_path / "root")
    tp("site", "init", laid.path, "--name", "x", "--fleet", "local")
    shutil.copytree(TOY, laid.recipes / "toy" / "ranks", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setenv("TUNEPLANE_STORAGE_ROOT", str(laid.path))
    return laid


@pytest.fixture
def project(tmp_path: Path, tp: Tp, root: StorageRoot, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with the experiments `ranks` (toy/ranks) and `own` (custom/custom); the working folder."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for key, value in (("NAME", "x"), ("EMAIL", "x@example.invalid")):
        monkeypatch.setenv(f"GIT_AUTHOR_{key}", value)
        monkeypatch.setenv(f"GIT_COMMITTER_{key}", value)
    tp("init", ".", "--name", "p")
    tp("new", "ranks", "--method", "toy/ranks")
    tp("new", "own", "--method", "custom/custom")
    commit(folder)
    return folder


def commit(folder: Path) -> None:
    subprocess.run(["git", "add", "-A"], cwd=folder, check=True)
    subprocess.run(["git", "commit", "-q", "--allow-empty", "-m", "x"], cwd=folder, check=True)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    """Write a source package; keyword arguments are fields of plugin.yaml, files come as a mapping."""

    def package(
        name: str = "patch", version: str = "1.0", files: dict[str, str] | None = None, **fields: object
    ) -> Path:
        folder = tmp_path / "packages" / f"{name}-{version}"
        manifest = {
            "schema": "tuneplane/plugin/v1", "name": name, "version": version, "capability": "algorithm",
            "entrypoint": f"{name.replace('-', '_')}_code:install",
        } | fields  # fmt: skip
        content = (
            {f"{name.replace('-', '_')}_code.py": "def install(hyperparams):\n    pass\n"} if files is None else files
        )
        content = {"plugin.yaml": json.dumps({k: v for k, v in manifest.items() if v is not None})} | content
        for path, text in content.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, "utf-8")
        return folder

    return package


def damage(path: Path) -> None:
    """Change one byte of a stored file, as root may."""
    mode = path.stat().st_mode & 0o7777
    os.chmod(path, 0o644)
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    os.chmod(path, mode)
