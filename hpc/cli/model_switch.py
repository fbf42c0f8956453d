"""`tp model promote`, `archive` and `rm`: what names mean, and what goes out of use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click
from tuneplane.record.times import utc_now

from hpc.cli.context import json_option, print_json, storage_root
from hpc.errors import Refusal
from hpc.spec.text import escaped

if TYPE_CHECKING:
    from tuneplane.contract.layout import StorageRoot

    from hpc.registry.shelf import Ref, Shelf


@click.command()
@click.argument("ref", metavar="OWNER/NAME@VERSION")
@click.option("--to", "channel", required=True, help="The channel, such as staging or production.")
@click.option("--generation", type=int, default=None, help="Only if this is still the channel's generation.")
@click.option(
    "--override-gates", default="", metavar="REASON", help="Promote though gates did not pass; REASON is kept."
)
@json_option
def promote(ref: str, channel: str, generation: int | None, override_gates: str, as_json: bool) -> None:
    """Let CHANNEL mean this version: OWNER/NAME@CHANNEL then resolves to it. The owner of the model does it, or root.

    A model of a run with gates is promoted only if they passed; they are judged again, from the reports. The verdict is kept with the channel.
    """
    from hpc.data.channels import promote as move
    from hpc.data.models import MODEL
    from hpc.registry.resolve import resolve
    from hpc.registry.shelf import Shelf, parse_ref
    from hpc.site.sitefile import load_site
    from hpc.site.users import real_user

    root = storage_root()
    site, parsed = load_site(root), parse_ref(ref, "REF")
    if not parsed.version:
        raise click.UsageError("name the version: OWNER/NAME@VERSION")
    shelf = Shelf(root, MODEL, site=site)
    verdicts = _gates(root, resolve(root, MODEL, parsed, site=site, for_new=True).facts, override_gates)
    user, now = real_user(), utc_now()
    done = move(shelf, parsed, channel, user=user, site=site, now=now, expected=generation, verdicts=verdicts)
    if as_json:
        print_json({"id": parsed.id, **done.as_json()})
        return
    click.echo(f"{parsed.id}@{channel} now means {done.version} (generation {done.generation})")
    for verdict in verdicts:
        word = f", overridden: {verdict['overridden']}" if "overridden" in verdict else ""
        click.echo(escaped(f"  gates {verdict['verdict']}: {verdict['reason']}{word}"))


def _gates(root: StorageRoot, facts: Mapping[str, Any], override: str) -> tuple[dict[str, Any], ...]:
    """The verdict on the run that made a version, () where it had no gates. Raises Refusal E-MODEL-050 unless they passed or are overridden."""
    from hpc.evaluate.verdicts import verdict_of_lineage

    found = verdict_of_lineage(root, facts.get("lineage") or {})
    if found is None:
        return ()
    if found.state != "passed" and not override.strip():
        text = f"gates of {found.run_id}: {found.state}: {found.reason}"
        raise Refusal("E-MODEL-050", text, field="REF", found=found.state, allowed="passed, or --override-gates REASON")
    kept = found.as_json()
    return ({**kept, "overridden": override.strip()} if found.state != "passed" else kept,)


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
