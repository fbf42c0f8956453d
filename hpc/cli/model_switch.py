"""`tp model promote`, `archive` and `rm`: what names mean, and what goes out of use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from tuneplane.record.times import utc_now

from hpc.cli.context import json_option, print_json, storage_root
from hpc.errors import Refusal

if TYPE_CHECKING:
    from hpc.registry.shelf import Ref, Shelf


@click.command()
@click.argument("ref", metavar="OWNER/NAME@VERSION")
@click.option("--to", "channel", required=True, help="The channel, such as staging or production.")
@click.option("--generation", type=int, default=None, help="Only if this is still the channel's generation.")
@json_option
def promote(ref: str, channel: str, generation: int | None, as_json: bool) -> None:
    """Let CHANNEL mean this version: OWNER/NAME@CHANNEL then resolves to it. The owner of the model does it, or root."""
    from hpc.data.channels import promote as move
    from hpc.data.models import MODEL
    from hpc.registry.shelf import Shelf, parse_ref
    from hpc.site.sitefile import load_site
    from hpc.site.users import real_user

    root = storage_root()
    site, parsed = load_site(root), parse_ref(ref, "REF")
    if not parsed.version:
        raise click.UsageError("name the version: OWNER/NAME@VERSION")
    shelf = Shelf(root, MODEL, site=site)
    done = move(shelf, parsed, channel, user=real_user(), site=site, now=utc_now(), expected=generation)
    if as_json:
        print_json({"id": parsed.id, **done.as_json()})
    else:
        click.echo(f"{parsed.id}@{channel} now means {done.version} (generation {done.generation})")


@click.command()
@click.argument("ref", metavar="OWNER/NAME@VERSION")
@click.option("--undo", is_flag=True, help="Bring it back.")
@json_option
def archive(ref: str, undo: bool, as_json: bool) -> None:
    """Refuse new references to a version (its owner, or an admin). Nothing is removed, and runs keep what they used."""
    from hpc.data.models import MODEL
    from hpc.registry.shelf import Shelf, parse_ref
    from hpc.registry.switches import DISABLED, ENABLED, set_version
    from hpc.site.sitefile import load_site
    from hpc.site.users import real_user

    root = storage_root()
    site, parsed = load_site(root), parse_ref(ref, "REF")
    if not parsed.version:
        raise click.UsageError("name the version: OWNER/NAME@VERSION")
    shelf = Shelf(root, MODEL, site=site)
    if not undo:
        _require_no_channel(shelf, parsed)
    word = ENABLED if undo else DISABLED
    number = set_version(
        shelf, parsed.owner, parsed.name, parsed.version, word, user=real_user(), site=site, now=utc_now()
    )
    if as_json:
        print_json({"ref": str(parsed), "archived": not undo, "generation": number})
    else:
        click.echo(f"{parsed} is {'back' if undo else 'archived'}")


@click.command()
@click.argument("ref", metavar="OWNER/NAME@VERSION")
@click.option("--unseen", is_flag=True, help="Accept that records of others could not be read.")
@json_option
def rm(ref: str, unseen: bool, as_json: bool) -> None:
    """Remove a version that no run, no channel and no other model names."""
    from hpc.data.models import MODEL
    from hpc.data.remove import remove_version
    from hpc.registry.shelf import Shelf, parse_ref
    from hpc.site.sitefile import load_site
    from hpc.site.users import real_user

    root = storage_root()
    parsed = parse_ref(ref, "REF")
    if not parsed.version:
        raise click.UsageError("name the version: OWNER/NAME@VERSION")
    shelf = Shelf(root, MODEL, site=load_site(root))
    _require_no_channel(shelf, parsed)
    remove_version(shelf, parsed, user=real_user(), now=utc_now(), unseen=unseen)
    if as_json:
        print_json({"removed": str(parsed)})
    else:
        click.echo(f"removed {parsed}")


def _require_no_channel(shelf: Shelf, ref: Ref) -> None:
    """Raises Refusal E-MODEL-040 while a channel means the version."""
    from hpc.data.channels import channels

    named = [c.name for c in channels(shelf, ref) if c.version == ref.version]
    if named:
        text = f"{ref} is what {', '.join(named)} means"
        raise Refusal("E-MODEL-040", text, field="REF", found=", ".join(named))
