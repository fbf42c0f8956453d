"""`tp plugin ls` and `info`: what the site has, and what one package is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hpc.cli.context import json_option, print_json, storage_root, table

if TYPE_CHECKING:
    from hpc.plugins.cards import Card, Listing


@click.command()
@click.option("--capability", default="", help="Only packages of this capability.")
@click.option("--owner", default="", help="Only packages of this owner.")
@click.option("--all", "every", is_flag=True, help="Disabled packages, too.")
@json_option
@click.pass_context
def ls(ctx: click.Context, capability: str, owner: str, every: bool, as_json: bool) -> None:
    """List the packages of the site with the version that a reference without one means.

    Exit code 1 if a package cannot be believed or read; the others are listed all the same.
    """
    from hpc.cli.main import report
    from hpc.plugins.cards import listing

    found: Listing = listing(storage_root(), owner=owner)
    cards = [c for c in found.cards if capability in ("", c.capability) and (every or c.enabled)]
    if as_json:
        print_json({"plugins": [c.as_json() for c in cards], "errors": [e.as_json() for e in found.faults]})
    else:
        rows = [[c.id, c.offered or "-", c.capability, c.state, c.icon, c.summary] for c in cards]
        click.echo(
            table(rows, ["PLUGIN", "VERSION", "CAPABILITY", "STATE", "", "SUMMARY"])
            if rows
            else "no packages; --all shows disabled ones, too"
        )
        report(found.faults, as_json=False)
    ctx.exit(1 if found.faults else 0)


@click.command()
@click.argument("ref")
@json_option
@click.pass_context
def info(ctx: click.Context, ref: str, as_json: bool) -> None:
    """Show a package: its versions, and of one version (the offered one unless REF names it) manifest, digests and README."""
    from hpc.plugins.cards import card

    found = card(storage_root(), ref)
    if as_json:
        print_json(found.as_json(full=True))
    else:
        _print_card(found)
    ctx.exit(1 if found.faults else 0)


def _print_card(card: Card) -> None:
    from hpc.cli.main import report
    from hpc.spec.text import escaped

    if card.record:
        _print_version(card)
    else:
        click.echo(f"{card.id}: {'its versions cannot be believed' if card.versions else 'no version was published'}")
    if card.versions:
        states = [[v.version, v.state, v.digest[7:19], v.published_at, v.note] for v in card.versions]
        click.echo("\n" + table(states, ["VERSION", "STATE", "DIGEST", "PUBLISHED", ""]))
    if card.readme:
        click.echo("\n" + escaped(card.readme.strip(), keep="\n\t"))
    report(card.faults, as_json=False)


def _print_version(card: Card) -> None:
    from hpc.spec.text import escaped

    manifest = card.manifest
    click.echo(f"{card.id}@{card.shown}: {escaped(card.summary) or '(no summary)'}")
    rows: list[tuple[str, Any]] = [
        ("capability", f"{card.capability} ({manifest.get('group', '')}, runs: {manifest.get('execution', '')})"),
        ("entry", manifest.get("entrypoint") or _provider(manifest)),
        ("load", manifest.get("load")),
        *((f"requires {key}", _required(value)) for key, value in (manifest.get("requires") or {}).items() if value),
        ("digest", card.digest),
        ("digest v2", card.digest_v2),
        ("size", f"{card.size} bytes in {card.files} files"),
        ("came by", card.came_by),
        ("archive", card.archive_sha256 or "not recorded"),
        *((key, manifest.get(key)) for key in ("author", "license", "homepage")),
        ("keywords", ", ".join(manifest.get("keywords") or [])),
    ]
    for label, value in rows:
        if value:
            click.echo(f"  {label:20} {escaped(str(value))}")


def _provider(manifest: dict[str, Any]) -> str:
    return f"{manifest['provider']} of {manifest['wheel']}" if manifest.get("wheel") else ""


def _required(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}{spec}" for name, spec in value.items())
    return ", ".join(value) if isinstance(value, list) else str(value)
