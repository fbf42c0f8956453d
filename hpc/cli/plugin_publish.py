"""`tp plugin publish` and `import`: a version onto the shelf, from a folder or from an archive that was looked at first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from tuneplane.record.times import utc_now

from hpc.cli.context import json_option, print_json, storage_root

if TYPE_CHECKING:
    from hpc.registry.publish import Published

_OWNER = click.option(
    "--owner", default="", help="Publish into this namespace (admins, where the mount lets root give files away)."
)


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@_OWNER
@json_option
def publish(folder: Path, owner: str, as_json: bool) -> None:
    """Publish the package in DIR as OWNER/NAME@VERSION, with you as its owner. A version is never changed afterwards."""
    done = _publish(folder, owner, method="publish")
    _report(done, as_json, note=f"tp plugin install {done.id} --exp EXP")


def _publish(folder: Path, owner: str, **how: Any) -> Published:
    import tuneplane

    from hpc.plugins.kind import PLUGIN
    from hpc.registry.publish import publish as put
    from hpc.site.sitefile import load_site
    from hpc.site.users import real_user

    root, user = storage_root(), real_user()
    return put(
        root, PLUGIN, folder, user=user, owner=owner or user.name, site=load_site(root),
        core_version=tuneplane.__version__, now=utc_now(), **how,
    )  # fmt: skip


def _report(done: Published, as_json: bool, note: str) -> None:
    if as_json:
        print_json(done.as_json())
        return
    again = " (restored: the same bytes as were sealed)" if done.restored else ""
    click.echo(f"{done.id}@{done.version}  {done.digest}{again}\n  {done.files} files, {done.size} bytes\n  {note}")
