"""A project is a folder with tuneplane.yaml; an experiment is a folder in it that can be submitted.

Experiments lie under `experiments/` (or `smoke/`), at any depth whose every part is a safe name. Links are never followed: what a link
points at would not travel.
"""

from __future__ import annotations

import difflib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuneplane.contract import schemas
from tuneplane.record.files import read_bytes

from hpc.errors import Refusal
from hpc.spec.text import SEGMENT, experiment_path, project_name, visible

PROJECT_FILE = "tuneplane.yaml"
TOPS = ("experiments", "smoke")
MARKS = ("config.yaml", "recipe.lock.json", "method")
MAX_DEPTH = 5
MAX_FILE_BYTES = 1 << 20


@dataclass(frozen=True)
class Experiment:
    """One experiment: its name, its folder, and the folder's path in the project (and in every package)."""

    name: str
    path: Path
    rel: str

    @property
    def legacy_method(self) -> str:
        """The method that an older project wrote into the one-line file `method`; "" where there is none."""
        return _one_line(self.path / "method")

    @property
    def legacy_profile(self) -> str:
        """The profile that an older project wrote into the one-line file `cluster`; "" where there is none."""
        return _one_line(self.path / "cluster")


@dataclass(frozen=True)
class Project:
    """A project's root folder and its name."""

    root: Path
    name: str

    def experiment(self, name: str) -> Experiment:
        """The experiment of that name, also written as its path in the project. Raises Refusal E-SPEC-017, E-PROJECT-003, 004."""
        path = experiment_path(name, "EXP")
        for rel in [path] * path.startswith(tuple(f"{top}/" for top in TOPS)) + [f"{top}/{path}" for top in TOPS]:
            if os.path.lexists(self.root / rel):
                self._check_folders(rel)
                return Experiment(rel.removeprefix("experiments/"), self.root / rel, rel)
        known = [e.name for e in self.experiments()]
        near = difflib.get_close_matches(path, known, 1)
        raise Refusal(
            "E-PROJECT-003",
            f"no experiment {path!r}" + (f"; did you mean {near[0]}?" if near else ""),
            field="EXP",
            found=path,
            allowed=", ".join(known) or "none yet: `tp new` makes one",
        )

    def _check_folders(self, rel: str) -> None:
        folder = self.root
        for part in rel.split("/"):
            folder = folder / part
            if folder.is_symlink() or not folder.is_dir():
                found = "a link" if folder.is_symlink() else "a file"
                raise Refusal(
                    "E-PROJECT-004", f"{folder} is no folder", field="EXP", found=found, allowed="a real folder"
                )

    def experiments(self) -> list[Experiment]:
        """Every folder under experiments/ and smoke/ that holds a config, a lock or a method, by name."""
        found = [rel for top in TOPS for rel in _marked(self.root / top, top, MAX_DEPTH)]
        return sorted(
            (Experiment(r.removeprefix("experiments/"), self.root / r, r) for r in found), key=lambda e: e.name
        )


def _marked(folder: Path, rel: str, depth: int) -> Iterator[str]:
    """Sub-folders with a mark; what is inside of one belongs to it."""
    try:
        names = sorted(
            e.name for e in os.scandir(folder) if e.is_dir(follow_symlinks=False) and SEGMENT.fullmatch(e.name)
        )
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        if any((folder / name / mark).is_file() for mark in MARKS):
            yield f"{rel}/{name}"
        elif depth > 1:
            yield from _marked(folder / name, f"{rel}/{name}", depth - 1)


def find_root(start: Path) -> Path | None:
    """The nearest folder from `start` upwards that has a tuneplane.yaml.

    A folder that everybody can write (/tmp) is no project, whatever lies in it: else one user's file would be everybody's project.
    """
    folder = Path(os.path.abspath(start))
    return next((f for f in (folder, *folder.parents) if (f / PROJECT_FILE).is_file() and not _open_to_all(f)), None)


def _open_to_all(folder: Path) -> bool:
    return bool(os.stat(folder).st_mode & stat.S_IWOTH)


def find_project(start: Path) -> Project:
    """The project that `start` lies in. Raises Refusal E-PROJECT-001 (none), E-PROJECT-002 (its file is wrong)."""
    root = find_root(start)
    if root is None:
        message = f"neither {start} nor a folder above it has a {PROJECT_FILE}"
        raise Refusal("E-PROJECT-001", message, found=str(start))
    value = read_yaml(root / PROJECT_FILE, PROJECT_FILE, "E-PROJECT-002")
    if not isinstance(value, dict):
        raise Refusal("E-PROJECT-002", "is no mapping", field=PROJECT_FILE, allowed='name: "my-lab"')
    if (version := value.get("apiVersion", schemas.PROJECT)) != schemas.PROJECT:
        field = f"{PROJECT_FILE}: apiVersion"
        raise Refusal("E-PROJECT-002", "is of another version", field=field, found=version, allowed=schemas.PROJECT)
    name = value.get("name")
    if not isinstance(name, str):
        raise Refusal(
            "E-PROJECT-002", "name is missing or no text", field=f"{PROJECT_FILE}: name", found=name, allowed="text"
        )
    return Project(root, project_name(name, f"{PROJECT_FILE}: name"))


def read_yaml(path: Path, origin: str, code: str) -> Any:
    """The parsed YAML of a file that is no link. Raises Refusal `code` when it cannot be read, E-SPEC-00x when it is no YAML."""
    from hpc.spec.yamltext import parse_yaml

    try:
        text = read_bytes(path, limit=MAX_FILE_BYTES).decode("utf-8")
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else str(exc)
        raise Refusal(code, f"cannot be read: {'it is a link' if path.is_symlink() else reason}", field=origin) from exc
    return parse_yaml(text, origin=origin)


def _one_line(path: Path) -> str:
    """The one line of a legacy file. Raises Refusal E-PROJECT-051 for more than one line or no plain text."""
    try:
        text = read_bytes(path, limit=4096).decode("utf-8").strip()
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as exc:
        raise Refusal("E-PROJECT-051", f"cannot be read: {exc}", field=str(path)) from exc
    if not text.isprintable():
        raise Refusal(
            "E-PROJECT-051", "is not one line of text", field=str(path), found=visible(text), allowed="one line"
        )
    return text
