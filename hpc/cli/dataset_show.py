"""`tp dataset ls`, `show`, `card`, `verify`: what the site has, and what one version is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpc.cli.context import GivenPath, json_option, print_json, storage_root, table
from hpc.errors import Refusal

if TYPE_CHECKING:
    from hpc.data.cards import Card
    from hpc.data.lengths import Lengths
    from hpc.registry.resolve import Version

_CUT = 200


def size_text(size: int) -> str:
    """Bytes as a person reads them."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


@click.command()
@click.option("--owner", default="", help="Only data sets of this owner.")
@json_option
@click.pass_context
def ls(ctx: click.Context, owner: str, as_json: bool) -> None:
    """List the data sets of the site with their newest version.

    Exit code 1 if one cannot be believed; the others are listed all the same. Names that you may not read are listed as closed.
    """
    from hpc.cli.main import report
    from hpc.data.cards import listing
    from hpc.data.kinds import DATASET

    found = listing(storage_root(), DATASET, owner=owner)
    if as_json:
        print_json(
            {
                "datasets": [c.as_json() for c in found.cards],
                "closed": found.closed,
                "errors": [e.as_json() for e in found.faults],
            }
        )
    else:
        rows = [_row(c) for c in found.cards] + [[name, "-", "-", "-", "-", "closed"] for name in found.closed]
        click.echo(table(rows, ["DATASET", "VERSION", "ROWS", "SIZE", "SPLITS", "VISIBLE"]) if rows else "no data sets")
        report(found.faults, as_json=False)
    ctx.exit(1 if found.faults else 0)


def _row(card: Card) -> list[str]:
    newest = card.newest
    if newest is None:
        return [card.id, card.versions[0] if card.versions else "-", "-", "-", "-", str(card.visibility)]
    splits = " ".join(f"{name}:{facts['rows']}" for name, facts in newest.facts["splits"].items())
    return [card.id, newest.version, str(newest.facts["rows"]), size_text(newest.size), splits, str(card.visibility)]


@click.command()
@click.argument("ref")
@click.option("--sample", "count", type=click.IntRange(0, 1000), default=0, help="Show the first N rows of a split.")
@click.option("--split", default="", help="The split of the sample; train by default.")
@click.option(
    "--tokenizer", type=GivenPath(), metavar="DIR", help="Lengths in tokens of DIR/tokenizer.json, else in characters."
)
@click.option(
    "--png", type=GivenPath(dir_okay=False), metavar="FILE", help="Write the histogram of lengths as a picture."
)
@click.option(
    "--rows",
    "limit",
    type=click.IntRange(0),
    default=20_000,
    show_default=True,
    help="Rows whose length is taken; 0: all.",
)
@click.option("--files", "with_files", is_flag=True, help="List the files with their digests.")
@json_option
def show(
    ref: str,
    count: int,
    split: str,
    tokenizer: Path | None,
    png: Path | None,
    limit: int,
    with_files: bool,
    as_json: bool,
) -> None:
    """Show a version: splits, rows, columns, licence, where it comes from.

    Reads its record alone. With --sample (or --png) also the schema, the first rows, and how long the rows of the split are.
    """
    from hpc.data.cards import find, sample, version_json

    version = find(storage_root(), ref)
    rows = sample(version, count, split) if count else []
    found = _lengths(version, split, tokenizer, png, limit) if count or png else None
    if as_json:
        out = (
            version_json(version)
            | ({"sample": rows} if count else {})
            | ({"lengths": found.as_json()} if found else {})
        )
        print_json(out | ({"file_list": [f.as_json() for f in version.files]} if with_files else {}))
        return
    _print(version)
    if with_files:
        listed = [[f.path, str(f.size), f.sha256] for f in version.files]
        click.echo("\n" + _plain(table(listed, ["FILE", "BYTES", "SHA256"])))
    if count:
        _print_sample(version, split, rows)
    if found is not None:
        from hpc.data.lengths import chart

        click.echo("\n" + chart(found) + (f"\n  {png}" if png else ""))


