"""`tp env`: environments on the shelf, from a folder with a manifest and tasks to the job that is rewarded by them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpc.cli.context import GivenPath, json_option, print_json, storage_root, table

if TYPE_CHECKING:
    from hpc.data.cards import Card


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def env() -> None:
    """Environments: what an agent is trained in or measured by. REF is OWNER/NAME@VERSION; without a version the newest is meant."""


@env.command()
@click.argument("name")
@click.argument("version")
@click.argument("folder", metavar="DIR", type=GivenPath())
@click.option("--private", is_flag=True, help="Readable for you alone (all versions of the name).")
@click.option("--group", default="", metavar="GROUP", help="Readable for a Unix group of yours.")
@click.option(
    "--owner", default="", help="Publish into this namespace (root, where the mount lets it give files away)."
)
@json_option
def push(name: str, version: str, folder: Path, private: bool, group: str, owner: str, as_json: bool) -> None:
    """Publish DIR (manifest.json, tasks.jsonl) as YOU/NAME@VERSION. Every task is read once; nothing is run."""
    from hpc.cli.dataset_push import passing, pusher, report
    from hpc.data.push import push_record
    from hpc.data.visibility import wanted
    from hpc.plugins.environment_shelf import environment_kind

    kind = environment_kind(name, version)
    with passing(folder) as bar:
        done = push_record(pusher(owner, bar), kind, name, folder, wanted(private, group))
    report(done, as_json)


@env.command()
@click.option("--owner", default="", help="Only environments of this owner.")
@json_option
@click.pass_context
def ls(ctx: click.Context, owner: str, as_json: bool) -> None:
    """List the environments of the site. Exit code 1 if one cannot be believed; the others are listed all the same."""
    from hpc.cli.main import report
    from hpc.data.cards import listing
    from hpc.plugins.environment_shelf import ENVIRONMENT

    found = listing(storage_root(), ENVIRONMENT, owner=owner)
    if as_json:
        cards, errors = [c.as_json() for c in found.cards], [e.as_json() for e in found.faults]
        print_json({"environments": cards, "closed": found.closed, "errors": errors})
    else:
        rows = [_row(c) for c in found.cards] + [[name, "-", "-", "-", "-", "closed"] for name in found.closed]
        head = ["ENVIRONMENT", "VERSION", "TASKS", "PROTOCOL", "VERIFIER", "VISIBLE"]
        click.echo(table(rows, head) if rows else "no environments")
        report(found.faults, as_json=False)
    ctx.exit(1 if found.faults else 0)


def _row(card: Card) -> list[str]:
    newest = card.newest
    if newest is None:
        return [card.id, next(iter(card.versions), "-"), "-", "-", "-", str(card.visibility)]
    manifest, tasks = newest.facts["manifest"], newest.facts["tasks"]
    counted = " ".join(f"{split}:{count}" for split, count in tasks.items())
    return [card.id, newest.version, counted, manifest["protocol"], manifest["verifier"]["kind"], str(card.visibility)]


@env.command()
@click.argument("ref")
@click.option("--unseen", is_flag=True, help="Remove it although some runs of others cannot be read.")
@json_option
def rm(ref: str, unseen: bool, as_json: bool) -> None:
    """Remove OWNER/NAME@VERSION: only if no run names it."""
    from hpc.cli.dataset_push import pusher
    from hpc.data.remove import remove_version
    from hpc.plugins.environment_shelf import ENVIRONMENT
    from hpc.registry.shelf import Shelf, parse_ref

    by, wanted = pusher(), parse_ref(ref, "REF")
    if not wanted.version:
        raise click.UsageError("name the version that is to be removed")
    found = remove_version(Shelf(by.root, ENVIRONMENT, site=by.site), wanted, user=by.user, now=by.now, unseen=unseen)
    if as_json:
        print_json({"removed": str(wanted), "unseen": found.closed})
    else:
        click.echo(f"{wanted} is removed")


@env.command()
@click.argument("ref")
@click.option("--sample", "count", type=click.IntRange(0, 1000), default=0, help="Show the first N tasks.")
@json_option
def show(ref: str, count: int, as_json: bool) -> None:
    """Show a version: its manifest, the tasks of each split, its digests. --sample reads and shows tasks."""
    from hpc.data.cards import find, version_json
    from hpc.plugins.environment_shelf import ENVIRONMENT, sample
    from hpc.spec.text import escaped

    version = find(storage_root(), ref, kind=ENVIRONMENT)
    tasks = sample(version, count) if count else []
    if as_json:
        print_json(version_json(version) | ({"sample": tasks} if count else {}))
        return
    manifest = version.facts["manifest"]
    verifier = manifest["verifier"]
    rows = [
        ("about", manifest.get("description")),
        ("digest", version.digest),
        ("digest v2", version.digest_v2),
        ("tasks", ", ".join(f"{many} {split}" for split, many in version.facts["tasks"].items())),
        ("protocol", f"{manifest['protocol']}, {manifest['deployment']}"),
        ("verifier", f"{verifier['kind']} {verifier.get('ref', '')}".strip()),
        ("tools", ", ".join(str(tool.get("name")) for tool in manifest.get("tools", []))),
        ("sealed", version.seal.sealed_at if version.seal else "not yet"),
        ("path", str(version.content)),
    ]
    lines = [str(version), *(f"  {label:12} {value}" for label, value in rows if value)]
    lines += [json.dumps(task, ensure_ascii=False)[:200] for task in tasks]
    click.echo(escaped("\n".join(lines), keep="\n"))
