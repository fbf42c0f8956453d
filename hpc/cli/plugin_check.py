"""`tp plugin validate` and `tp plugin digest`: a package folder, looked at from its bytes alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpc.cli.context import GivenPath, json_option, print_json

if TYPE_CHECKING:
    from hpc.plugins.validate import Report

_HELP = {"help_option_names": ["-h", "--help"]}


@click.command(context_settings=_HELP)
@click.argument("folder", metavar="DIR", type=GivenPath())
@click.option("--manifest-only", is_flag=True, help="Check plugin.yaml alone, not the files beside it.")
@json_option
@click.pass_context
def validate(ctx: click.Context, folder: Path, manifest_only: bool, as_json: bool) -> None:
    """Check the plugin package in DIR. Nothing of it is run.

    The verdict is about plugin.yaml and the layout. A pack whose declaration (recipe.yaml, benchmark.yaml, ...) is at fault is accepted as a
    package but cannot be published. Exit code 1 for anything that publishing would refuse.
    """
    from hpc.plugins.validate import validate as look

    report = look(folder, manifest_only=manifest_only)
    if as_json:
        value = report.as_json()
        print_json(value | {key: _escaped(value[key]) for key in ("errors", "declarations", "warnings")})
    else:
        _print(report, folder)
    ctx.exit(0 if report.good else 1)


def _escaped(value: Any) -> Any:
    """What refusals quote comes from other people: none of it steers a terminal. A sound manifest does not."""
    from hpc.spec.text import escaped

    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    return escaped(value, keep="\n\t") if isinstance(value, str) else value


def _print(report: Report, folder: Path) -> None:
    from hpc.cli.main import report as say
    from hpc.spec.text import escaped

    say([*report.errors, *report.declarations], as_json=False)
    for line in report.warnings:
        click.echo(f"tp: note: {escaped(line)}", err=True)
    if (manifest := report.manifest) is not None:
        where = f" ({manifest.execution})" if manifest.capability == "data-prep" else ""
        click.echo(f"package   : {manifest.name} {manifest.version}, {manifest.capability}{where}")
        for name, text in _asks(report):
            click.echo(f"{name:<10}: {text}")
    if report.digest:
        click.echo(f"digest    : {report.digest}")
        click.echo(f"digest v2 : {report.digest_v2}")
    click.echo(f"verdict   : {_words(report)}")


def _asks(report: Report) -> list[tuple[str, str]]:
    """What the package asks for, one line each; nothing for what it leaves open."""
    assert report.manifest is not None
    requires = report.manifest.requires.as_json()
    requires["frameworks"] = [f"{name}{spec}" for name, spec in requires["frameworks"].items()]
    texts = {key: value if isinstance(value, str) else ", ".join(value) for key, value in requires.items()}
    return [(f"  {key}", text) for key, text in texts.items() if text]


def _words(report: Report) -> str:
    if report.errors:
        return "refuse"
    if report.declarations:
        return "accept, but not publishable: its declaration is at fault"
    return "accept" if report.whole else "accept (plugin.yaml alone)"


@click.command(context_settings=_HELP)
@click.argument("folder", metavar="DIR", type=GivenPath())
@json_option
def digest(folder: Path, as_json: bool) -> None:
    """Print both digests of the folder DIR: the documented one (v1), and the framed one (v2).

    v1 follows links to files, as documented; v2 covers the exec bit and refuses links, and is then left out with the reason. Any folder will
    do; byte code, caches and version control are covered by neither.
    """
    from hpc.plugins.digests import folder_digests

    found = folder_digests(folder)
    if as_json:
        print_json(found.as_json())
        return
    click.echo(f"v1 {found.v1}")
    click.echo(f"v2 {found.v2}" if found.v2 else "v2 none")
    if found.reason:
        click.echo(f"tp: note: no v2 digest: {found.reason}", err=True)
