"""`tp volume`: folders that change, mounted read-only in jobs at $VOLUMES_DIR/NAME."""

from __future__ import annotations

from pathlib import Path

import click

from hpc.cli.context import GivenPath, json_option, print_json, storage_root, table

_PRIVATE = click.option("--private", is_flag=True, help="Readable for you alone.")
_GROUP = click.option("--group", default="", metavar="GROUP", help="Readable for a Unix group of yours.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def volume() -> None:
    """Volumes: what changes. A job keeps the content that it was submitted with; a push is for the next ones."""


@volume.command()
@click.argument("name")
@_PRIVATE
@_GROUP
@json_option
def create(name: str, private: bool, group: str, as_json: bool) -> None:
    """Make the empty volume YOU/NAME."""
    from hpc.cli.dataset_push import pusher
    from hpc.data.visibility import PUBLIC, Visibility, wanted
    from hpc.data.volumes import create as make

    by, ask = pusher(), wanted(private, group) or Visibility(PUBLIC)
    make(by, name, ask)
    if as_json:
        print_json({"id": f"{by.user.name}/{name}", "visibility": ask.word, "group": ask.group})
    else:
        click.echo(f"{by.user.name}/{name}: {ask}, empty; `tp volume push {name} DIR`")


@volume.command()
@click.argument("name")
@click.argument("folder", metavar="DIR", type=GivenPath())
@json_option
def push(name: str, folder: Path, as_json: bool) -> None:
    """Make what is in DIR the volume's content. Jobs that are queued or running keep what they were submitted with."""
    from hpc.cli.dataset_push import passing, pusher, report
    from hpc.data.push import push_volume

    with passing(folder) as bar:
        done = push_volume(pusher(passing=bar), name, folder)
    report(done, as_json)


@volume.command()
@click.option("--owner", default="", help="Only volumes of this owner.")
@json_option
@click.pass_context
def ls(ctx: click.Context, owner: str, as_json: bool) -> None:
    """List the volumes of the site. Exit code 1 if one cannot be believed; the others are listed all the same."""
    from hpc.cli.dataset_show import size_text
    from hpc.cli.main import report
    from hpc.data.cards import listing
    from hpc.data.kinds import VOLUME

    found = listing(storage_root(), VOLUME, owner=owner)
    if as_json:
        cards = [c.as_json() for c in found.cards]
        print_json({"volumes": cards, "closed": found.closed, "errors": [e.as_json() for e in found.faults]})
    else:
        rows = [
            [c.id, c.newest.version, size_text(c.newest.size), str(len(c.newest.files)), str(c.visibility)]
            if c.newest
            else [c.id, "-", "-", "-", str(c.visibility)]
            for c in found.cards
        ]
        rows += [[name, "-", "-", "-", "closed"] for name in found.closed]
        click.echo(table(rows, ["VOLUME", "GENERATION", "SIZE", "FILES", "VISIBLE"]) if rows else "no volumes")
        report(found.faults, as_json=False)
    ctx.exit(1 if found.faults else 0)


@volume.command()
@click.argument("name")
@click.option("--old", is_flag=True, help="Only generations before the newest that no run needs.")
@click.option("--unseen", is_flag=True, help="Remove it although some runs of others cannot be read.")
@json_option
def rm(name: str, old: bool, unseen: bool, as_json: bool) -> None:
    """Remove the volume NAME (OWNER/NAME for root), unless a run that has not ended needs it."""
    from hpc.cli.dataset_push import pusher
    from hpc.data.volumes import remove
    from hpc.registry.shelf import parse_ref

    by = pusher()
    ref = parse_ref(name if "/" in name else f"{by.user.name}/{name}", "NAME")
    gone = remove(by, ref, old=old, unseen=unseen)
    if as_json:
        print_json({"id": ref.id, "removed": gone})
    else:
        click.echo(f"{ref.id}: generations {', '.join(gone) or 'none'} removed")
