"""New projects and new experiments: made in a temporary place, then renamed; nothing is ever written over."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tuneplane.contract import schemas
from tuneplane.record.files import publish_dir, write_new

from hpc.errors import Refusal
from hpc.project import git
from hpc.project.config import CONFIG_NAME, load_config
from hpc.project.project import PROJECT_FILE, Experiment, Project, find_root
from hpc.spec.text import experiment_path, project_name

if TYPE_CHECKING:
    from hpc.catalog.recipes import Recipe

README = "README.md"
_GITIGNORE = """\
# What tp and training programs leave behind; nothing of it travels with a job.
outputs/
datasets/
tuneplane_plugins/
.tuneplane-data/
wandb/
mlruns/
__pycache__/
*.pyc
.venv/
.ipynb_checkpoints/

# Secrets stay out of every package.
.env*
*.pem
*.key
"""
_README = """\
# {name}

| folder | what is in it |
|---|---|
| `experiments/` | one folder, one job that can be submitted |
| `configs/` | base configs and model fragments that experiments name under `defaults:` |
| `common/` | code that experiments share |

```sh
tp methods                          # what can be trained
tp new my-exp --method {method}     # makes experiments/my-exp/
tp validate my-exp                  # every fault, before the queue
tp submit my-exp --dry-run          # the script, without submitting it
tp submit my-exp
```
"""
_COMMON = "Code that experiments share: it travels with every job and is on the import path.\n"
_CONFIGS = (
    "Base configs and model fragments. An experiment names them under `defaults:`, relative to its own config.yaml.\n"
)


@dataclass(frozen=True)
class Made:
    """What was scaffolded. `notes` are things a person should know, such as that git could not commit."""

    path: Path
    files: tuple[str, ...]
    notes: tuple[str, ...] = ()


def init_project(folder: Path, name: str, *, use_git: bool, core_version: str) -> Made:
    """Scaffold a project and, unless told otherwise, commit it to a new repository; inside one, nothing is committed.

    Raises Refusal E-PROJECT-040 (something is in the way), 042 (cannot write), E-SPEC-017 (name).
    """
    project_name(name, "--name")
    if taken := [n for n in (PROJECT_FILE, "experiments", "configs", "common") if os.path.lexists(folder / n)]:
        message = f"{folder} has {', '.join(taken)} already"
        raise Refusal("E-PROJECT-040", message, field="DIR", found=", ".join(taken), allowed="a folder without them")
    if (outer := find_root(folder)) is not None:
        message = f"{folder} lies inside the project {outer}"
        raise Refusal(
            "E-PROJECT-040", message, field="DIR", found=str(outer), allowed="a folder outside of any project"
        )
    about = {"apiVersion": schemas.PROJECT, "name": name, "created_by": f"tp {core_version}"}
    contents = {
        ".gitignore": _GITIGNORE,
        README: _README.format(name=name, method="deepspeed/sft"),
        f"experiments/{README}": "One folder here, one job that can be submitted. `tp new` makes them, `tp ls` lists them.\n",
        f"configs/{README}": _CONFIGS,
        f"common/{README}": _COMMON,
        PROJECT_FILE: "".join(
            f"{key}: {json.dumps(value)}\n" for key, value in about.items()
        ),  # last: it makes the project
    }
    notes = []
    with _undone_on_error(folder) as made:
        for path, text in contents.items():
            if os.path.lexists(folder / path):
                notes.append(f"{path} was there already and stays as it is")
                continue
            made(path)
            write_new(folder / path, text.encode())
    files = tuple(path for path in contents if f"{path} was there already and stays as it is" not in notes)
    return Made(folder, files, (*notes, *(_commit(folder, files) if use_git else ())))


@contextmanager
def _undone_on_error(folder: Path) -> Iterator[Callable[[str], None]]:
    """Hands out a function that makes room for a path below `folder`; on an error all that was made goes again."""
    made: list[Path] = []

    def room(path: str) -> None:
        for parent in [*reversed((folder / path).parents)]:
            if not parent.exists():
                parent.mkdir(mode=0o755)
                made.append(parent)
        made.append(folder / path)

    try:
        yield room
    except BaseException as exc:
        for path in reversed(made):
            with suppress(OSError):  # what could not be made cannot be removed
                path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
        if isinstance(exc, OSError):
            raise Refusal("E-PROJECT-042", f"{exc.filename or folder}: {exc.strerror}", field="DIR") from exc
        raise


def _commit(folder: Path, files: Iterable[str]) -> list[str]:
    """A new repository with one commit; what git does not do is a note, because the project is there all the same."""
    if git.repository(folder):
        return ["inside a git repository already: nothing was committed"]
    try:
        if git.run(folder, ["init", "--quiet"]) is None:
            return ["there is no git on this machine: nothing was committed"]
        git.run(folder, ["add", "--", *files])
        git.run(folder, ["commit", "--quiet", "--no-verify", "--message", "New project"])
    except Refusal as refusal:
        return [f"not committed: {refusal.found or refusal.message}"]
    return []


def new_experiment(project: Project, name: str, recipe: Recipe, *, framework_version: str, core_version: str) -> Made:
    """An experiment from a recipe's template, with a config that names every parameter, and a lock.

    Raises Refusal E-PROJECT-041 (exists), 042 (cannot write), E-SPEC-017 (name), E-CATALOG-014 (no such framework version).
    """
    from hpc.catalog.locks import make_lock, write_lock
    from hpc.project.parameters import config_text

    version = framework_version or recipe.default_version
    recipe.variant(version)

    def fill(folder: Path) -> None:
        for path in recipe.template_files():
            _copy(recipe.template / path, folder / path)
        given = folder / CONFIG_NAME
        before = given.read_text("utf-8") if given.exists() else ""
        config = load_config(folder)
        given.write_text(config_text(recipe, version, before, set(recipe.configured(config, version))), "utf-8")
        write_lock(
            folder, make_lock(recipe, core_version=core_version, config=load_config(folder), framework_version=version)
        )

    return _make(project, name, fill)


def copy_experiment(project: Project, name: str, source: Experiment) -> Made:
    """A copy of an experiment's own files, as they would travel; its lock among them. Raises Refusal(s) as packaging does."""
    from hpc.project.files import travelling

    prefix = f"{source.rel}/"
    files = [t for t in travelling(project, source) if t.path.startswith(prefix)]

    def fill(folder: Path) -> None:
        for file in files:
            _copy(file.source, folder / file.path.removeprefix(prefix))

    return _make(project, name, fill)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    write_new(target, source.read_bytes(), mode=0o755 if os.stat(source).st_mode & 0o100 else 0o644)


def _make(project: Project, name: str, fill: Callable[[Path], None]) -> Made:
    """Fill a temporary folder beside the new one's place, then rename it."""
    path = experiment_path(name, "EXP").removeprefix("experiments/")
    final = project.root / "experiments" / path
    if os.path.lexists(final):
        raise Refusal("E-PROJECT-041", f"{final} exists already", field="EXP", found=path, allowed="a new name")
    temp = project.root / "experiments" / f".new-{secrets.token_hex(6)}"
    try:
        temp.mkdir(parents=True)
        fill(temp)
        files = tuple(sorted(p.relative_to(temp).as_posix() for p in temp.rglob("*") if p.is_file()))
        final.parent.mkdir(parents=True, exist_ok=True)
        publish_dir(temp, final)
    except FileExistsError as exc:
        raise Refusal(
            "E-PROJECT-041", f"{final} exists already", field="EXP", found=path, allowed="a new name"
        ) from exc
    except OSError as exc:
        raise Refusal("E-PROJECT-042", f"{exc.filename or final}: {exc.strerror}", field="EXP") from exc
    finally:
        shutil.rmtree(temp, ignore_errors=True)
    return Made(final, files)
