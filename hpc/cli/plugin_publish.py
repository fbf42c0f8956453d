"""`tp plugin publish` and `import`: a version onto the shelf, from a folder or from an archive that was looked at first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from tuneplane.record.times import utc_now

from hpc.cli.context import GivenPath, json_option, print_json, storage_root

if TYPE_CHECKING:
    from hpc.registry.publish import Published

_OWNER = click.option(
    "--owner", default="", help="Publish into this namespace (admins, where the mount lets root give files away)."
)


@click.command()
@click.argument("folder", metavar="DIR", type=GivenPath())
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


@click.command("import")
@click.argument("archive", metavar="FILE.tar.gz", type=GivenPath())
@click.option(
    "--confirm", "receipt", default="", metavar="RECEIPT", help="Store what the preview with this receipt showed."
)
@_OWNER
@json_option
def import_archive(archive: Path, receipt: str, owner: str, as_json: bool) -> None:
    """Preview a package archive of at most 32 MiB with plugin.yaml at its root; with --confirm, store the same bytes.

    Nothing of it is run. The receipt is yours, lasts a quarter of an hour and fits these bytes only; both checks are made again. An imported
    version starts disabled.
    """
    import os
    import time

    from hpc.plugins.importing import preview, receipt_key, redeem, scratch_folder
    from hpc.site.members import ensure_owner
    from hpc.site.users import real_user

    root, user = storage_root(), real_user()
    ensure_owner(root, user)
    how: dict[str, Any] = {
        "secret": receipt_key(root, user.name),
        "scratch": scratch_folder(root, user.name),
        "uid": os.getuid(),
    }
    if not receipt:
        shown = preview(archive, now=time.time(), **how)
        print_json(shown.as_json()) if as_json else _print_preview(shown, archive, owner)
        return
    with redeem(archive, receipt, now=time.time(), **how) as found:
        done = _publish(found.folder, owner, method="import", archive_sha256=found.archive_digest, starts="disabled")
    _report(done, as_json, note=f"starts disabled: tp plugin enable {done.id}@{done.version}")


def _print_preview(shown: Any, archive: Path, owner: str) -> None:
    import shlex

    from hpc.spec.text import escaped

    told = shown.as_json()
    rows = [
        ("package", f"{told['name']} {told['version']} ({told['capability']})"),
        *((f"requires {key}", str(value)) for key, value in told["requires"].items() if value),
        ("digest", told["digest"]),
        ("digest v2", told["digest_v2"]),
        ("archive", f"{told['archive_sha256']}, {told['archive_bytes']} bytes"),
        ("unpacked", f"{told['files']} files, {told['size']} bytes"),
    ]
    for label, value in rows:
        click.echo(f"  {label:20} {escaped(value)}")
    for warning in told["warnings"]:
        click.echo(f"tp: note: {escaped(warning)}", err=True)
    asked = [
        "tp",
        "plugin",
        "import",
        str(archive),
        *(("--owner", owner) if owner else ()),
        "--confirm",
        told["receipt"],
    ]
    click.echo(f"\nstored by, within a quarter of an hour:\n  {escaped(shlex.join(asked))}")
