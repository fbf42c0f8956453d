"""Local data preparation: `prepare_<name>.py` of the project's common/data, then of the data-prep packages that are installed beside it.

A script is found and described without running it. One of the project is its users' own; one of a package runs only with the bytes that a lock of
the project or the registry has for that package's version.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tuneplane.record.digest import directory_digest_v1

from hpc.errors import Refusal
from hpc.project.install import FOLDER
from hpc.project.plugins import read_plugins_lock
from hpc.project.project import Project

OWN: Final = "common/data"
_SCRIPT: Final = re.compile(r"prepare_([A-Za-z0-9_]+)\.py")
MAX_SCRIPT: Final = 4 << 20
Known = Callable[[str, str], str]
"""(id, version) → the digest that the registry has for it, "" where it has none or cannot be asked."""


@dataclass(frozen=True)
class Script:
    """One script: its name, its file, the first line of its docstring, and the package it is of (`<owner>/<name>`; "" for the project's own)."""

    name: str
    path: Path
    summary: str
    package: str = ""
    version: str = ""


def scripts(project: Project) -> list[Script]:
    """Every script that a name can mean, by name: the project's own, and those of installed packages whose names it does not take."""
    own = {s.name: s for s in _in_folder(project.root / OWN, "", "")}
    found = [s for package in _packages(project.root / FOLDER) for s in package if s.name not in own]
    return sorted([*own.values(), *found], key=lambda s: (s.name, s.package))


def _in_folder(folder: Path, package: str, version: str) -> Iterator[Script]:
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    for name in names:
        match = _SCRIPT.fullmatch(name)
        if match and (folder / name).is_file():
            yield Script(match[1], folder / name, _summary(folder / name), package, version)


def _packages(base: Path) -> Iterator[list[Script]]:
    """The scripts of each installed package that prepares data locally."""
    from hpc.plugins.manifest import MANIFEST_NAME, read_manifest

    for path in sorted(base.glob(f"*/*/{MANIFEST_NAME}")):
        try:
            manifest = read_manifest(path.read_bytes())[0]
        except OSError:
            continue
        if manifest and manifest.capability == "data-prep" and manifest.execution == "local":
            owner = path.parent.parent.name
            yield list(_in_folder(path.parent, f"{owner}/{path.parent.name}", manifest.version))


def _summary(path: Path) -> str:
    """The first line of the docstring, read and not run; "" where there is none."""
    try:
        with open(path, "rb") as stream:
            text = ast.get_docstring(ast.parse(stream.read(MAX_SCRIPT)))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ""
    return (text or "").partition("\n")[0].strip()


def find_script(project: Project, name: str, known: Known) -> Script:
    """The script that `name` means, its bytes known.

    Raises Refusal E-PROJECT-052 (none), E-PROJECT-053 (of two packages), E-PROJECT-054 (an installed package has other bytes than were published).
    """
    have = scripts(project)
    named = [s for s in have if s.name == name]
    if not named:
        allowed = ", ".join(s.name for s in have) or f"a file {OWN}/prepare_<name>.py"
        raise Refusal("E-PROJECT-052", f"there is no prepare_{name}.py", field="NAME", found=name, allowed=allowed)
    if len(named) > 1:
        found = ", ".join(s.package for s in named)
        raise Refusal("E-PROJECT-053", f"several packages have prepare_{name}.py", field="NAME", found=found)
    if named[0].package:
        _require_known(project, named[0], known)
    return named[0]


def _require_known(project: Project, script: Script, known: Known) -> None:
    wanted = {
        entry["digest"]
        for experiment in project.experiments()
        for entry in read_plugins_lock(experiment.path)
        if (entry["id"], entry["version"]) == (script.package, script.version)
    } | {known(script.package, script.version)}
    found, ref = directory_digest_v1(script.path.parent), f"{script.package}@{script.version}"
    if found not in wanted:
        allowed = ", ".join(sorted(filter(None, wanted))) or "what a lock or the registry names"
        raise Refusal(
            "E-PROJECT-054",
            f"{ref} is not what was published",
            field=str(script.path.parent),
            found=found,
            allowed=allowed,
        )
