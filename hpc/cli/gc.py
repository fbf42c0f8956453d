"""`tp gc`: what can be removed below the storage root, why, and how much."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from hpc.cli.context import json_option, print_json, storage_root, table
from hpc.errors import Refusal

if TYPE_CHECKING:
    from tuneplane.contract.layout import StorageRoot

    from hpc.data.gc_survey import Item


@click.command()
@click.option("--dry-run", is_flag=True, help="Say what would go, and remove nothing.")
@click.option(
    "--keep",
    "keep_days",
    type=click.IntRange(min=1),
    default=30,
    show_default=True,
    help="Days that an unnamed commit stays.",
)
@click.option(
    "--wait", "wait_s", type=click.FloatRange(0, 3600), default=75.0, show_default=True, metavar="SECONDS",
    help="Between hiding cached files and deleting them: as long as another node may see old names.",
)  # fmt: skip
@click.option("--all", "everybody", is_flag=True, help="Try what belongs to others, too (root, the service user).")
@json_option
@click.pass_context
def gc(ctx: click.Context, dry_run: bool, keep_days: int, wait_s: float, everybody: bool, as_json: bool) -> None:
    """Remove what no run, no model and no lock needs: unnamed commits of the hub cache, litter, packages never submitted.

    Nothing younger than a day is touched. Without --all only your own things go. Exit code 1 if something could not be removed.
    """
    import os

    from hpc.cli.main import report
    from hpc.cli.progress import size
    from hpc.data.gc_survey import survey

    root = storage_root()
    found = survey(root, now_s=time.time(), keep_s=keep_days * 86_400.0)
    items = [i for i in found.items if everybody or i.uid == os.geteuid()]
    others = [i for i in found.items if i not in items]
    freed, done, faults = (0, 0, []) if dry_run else _remove(root, items, wait_s)
    if as_json:
        print_json({
            "dry_run": dry_run, "items": [i.as_json() for i in items], "others": [i.as_json() for i in others], "size": sum(i.size for i in items),
            "freed": freed, "removed": done, "kept": found.kept, "closed": found.closed, "errors": [f.as_json() for f in faults],
        })  # fmt: skip
    else:
        rows = [[i.kind, size(i.size), i.why, os.path.relpath(i.path, root.path)] for i in items]
        click.echo(table(rows, ["KIND", "SIZE", "WHY", "WHAT"]) if rows else "nothing to remove")
        total = size(sum(i.size for i in items))
        click.echo(
            f"{len(items)} things, {total}: nothing was removed" if dry_run else f"removed {done}, {size(freed)} freed"
        )
        if others:
            click.echo(f"{len(others)} things of others, {size(sum(i.size for i in others))}: they, or root with --all")
        if found.closed:
            click.echo(
                f"{len(found.closed)} records of others cannot be read, so no cached commit goes: run it as root or the service user"
            )
        report(faults, as_json=False)
    ctx.exit(1 if faults else 0)


def _remove(root: StorageRoot, items: list[Item], wait_s: float) -> tuple[int, int, list[Refusal]]:
    """(bytes that came free, things that went, why others did not). Cached files are looked at once more when every node sees that they went."""
    from hpc.cli.progress import Bar
    from hpc.data.gc import finish, hide
    from hpc.data.gc_marks import marks
    from hpc.data.hub_names import HubCache

    freed, done, faults, hidden = 0, 0, [], []
    for item in items:
        try:
            hidden.append(hide(root, item))
        except Refusal as fault:
            faults.append(fault)
    held = None
    if any(h.item.repo is not None for h in hidden):
        if (bar := Bar()).on:
            bar.say(f"{len(hidden)} things are out of sight; looking again in {wait_s:g} s, then they go")
        time.sleep(wait_s)
        held = marks(HubCache(root))
    for one in hidden:
        try:
            freed += finish(root, one, held)
            done += 1
        except Refusal as fault:
            faults.append(fault)
    return freed, done, faults
