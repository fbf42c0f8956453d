"""`tp model ls`, `show` and `verify`: what models there are, what one is and where it comes from, and whether its bytes still are that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hpc.cli.context import json_option, print_json, storage_root, table

if TYPE_CHECKING:
    from hpc.data.model_cards import Card


@click.command()
@click.option("--owner", default="", help="Only models of this owner.")
@click.option("--all", "every", is_flag=True, help="Archived ones, too.")
@click.option("--certified", is_flag=True, help="Instead: base models of hubs that this site stands behind.")
@json_option
@click.pass_context
def ls(ctx: click.Context, owner: str, every: bool, certified: bool, as_json: bool) -> None:
    """List the models of the shelf. Exit code 1 if one cannot be believed or read; the others are listed all the same."""
    if certified:
        return _certified(as_json)
    from hpc.cli.main import report
    from hpc.cli.progress import size
    from hpc.data.model_cards import listing

    cards, faults = listing(storage_root(), owner=owner)
    cards = [c for c in cards if every or c.offered]
    if as_json:
        print_json({"models": [c.as_json() for c in cards], "errors": [e.as_json() for e in faults]})
    else:
        rows = [
            [c.id, c.offered or "-", c.form, c.what, size(c.size), ", ".join(f"{k}={v}" for k, v in c.channels.items())]
            for c in cards
        ]
        headers = ["MODEL", "VERSION", "FORM", "ARCHITECTURE", "SIZE", "CHANNELS"]
        click.echo(table(rows, headers) if rows else "no models: tp model register RUN NAME VERSION")
        report(faults, as_json=False)
    ctx.exit(1 if faults else 0)
    return None


def _certified(as_json: bool) -> None:
    from hpc.data.certified import Certified

    models = sorted(Certified.load(storage_root()).models.values(), key=lambda m: m.id)
    if as_json:
        print_json({"certified": [{**m.as_json(), "learning_rate": str(m.learning_rate)} for m in models]})
        return
    rows = [[f"hf:{m.id}", m.revision[:12], str(m.memory_gib.get("train", "-")), m.origin] for m in models]
    click.echo(table(rows, ["MODEL", "COMMIT", "TRAIN GiB", "FROM"]))


@click.command()
@click.argument("ref")
@json_option
@click.pass_context
def show(ctx: click.Context, ref: str, as_json: bool) -> None:
    """Show a model: versions, channels, and of one version (the offered one unless REF names it) facts and lineage."""
    from hpc.cli.main import report
    from hpc.data.model_cards import card

    found = card(storage_root(), ref)
    if as_json:
        print_json(found.as_json(full=True))
    else:
        _print(found)
        report(list(found.faults), as_json=False)
    ctx.exit(1 if found.faults else 0)


def _print(card: Card) -> None:
    from hpc.spec.text import escaped

    facts = dict(card.record.get("facts", {}))
    lineage = dict(facts.get("lineage", {}))
    click.echo(f"{card.id}@{card.shown}" if card.shown else card.id)
    rows: list[tuple[str, Any]] = [
        ("form", f"{card.form} {card.what}"),
        ("parameters", facts.get("parameters")),
        ("numbers", ", ".join(f"{k} {v}" for k, v in (facts.get("dtypes") or {}).items())),
        (
            "lora",
            ", ".join([*(f"{k}={v}" for k, v in (facts.get("lora") or {}).items()), *facts.get("lora_targets", [])]),
        ),
        ("base", facts.get("base_model") or lineage.get("base")),
        ("made by", _made(lineage)),
        ("base bytes", lineage.get("base_source")),
        ("tokenizer", facts.get("tokenizer")),
        ("digest", card.record.get("digest")),
        ("size", f"{card.size} bytes in {len(card.record.get('files', ()))} files"),
        ("path", card.path),
    ]
    for label, value in rows:
        if value:
            click.echo(f"  {label:12} {escaped(str(value))}")
    states = [[v["version"], v["state"], v["digest"][7:19], v["at"]] for v in card.versions]
    click.echo("\n" + table(states, ["VERSION", "STATE", "DIGEST", "REGISTERED"]))
    if card.channel_rows:
        moves = [[c.name, c.version, str(c.generation), c.by, c.at] for c in card.channel_rows]
        click.echo("\n" + table(moves, ["CHANNEL", "VERSION", "GENERATION", "BY", "AT"]))


def _made(lineage: dict[str, Any]) -> str:
    if lineage.get("source") == "run":
        return f"{lineage.get('owner')}/{lineage.get('exp')}/{lineage.get('run_id')} attempt {lineage.get('attempt')}"
    return str(lineage.get("given") or "")


@click.command()
@click.argument("ref")
@json_option
@click.pass_context
def verify(ctx: click.Context, ref: str, as_json: bool) -> None:
    """Hash every file of a version again. Exit code 1 names each file that is not the recorded one."""
    from hpc.cli.main import report
    from hpc.data.channels import find
    from hpc.registry.resolve import verify_content
    from hpc.site.sitefile import load_site

    root = storage_root()
    version = find(root, load_site(root), ref, field="REF", for_new=False)
    faults = [p.refusal() for p in verify_content(version)]
    if as_json:
        verdict = "damaged" if faults else "good"
        print_json({"ref": str(version), "verdict": verdict, "errors": [f.as_json() for f in faults]})
    else:
        click.echo(f"{'damaged' if faults else 'good'}  {version}  {len(version.files)} files, {version.size} bytes")
        report(faults, as_json=False)
    ctx.exit(1 if faults else 0)
