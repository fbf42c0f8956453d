"""`tp assets`: what was fetched from hubs into the shared cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hpc.cli.context import json_option, print_json, storage_root, table
from hpc.cli.lazy import LazyGroup, Table

if TYPE_CHECKING:
    from hpc.data.hub_names import RepoType

COMMANDS: Table = {
    "ls": ("hpc.cli.assets:ls", "List what the cache holds, newest first."),
    "path": ("hpc.cli.assets:path", "The folder of a repository's files."),
    "verify": ("hpc.cli.assets:verify", "Read every byte again; exit 1 names what is damaged."),
}
_TYPE = click.option(
    "--type", "kind", type=click.Choice(["model", "dataset"]), default=None, help="Models or data sets."
)


@click.group(cls=LazyGroup, commands_at=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
def assets() -> None:
    """Files of hubs in the shared cache. REPO is [hf:]ORG/NAME, with @REVISION if one of several is meant."""


@click.command()
@_TYPE
@json_option
def ls(kind: RepoType | None, as_json: bool) -> None:
    """List every commit that somebody fetched, the newest first."""
    from hpc.cli.progress import size
    from hpc.data.assets import assets as rows_of
    from hpc.data.hub_names import HubCache

    cache = HubCache(storage_root())
    rows = [a for a in rows_of(cache) if kind in (None, a.repo.type)]
    if as_json:
        print_json({"assets": [a.as_json(cache) for a in rows]})
        return
    shown = [
        [str(a.repo), a.repo.type, a.commit[:12], size(a.size), str(len(a.files)), a.newest, ", ".join(a.users)]
        for a in rows
    ]
    headers = ["REPO", "TYPE", "COMMIT", "SIZE", "FILES", "FETCHED", "BY"]
    click.echo(table(shown, headers) if shown else "nothing was fetched yet: tp model prefetch --repo hf:ORG/NAME")


@click.command()
@click.argument("repo")
@_TYPE
@json_option
def path(repo: str, kind: RepoType | None, as_json: bool) -> None:
    """Print the folder that holds the files of REPO; refused with the prefetch command where it is not downloaded."""
    from hpc.data.assets import find
    from hpc.data.hub_cache import snapshot
    from hpc.data.hub_names import HubCache

    cache = HubCache(storage_root())
    found = find(cache, repo, kind)
    snapshot(cache, found.repo, found.commit)
    if as_json:
        print_json(found.as_json(cache))
    else:
        click.echo(str(cache.snapshot(found.repo, found.commit)))


@click.command()
@click.argument("repo", required=False)
@_TYPE
@json_option
@click.pass_context
def verify(ctx: click.Context, repo: str | None, kind: RepoType | None, as_json: bool) -> None:
    """Hash the files of REPO, or of everything, again and compare them with what the hub announced.

    Exit code 1 if a file is changed, missing or out of place; each is named.
    """
    from hpc.data.assets import assets as rows_of
    from hpc.data.assets import find
    from hpc.data.assets import verify as check
    from hpc.data.hub_names import HubCache

    cache = HubCache(storage_root())
    rows = [find(cache, repo, kind)] if repo else [a for a in rows_of(cache) if kind in (None, a.repo.type)]
    report, bad = [], 0
    for asset, findings in check(cache, rows):
        bad += bool(findings)
        report.append({**asset.as_json(cache), "findings": [f.as_json() for f in findings]})
        if as_json:
            continue
        click.echo(f"{'damaged' if findings else 'good   '}  {asset.repo}@{asset.commit}  {len(asset.files)} files")
        for finding in findings:
            click.echo(f"  {finding}", err=True)
        if findings:
            click.echo(f"  mend: {asset.repo.prefetch(asset.commit)}", err=True)
    if as_json:
        print_json({"assets": report, "damaged": bad})
    elif not rows:
        click.echo("nothing to verify")
    ctx.exit(1 if bad else 0)
