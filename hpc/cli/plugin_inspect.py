"""`tp plugin files`, `compare` and `usage`: a version looked at before it is chosen, and who used it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hpc.cli.context import json_option, print_json, storage_root, table

if TYPE_CHECKING:
    from hpc.registry.inspection import Preview
    from hpc.registry.resolve import Version


def _version(ref: str, field: str = "REF") -> Version:
    """A version to look at; an exact one also where it is disabled."""
    from hpc.plugins.kind import PLUGIN
    from hpc.registry.resolve import resolve
    from hpc.registry.shelf import parse_ref

    wanted = parse_ref(ref, field)
    return resolve(storage_root(), PLUGIN, wanted, for_new=not wanted.version, field=field)


@click.command()
@click.argument("ref")
@click.argument("path", required=False, default="")
@click.option("--search", default="", help="Only paths that contain this.")
@json_option
def files(ref: str, path: str, search: str, as_json: bool) -> None:
    """List the files of a version with size and SHA-256, or show the beginning of PATH.

    Every byte is compared with the record first. Text is shown up to 128 KiB and 4,000 lines; of other files size and digest.
    """
    from hpc.registry.inspection import list_files, preview
    from hpc.spec.text import escaped

    version = _version(ref)
    if path:
        shown = preview(version, path)
        print_json({"ref": str(version), **shown.as_json()}) if as_json else _print_preview(shown)
        return
    found = [f for f in list_files(version) if search in f.path]
    if as_json:
        about = {"digest": version.digest, "digest_v2": version.digest_v2, "published": version.record["published"]}
        print_json({"ref": str(version), **about, "files": [f.as_json() for f in found]})
        return
    told = version.record["published"]
    how, who, archive = (told.get(key) or "not recorded" for key in ("method", "actor", "archive_sha256"))
    click.echo(f"{version}  {version.digest}\n" + escaped(f"{how} by {who}; archive {archive}"))
    click.echo(table([[f.path, str(f.size), f.sha256] for f in found], ["PATH", "BYTES", "SHA-256"]))


def _print_preview(shown: Preview) -> None:
    from hpc.spec.text import escaped

    if shown.text is None:
        click.echo(f"{shown.path}: {shown.size} bytes, {shown.sha256}; not text")
        return
    click.echo(escaped(shown.text, keep="\n\t"), nl=not shown.text.endswith("\n"))
    if shown.cut:
        click.echo(f"tp: {shown.path} goes on: {shown.size} bytes in all", err=True)


@click.command()
@click.argument("ref", metavar="OWNER/NAME[@VERSION]")
@click.option("--base", required=True, help="The version to compare from.")
@json_option
def compare(ref: str, base: str, as_json: bool) -> None:
    """Show what is added, removed and modified from --base to REF. It enables, recommends and activates nothing.

    Text differences end at 2,000 lines and 256 KiB in all; what is cut is said.
    """
    from hpc.registry.inspection import compare as differences
    from hpc.registry.inspection import plain_lines
    from hpc.spec.text import escaped

    other = _version(ref)
    found = differences(_version(base if "/" in base else f"{other.id}@{base}", "--base"), other)
    if as_json:
        print_json(found.as_json())
        return
    click.echo(f"{found.base} → {found.other}")
    for line in plain_lines(found):
        click.echo(escaped(line, keep="\t"))
    if not (found.added or found.removed or found.modified):
        click.echo("no difference")


@click.command()
@click.argument("ref")
@click.option("--owner", default="", help="Only runs of this user (others' for admins).")
@json_option
def usage(ref: str, owner: str, as_json: bool) -> None:
    """List the submitted runs that carried a package or a version: your own; everybody's for admins.

    Experiments that were never submitted are not counted.
    """
    from hpc.errors import Refusal
    from hpc.registry.shelf import parse_ref
    from hpc.runs.find import owners
    from hpc.runs.plugin_use import uses
    from hpc.site.sitefile import load_site
    from hpc.site.users import is_admin, real_user

    root, user, wanted = storage_root(), real_user(), parse_ref(ref, "REF")
    everybody = is_admin(user, load_site(root))
    if owner not in ("", user.name) and not everybody:
        message = f"{user.name} sees own runs only"
        raise Refusal("E-REG-007", message, field="--owner", found=owner, allowed=user.name)
    whose = [owner] if owner else owners(root) if everybody else [user.name]
    found = list(uses(root, wanted.id, owners=whose, version=wanted.version))
    if as_json:
        print_json(
            {"ref": ref, "owners": "all" if everybody and not owner else whose, "uses": [u.as_json() for u in found]}
        )
        return
    rows = [[u.owner, u.experiment, u.run_id, u.version, u.digest[7:19]] for u in found]
    click.echo(
        table(rows, ["OWNER", "EXPERIMENT", "RUN", "VERSION", "DIGEST"])
        if rows
        else f"no run that you may see carried {ref}"
    )
