"""`tp plugin activate`, `deactivate` and `active`: which playbook and prompt the whole site uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from tuneplane.record.times import utc_now

from hpc.cli.context import json_option, print_json, storage_root, table

if TYPE_CHECKING:
    from hpc.plugins.policy import Standing

_GENERATION = click.option("--generation", type=int, default=None, help="Only if this is still the present generation.")


@click.command()
@click.argument("ref", metavar="OWNER/NAME@VERSION")
@_GENERATION
@json_option
@click.pass_context
def activate(ctx: click.Context, ref: str, generation: int | None, as_json: bool) -> None:
    """Make an exact version of a playbook or prompt package the site's (admins). An older version is a roll-back.

    What was stored and what this process could apply are said apart: exit code 1 if it was stored and could not be applied here.
    """
    from hpc.plugins.policy import activate as choose
    from hpc.site.sitefile import load_site
    from hpc.site.users import real_user

    root = storage_root()
    found = choose(root, load_site(root), real_user(), ref, generation, now=utc_now())
    _report([found], as_json)
    ctx.exit(0 if found.is_applied else 1)


@click.command()
@click.argument("capability", type=click.Choice(["playbook", "prompt"]))
@_GENERATION
@json_option
@click.pass_context
def deactivate(ctx: click.Context, capability: str, generation: int | None, as_json: bool) -> None:
    """Go back to the built-in playbook or prompt (admins)."""
    from hpc.plugins.policy import deactivate as restore
    from hpc.site.sitefile import load_site
    from hpc.site.users import real_user

    root = storage_root()
    found = restore(root, load_site(root), real_user(), capability, generation, now=utc_now())
    _report([found], as_json)
    ctx.exit(0 if found.is_applied else 1)


@click.command()
@json_option
@click.pass_context
def active(ctx: click.Context, as_json: bool) -> None:
    """Show the active playbook and prompt. Exit code 1 if one of them could not be applied here, so that an older one is in force."""
    from hpc.plugins.policy import CAPABILITIES, standing

    root = storage_root()
    found = [standing(root, capability) for capability in CAPABILITIES]
    _report(found, as_json)
    ctx.exit(0 if all(f.is_applied for f in found) else 1)


def _report(found: list[Standing], as_json: bool) -> None:
    from hpc.spec.text import escaped

    if as_json:
        print_json({"policies": [f.as_json() for f in found]})
        return
    rows = [
        [
            f.capability,
            f.stored_words,
            f.applied_words,
            str(f.stored.generation),
            f.stored.actor or "-",
            f.stored.at or "-",
        ]
        for f in found
    ]
    click.echo(table(rows, ["POLICY", "STORED", "APPLIED HERE", "GENERATION", "BY", "AT"]))
    for f in found:
        for problem in f.problems:
            click.echo(f"tp: {f.capability}: {escaped(problem)}", err=True)
