"""`tp dataset prepare`: run a project's own data preparation, or an installed one, as if its script had been called."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpc.cli.context import print_json, storage_root, table

if TYPE_CHECKING:
    from hpc.project.preparing import Script

SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": ["-h", "--help"]}


@click.command(context_settings=SETTINGS)
@click.option("--json", "as_json", is_flag=True, help="Without NAME: list as JSON.")
@click.argument("name", required=False, default="")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def prepare(name: str, args: tuple[str, ...], as_json: bool) -> None:
    """Run prepare_NAME.py of common/data, else of an installed data-prep package, with ARGS. The exit code is the script's own.

    Without NAME: list the scripts. It runs with the Python of tp, in the current folder, and nothing is published: `tp dataset push` does that.
    """
    from hpc.project.preparing import find_script, scripts
    from hpc.project.project import find_project

    project = find_project(Path.cwd())
    if not name:
        _list(scripts(project), project.root, as_json)
        return
    script = find_script(project, name, _published)
    sys.stdout.flush()
    # Set for tp's own start, and no business of the script's.
    os.environ.pop("PYDANTIC_DISABLE_PLUGINS", None)
    # The script takes this process over: its exit code, its terminal and its signals are its own.
    os.execv(sys.executable, [sys.executable, str(script.path), *args])  # noqa: S606


def _published(package: str, version: str) -> str:
    """The digest that the registry has for a version, "" where nobody can say."""
    from hpc.errors import Refusal, Refusals
    from hpc.plugins.kind import PLUGIN
    from hpc.registry.resolve import resolve

    try:
        return resolve(storage_root(), PLUGIN, f"{package}@{version}", for_new=False).digest
    except (Refusal, Refusals):
        return ""


def _list(found: list[Script], root: Path, as_json: bool) -> None:
    if as_json:
        rows = [
            {"name": s.name, "path": str(s.path), "summary": s.summary, "package": s.package, "version": s.version}
            for s in found
        ]
        print_json({"scripts": rows})
        return
    from hpc.spec.text import escaped

    lines = [
        [s.name, f"{s.package}@{s.version}" if s.package else str(s.path.parent.relative_to(root)), escaped(s.summary)]
        for s in found
    ]
    click.echo(
        table(lines, ["NAME", "FROM", "WHAT"])
        if lines
        else "no common/data/prepare_<name>.py, and no installed data-prep package"
    )
