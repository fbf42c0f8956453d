"""`tp export`, `tp verify`, `tp publish`: a run's evidence in one file that a stranger can check, and the checking."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpc.cli.context import GivenPath, json_option, print_json, table
from hpc.errors import Refusal

if TYPE_CHECKING:
    from tuneplane.contract.layout import RunPaths

    from hpc.cli.desk import Desk
    from hpc.evidence.export import Plan
    from hpc.evidence.judge import Judgement, Pins

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
allow_option = click.option(
    "--allow-unverified", is_flag=True, help="Also a run whose evidence is not whole; the bundle says so."
)
owner_option = click.option("--owner", default="", metavar="USER", help="Another user's run.")


def _plan(run: str, owner: str, *, allow_unverified: bool) -> Plan:
    from hpc.cli.desk import Desk
    from hpc.evidence.export import plan
    from hpc.runs.find import resolve

    desk: Desk = Desk(owner)
    paths: RunPaths = resolve(desk.root, run, desk.owner, newest=True)
    return plan(desk.root, desk.site, paths, allow_unverified=allow_unverified)


def _size(planned: Plan) -> int:
    return sum(f.size for f in planned.manifest.files)


@click.command(context_settings=SETTINGS)
@click.argument("run")
@click.option("-o", "output", type=GivenPath(), metavar="FILE", help="Default: RUN_ID.tar here.")
@owner_option
@allow_option
@json_option
def export(run: str, output: Path | None, owner: str, allow_unverified: bool, as_json: bool) -> None:
    """Write RUN's records, package, proofs and an offline verifier as one tar. No artifacts, logs or environment enter it."""
    planned = _plan(run, owner, allow_unverified=allow_unverified)
    _write(planned, output or Path(f"{planned.run.run_id}.tar"), as_json=as_json)


def _write(planned: Plan, target: Path, *, as_json: bool) -> None:
    from tuneplane.record.digest import digest_file

    from hpc.evidence.export import write_bundle

    found = write_bundle(planned, target)
    if as_json:
        told = {
            "file": str(target),
            "sha256": digest_file(target),
            "files": len(planned.manifest.files),
            "proofs": planned.proofs,
        }
        print_json({"run_id": planned.run.run_id, **told, **found.as_json()})
    else:
        click.echo(
            f"{target}: {planned.verdict}, {len(planned.manifest.files)} files, {planned.proofs} proofs of the log"
        )
        click.echo(f"  {digest_file(target)}")
        click.echo(f"  check it: tp verify {target}")


@click.command(context_settings=SETTINGS)
@click.argument("file", type=GivenPath())
@click.option("--log-key", default="", metavar="VKEY", help="The log's public key, from elsewhere than the bundle.")
@click.option(
    "--admission-key", default="", metavar="HEX", help="The admission's public key, from elsewhere than the bundle."
)
@click.option("--witness", type=GivenPath(), metavar="FILE", help="A checkpoint that a witness kept.")
@json_option
def verify(file: Path, log_key: str, admission_key: str, witness: Path | None, as_json: bool) -> int:
    """Judge an evidence bundle (the tar, or the folder it was unpacked to), or a .tlog-proof: exit 0 verified, 1 incomplete, 2 tampered."""
    from hpc.evidence.judge import Pins
    from hpc.evidence.note import MAX_NOTE
    from hpc.store.faults import refusal

    seen = None
    if witness is not None:
        try:
            with open(witness, "rb") as stream:
                seen = stream.read(MAX_NOTE + 1)
        except OSError as exc:
            raise refusal(exc, witness, "read the witness's checkpoint") from exc
    found = _judge(file, Pins(log_key, admission_key, seen))
    if as_json:
        print_json(found.as_json())
    else:
        click.echo("\n".join(found.lines()))
    return found.exit


def _judge(file: Path, pins: Pins) -> Judgement:
    from tuneplane.record.files import read_bytes

    from hpc.evidence.export import judge_archive
    from hpc.evidence.judge import judge, judge_proof
    from hpc.evidence.proof import SUFFIX

    if file.is_dir():
        return judge(file.resolve(), pins)
    if not file.name.endswith(SUFFIX):
        return judge_archive(file, pins)
    try:
        return judge_proof(file.name, read_bytes(file, limit=1 << 20), pins)
    except (OSError, ValueError) as exc:
        raise Refusal("E-EVID-013", str(exc), field=str(file)) from exc


@click.command(context_settings=SETTINGS)
@click.argument("run")
@click.option("--dry-run", is_flag=True, help="Show what would be shared, and write nothing.")
@click.option("--to", "folder", type=GivenPath(), metavar="DIR", help="Put the bundle there, as RUN_ID.tar.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@owner_option
@allow_option
@json_option
def publish(
    run: str, dry_run: bool, folder: Path | None, yes: bool, owner: str, allow_unverified: bool, as_json: bool
) -> None:
    """Show what sharing RUN's evidence would share; with --to put the bundle into a folder that others read."""
    if dry_run == (folder is not None):
        raise click.UsageError("say --dry-run, or --to DIR")
    if folder is not None and as_json and not yes:
        raise click.UsageError("with --json nobody can be asked: say --yes")
    planned = _plan(run, owner, allow_unverified=allow_unverified)
    if dry_run and as_json:
        print_json(_payload(planned))
        return
    if not as_json:
        _show(planned)
    if folder is None:
        return
    if not yes and not click.confirm(f"Put this into {folder}?", default=False):
        raise Refusal("E-CLI-005", "nothing was published")
    _write(planned, folder / f"{planned.run.run_id}.tar", as_json=as_json)


def _payload(planned: Plan) -> dict[str, Any]:
    manifest = planned.manifest.as_json()
    return {
        "verdict": planned.verdict,
        "proofs": planned.proofs,
        "bytes": _size(planned),
        "warnings": _warnings(planned),
        **manifest,
    }


def _warnings(planned: Plan) -> list[str]:
    """What a reader of the bundle learns beside the verdict."""
    code = sum("/work/" in f.path and "/.tuneplane/" not in f.path for f in planned.manifest.files)
    return [
        f"{code} files of the package: your code and configuration, as they travelled",
        "names: yours, the experiment's, of nodes, partition and account, and paths of the storage root",
        "hyperparameters, metrics of the report, git commit, digests of model and data",
    ]


def _show(planned: Plan) -> None:
    groups: dict[str, list[int]] = {}
    for f in planned.manifest.files:
        parts = f.path.split("/")
        name = "/".join(parts[4:5]) if parts[0] == "runs" else parts[0]
        groups.setdefault(name, []).append(f.size)
    run = planned.run
    click.echo(
        f"{run.owner}/{run.exp}/{run.run_id}: {planned.verdict}; {len(planned.manifest.files)} files, {_size(planned)} bytes"
    )
    click.echo(
        table([[name, str(len(s)), str(sum(s))] for name, s in sorted(groups.items())], ["WHAT", "FILES", "BYTES"])
    )
    for warning in _warnings(planned):
        click.echo(f"  shared:     {warning}")
    for left in planned.manifest.as_json()["left_out"]["never"]:
        click.echo(f"  not shared: {left}")