def _print_sample(version: Version, split: str, rows: list[dict[str, Any]]) -> None:
    """The columns of the split with their types, then the rows, a line each."""
    from hpc.data.cards import which_split

    columns = version.facts["splits"][which_split(version, split)]["columns"]
    schema = [[name, " or ".join(facts["types"]), str(facts["rows"])] for name, facts in columns.items()]
    if schema:
        click.echo("\n" + _plain(table(schema, ["COLUMN", "TYPE", "ROWS"])) + "\n")
    for row in rows:
        text = json.dumps(row, ensure_ascii=False)
        click.echo(_plain(text if len(text) <= _CUT else text[:_CUT] + "…"))


def _lengths(version: Version, split: str, tokenizer: Path | None, png: Path | None, limit: int) -> Lengths | None:
    from hpc.data.cards import split_rows, which_split
    from hpc.data.lengths import characters, lengths, tokens, write_png

    chosen = which_split(version, split)
    measure, unit = (tokens(tokenizer), "tokens") if tokenizer else (characters, "characters")
    found = lengths(split_rows(version, chosen), measure, unit, limit)
    if png and found is None:
        raise Refusal(
            "E-DATA-054", f"split {chosen} of {version} has no rows to measure", field="--png", found=str(png)
        )
    if png and found is not None:
        try:
            write_png(found, png, what=f"{version}, {chosen}")
        except (OSError, ValueError) as exc:
            raise Refusal("E-DATA-071", f"cannot be written: {exc}"[:300], field="--png", found=str(png)) from exc
    return found


def _plain(text: str) -> str:
    from hpc.spec.text import escaped

    return escaped(text, keep="\n")


def _print(version: Version) -> None:
    facts, published = version.facts, version.record["published"]
    manifest: dict[str, Any] = dict(facts["manifest"])
    made = facts.get("produced_by") or {}
    rows = [
        ("about", manifest.get("description")),
        ("digest", version.digest),
        ("digest v2", version.digest_v2),
        ("size", f"{size_text(version.size)} in {len(version.files)} files, {facts['rows']} rows, {facts['format']}"),
        ("published", f"by {published.get('actor')}, {published.get('at')}"),
        ("sealed", version.seal.sealed_at if version.seal else "not yet"),
        ("licence", manifest.get("license")),
        ("source", manifest.get("source")),
        ("produced by", f"run {made['run_id']} of {made.get('owner', '')}" if made else manifest.get("produced_by")),
        ("mapping", ", ".join(f"{k}: {v}" for k, v in manifest.get("columns", {}).items())),
        ("path", str(version.content)),
    ]
    click.echo(str(version))
    for label, value in rows:
        if value:
            click.echo(f"  {label:12} {_plain(str(value))}")
    splits = [
        [name, str(s["rows"]), size_text(s["size"]), str(len(s["files"])), ", ".join(s["columns"])[:_CUT]]
        for name, s in facts["splits"].items()
    ]
    if splits:
        click.echo("\n" + _plain(table(splits, ["SPLIT", "ROWS", "SIZE", "FILES", "COLUMNS"])))


@click.command()
@click.argument("ref")
@json_option
def card(ref: str, as_json: bool) -> None:
    """Print the card of a version: the first 64 KB of its README.md."""
    from hpc.data.cards import card_text, find

    version = find(storage_root(), ref)
    text = card_text(version)
    if as_json:
        print_json({"ref": str(version), "card": text})
    else:
        from hpc.spec.text import escaped

        click.echo(escaped(text.strip(), keep="\n\t") or "(no README.md)")


@click.command()
@click.argument("ref")
@json_option
def verify(ref: str, as_json: bool) -> None:
    """Hash every file of a version again and compare it with the record and its seal; a difference names the file. Exit code 1 then."""
    from hpc.data.cards import find
    from hpc.registry.resolve import require_content

    version = find(storage_root(), ref)
    require_content(version)
    if as_json:
        print_json(
            {
                "ref": str(version),
                "verdict": "verified",
                "files": len(version.files),
                "size": version.size,
                "digest": version.digest,
            }
        )
    else:
        click.echo(f"{version}: {len(version.files)} files, {version.size} bytes, every byte as recorded")
