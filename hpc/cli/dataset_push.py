"""`tp dataset push`, `visibility`, `rm`, `publish-output`: what changes the shelf of data sets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from tuneplane.record.times import utc_now

from hpc.cli.context import GivenPath, json_option, print_json, storage_root

if TYPE_CHECKING:
    from hpc.cli.progress import Passing
    from hpc.data.push import Pusher
    from hpc.registry.publish import Published

_PRIVATE = click.option("--private", is_flag=True, help="Readable for you alone (all versions of the name).")
_GROUP = click.option("--group", default="", metavar="GROUP", help="Readable for a Unix group of yours.")


def pusher(owner: str = "", passing: Passing | None = None) -> Pusher:
    from hpc.data.push import Pusher
    from hpc.registry.trees import quiet
    from hpc.site.sitefile import load_site
    from hpc.site.users import real_user

    root = storage_root()
    return Pusher(root, load_site(root), real_user(), utc_now(), owner, passing.tick if passing else quiet)


def passing(folder: Path, *, rows: bool = False) -> Passing:
    """The bar of a push of `folder`; `rows`: its rows are counted, too."""
    from tuneplane.contract.datasets import folder_files

    from hpc.cli.progress import Passing
    from hpc.data.push import COUNTED, STORED
    from hpc.registry.trees import skipped

    try:
        total = sum(folder_files(folder, skipped).values())
    except OSError:
        total = 0  # the push says what is wrong with it
    return Passing(total, COUNTED if rows else STORED)


@click.command()
@click.argument("name")
@click.argument("version")
@click.argument("folder", metavar="DIR", type=GivenPath())
@_PRIVATE
@_GROUP
@click.option("--readme", type=GivenPath(dir_okay=False), help="A file that becomes the card (README.md).")
@click.option(
    "--owner", default="", help="Publish into this namespace (root, where the mount lets it give files away)."
)
@json_option
def push(
    name: str, version: str, folder: Path, private: bool, group: str, readme: Path | None, owner: str, as_json: bool
) -> None:
    """Publish DIR as YOU/NAME@VERSION. Every row is read once; nothing is run; the version is never changed afterwards."""
    from hpc.data.push import push_dataset
    from hpc.data.visibility import wanted

    with passing(folder, rows=True) as bar:
        done = push_dataset(pusher(owner, bar), name, version, folder, ask=wanted(private, group), readme=readme)
    report(done, as_json)


def report(done: Published, as_json: bool) -> None:
    """Say what now stands on the shelf."""
    if as_json:
        print_json(done.as_json())
        return
    again = " (restored: the same bytes as were sealed)" if done.restored else ""
    click.echo(f"{done.id}@{done.version}  {done.digest}{again}\n  {done.files} files, {done.size} bytes")


@click.command()
@click.argument("ref", metavar="NAME")
@click.argument("word", metavar="public|group|private", type=click.Choice(["public", "group", "private"]))
@click.argument("group", default="")
@json_option
def visibility(ref: str, word: str, group: str, as_json: bool) -> None:
    """Set who may read all versions of NAME (OWNER/NAME for root): `public`, `group GROUP` or `private`."""
    from hpc.data.kinds import DATASET
    from hpc.data.push import prepare_name
    from hpc.data.visibility import Visibility, visibility_of
    from hpc.registry.shelf import Shelf

    if (word == "group") != bool(group):
        raise click.UsageError("a group is named after `group`, and only there")
    by = pusher()
    owner, _, name = ref.rpartition("/")
    owner = owner or by.user.name
    shelf = Shelf(by.root, DATASET, site=by.site)
    shelf.require(owner, name)
    prepare_name(pusher(owner), shelf, name, Visibility(word, group))
    now = visibility_of(shelf.package(owner, name))
    if as_json:
        print_json({"id": f"{owner}/{name}", "visibility": now.word, "group": now.group})
    else:
        click.echo(f"{owner}/{name}: {now}")


@click.command()
@click.argument("ref")
@click.option("--unseen", is_flag=True, help="Remove it although some runs of others cannot be read.")
@json_option
def rm(ref: str, unseen: bool, as_json: bool) -> None:
    """Remove OWNER/NAME@VERSION: only if no run, lock file or model names it. A sealed version stays known as gone."""
    from hpc.data.kinds import DATASET
    from hpc.data.remove import remove_version
    from hpc.registry.shelf import Shelf, parse_ref

    by = pusher()
    wanted = parse_ref(ref, "REF")
    if not wanted.version:
        raise click.UsageError("name the version that is to be removed")
    found = remove_version(Shelf(by.root, DATASET, site=by.site), wanted, user=by.user, now=by.now, unseen=unseen)
    if as_json:
        print_json({"removed": str(wanted), "unseen": found.closed})
    else:
        click.echo(f"{wanted} is removed")


@click.command("publish-output")
@click.argument("run_id", metavar="RUN")
@json_option
def publish_output(run_id: str, as_json: bool) -> None:
    """Publish the output data set of a run that succeeded, where its job could not. Doing it again changes nothing."""
    from hpc.data.output import publish_output as publish
    from hpc.runs.find import resolve

    by = pusher()
    done: dict[str, Any] = publish(by, resolve(by.root, run_id, by.user.name))
    if as_json:
        print_json(done)
    else:
        click.echo(f"{done['ref']}: {done['state']}")
