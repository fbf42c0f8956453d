"""`tp runtime`: the SIF files that jobs may run in."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from hpc.cli.context import GivenPath, json_option, print_json, storage_root, table


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def runtime() -> None:
    """Runtimes (SIF images): ls, add, verify, build."""


def _size(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.0f} MiB"


@runtime.command("ls")
@json_option
def list_runtimes(as_json: bool) -> None:
    """List the registered runtimes."""
    from hpc.catalog.runtimes import Runtimes

    root = storage_root()
    found = list(Runtimes.load(root))
    if as_json:
        print_json({"runtimes": [r.as_json() for r in found]})
        return
    rows = [
        [
            r.id,
            r.sha256[7:19],
            _size(r.size),
            r.python or "-",
            r.glibc or "-",
            r.source or r.definition or "-",
            str(r.sif),
        ]
        for r in found
    ]
    click.echo(table(rows, ["RUNTIME", "SHA-256", "SIZE", "PYTHON", "GLIBC", "MADE FROM", "SIF"]))
    if not found:
        click.echo("none yet: an admin runs `tp runtime add ID FILE.sif` or `tp runtime build ID`", err=True)


@runtime.command()
@click.argument("runtime_id", metavar="ID")
@click.argument("sif", metavar="FILE.sif", type=GivenPath())
@click.option("--copy", is_flag=True, help="Keep an admin-owned copy under site/images/ and register that.")
@click.option("--source", default="", metavar="REF", help="The image it was made from; jobs may then say --image REF.")
@click.option("--definition", type=GivenPath(), help="The definition it was built from (provenance only).")
@click.option("--replace", is_flag=True, help="Let ID name another SIF from now on; queued jobs of the old one refuse.")
@json_option
def add(
    runtime_id: str, sif: Path, copy: bool, source: str, definition: Path | None, replace: bool, as_json: bool
) -> None:
    """Register FILE.sif under ID (admins): read once from end to end, recorded with its SHA-256."""
    from hpc.catalog.registering import add as register
    from hpc.catalog.registering import provenance

    root = storage_root()
    _working(f"reading {sif}")
    made_by = provenance(definition) if definition else ""
    done = register(root, runtime_id, sif, copy=copy, source=source, definition=made_by, replace=replace)
    _print_registered(done.action, done.runtime.as_json(), as_json)


def _print_registered(action: str, values: dict[str, object], as_json: bool) -> None:
    if as_json:
        print_json({"action": action, "runtime": values})
        return
    click.echo(f"{values['id']}: {action}")
    for key in ("sif", "sha256", "architecture", "python", "glibc", "source", "definition"):
        if values[key]:
            click.echo(f"  {key:<13}{values[key]}")


def _working(text: str) -> None:
    """Say what takes its time, to a person only."""
    if sys.stderr.isatty():
        click.echo(f"tp: {text} …", err=True)


@runtime.command()
@click.argument("runtime_id", metavar="[ID]", required=False, default="")
@click.option("--stat", is_flag=True, help="Compare size, time of change and owner; read the file only if they differ.")
@json_option
@click.pass_context
def verify(ctx: click.Context, runtime_id: str, stat: bool, as_json: bool) -> None:
    """Compare one runtime's SIF, or every one's, with its record. Exit code 1 if one differs.

    On a host with NVIDIA's driver it also says which images are too old for the driver's libraries.
    """
    from hpc.catalog.runtimes import Runtimes
    from hpc.catalog.runtimes import verify as check
    from hpc.cli.main import report
    from hpc.errors import Refusal
    from hpc.sif.glibc import driver_needs, glibc_advice, host_driver_libraries, parse_version

    root = storage_root()
    runtimes = Runtimes.load(root)
    needs = driver_needs(host_driver_libraries())
    good, bad, notes = [], [], []
    for item in [runtimes.get(runtime_id, "ID")] if runtime_id else list(runtimes):
        if advice := glibc_advice(parse_version(item.glibc), needs):
            notes.append(f"{item.id}: {advice}")
        _working(f"checking {item.id} ({_size(item.size)})")
        try:
            good.append((item.id, check(item, full=not stat, root=root)))
        except Refusal as exc:
            bad.append(exc)
    if as_json:
        verified = [{"id": i, "how": v.how, "sha256": v.sha256} for i, v in good]
        print_json({"verified": verified, "errors": [e.as_json() for e in bad], "notes": notes})
    else:
        for name, result in good:
            click.echo(f"{name}: as registered (by {result.how})")
        for note in notes:
            click.echo(f"tp: note: {note}", err=True)
        report(bad, as_json=False)
    ctx.exit(1 if bad else 0)


@runtime.command()
@click.argument("runtime_id", metavar="ID")
@click.option("--definition", type=GivenPath(), help="An Apptainer definition; else the shipped one for ID.")
@click.option("--tmp-dir", type=GivenPath(), help="Room for the build (default $TMPDIR, else /var/tmp).")
@click.option("--source", default="", metavar="REF", help="As in `tp runtime add`.")
@click.option("--replace", is_flag=True, help="As in `tp runtime add`.")
@json_option
def build(
    runtime_id: str, definition: Path | None, tmp_dir: Path | None, source: str, replace: bool, as_json: bool
) -> None:
    """Build a SIF from a definition into site/images/ and register it under ID (admins)."""
    from hpc.catalog.registering import build as build_sif
    from hpc.sif.apptainer import SYSTEM_PATH, Apptainer

    root = storage_root()
    # /tmp is often memory; a build takes gigabytes. The build's own folder below is made by mkdtemp.
    room = tmp_dir or Path(os.environ.get("TMPDIR") or "/var/tmp")  # noqa: S108
    apptainer = Apptainer(search=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}")
    _working(f"building {runtime_id}; this can take many minutes")
    done = build_sif(root, runtime_id, definition, apptainer=apptainer, room=room, source=source, replace=replace)
    _print_registered(done.action, done.runtime.as_json(), as_json)
