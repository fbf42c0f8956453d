"""`tp registry`: the shelves as plain files, for admins and cron: audit, seal, ls, show, verify."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from tuneplane.contract import exits
from tuneplane.record.times import utc_now

from hpc.cli.context import GivenPath, json_option, print_json, storage_root, table
from hpc.errors import Refusal, Refusals
from hpc.spec.text import escaped

if TYPE_CHECKING:
    from hpc.registry.audit import Report
    from hpc.registry.problems import Problem
    from hpc.registry.resolve import Version
    from hpc.registry.shelf import Shelf
    from hpc.registry.switches import Switch
    from hpc.site.sitefile import Site

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
SHOWN = 200
_SIZE = re.compile(r"([0-9]{1,9})(?:([kKMGT])(i?))?B?")
_NOT_WHOLE = frozenset(f"E-REG-{n}" for n in ("012", "013", "014", "015", "016"))


@click.group(context_settings=SETTINGS)
def registry() -> None:
    """The registry of published records: audit, seal, ls, show, verify."""


def _bytes(ctx: click.Context, param: click.Parameter, value: str) -> int | None:
    """`50GB`, `512MiB`: decimal units, binary ones with an i."""
    if not value:
        return None
    match = _SIZE.fullmatch(value)
    if not match or int(match[1]) == 0:
        raise click.BadParameter(f"{value!r} is no size such as 50GB or 512MiB", ctx, param)
    base, power = 1024 if match[3] else 1000, " KMGT".index((match[2] or " ").upper())
    return int(match[1]) * int(base**power)


def _kinds() -> list[Any]:
    from hpc.data.kinds import DATASET, VOLUME
    from hpc.data.models import MODEL
    from hpc.plugins.kind import PLUGIN

    return [PLUGIN, DATASET, VOLUME, MODEL]


def _site() -> Site:
    from hpc.site.sitefile import load_site

    return load_site(storage_root())


def _deadline(text: str) -> float | None:
    if not text:
        return None
    from hpc.spec.durations import parse_time

    seconds = parse_time(text, "--deadline")
    return None if seconds is None else time.monotonic() + seconds


def check_pack(folder: Path, name: str) -> str:
    """What is wrong with a recipe pack, or "". Raises the refusals of a pack that cannot be read."""
    from hpc.catalog.recipes import load_recipe
    from hpc.catalog.shelf import content_tag

    if not name:
        load_recipe(folder)
        return ""
    method, _, rest = name.partition("@")
    found, stated = content_tag(load_recipe(folder, name=method)), rest.rpartition("-")[2]
    return "" if found == stated else f"its content is {found}, its name says {stated}"


@registry.command()
@click.option("--deep", is_flag=True, help="Also hash the content, going on where the last deep audit stopped.")
@click.option(
    "--budget", default="", callback=_bytes, metavar="SIZE", help="With --deep: hash about this much, such as 50GB."
)
@click.option("--jobs", type=click.IntRange(1, 256), default=1, metavar="N", help="Processes to use.")
@click.option("--deadline", default="", metavar="TIME", help="Stop after this long ([D-]HH:MM:SS or minutes).")
@click.option("--if-idle", is_flag=True, help="Exit 0 without a word while another audit runs.")
@click.option("--prom", type=GivenPath(dir_okay=False), metavar="FILE", help="Also write FILE for Prometheus.")
@json_option
def audit(
    deep: bool, budget: int | None, jobs: int, deadline: str, if_idle: bool, prom: Path | None, as_json: bool
) -> int:
    """Judge the whole registry from its files alone; for cron.

    Exit 0: whole. 1: something could not be looked at. 2: something is not what was published.
    75: another audit runs, or a Kerberos ticket is missing.
    """
    import tuneplane

    from hpc.registry.audit import Options, only_one
    from hpc.registry.audit import audit as judge
    from hpc.registry.auditreport import as_json as report_json
    from hpc.registry.auditreport import write_prometheus
    from hpc.site.users import real_user

    if budget is not None and not deep:
        raise click.UsageError("--budget is for --deep")
    root, user = storage_root(), real_user()
    options = Options(deep, budget, jobs, _deadline(deadline))
    try:
        with only_one(root, user) as why:
            if why:
                click.echo(f"tp: note: {why}", err=True)
            report = judge(
                root, _kinds(), site=_site(), user=user, options=options, core_version=tuneplane.__version__,
                now=utc_now(), check_pack=check_pack,
            )  # fmt: skip
    except Refusal as fault:
        if fault.code == "E-REG-030" and if_idle:
            return exits.DONE
        raise
    if as_json:
        print_json(report_json(report))
    else:
        _say_report(report)
    if prom is not None:
        try:
            write_prometheus(prom, report)
        except Refusal as fault:
            # The verdict of hours is told and kept in the exit code, wherever else it could not be written.
            _complain([fault])
            return report.exit or exits.REFUSED
    return report.exit


def _say_report(report: Report) -> None:
    from hpc.registry.audit import coverage

    tally = report.tally
    click.echo(
        f"{report.verdict}: {report.owners} owners, {tally.packages} packages, {tally.versions} versions, "
        f"{_size(tally.size)}, {tally.packs} recipe packs, {tally.generations} generations, {tally.seals} seals"
        f" ({tally.unsealed} unsealed) in {report.duration_s:.1f} s"
    )
    if report.deep:
        part = coverage(report)
        click.echo(
            f"hashed {_size(part['hashed_bytes'])} in {part['hashed_versions']} of {part['total_versions']} versions; "
            f"round {part['round']} has {100 * float(part['round_share']):.0f} % of the bytes so far"
        )
    _say_problems(report.problems, report.dropped)


def _say_problems(problems: list[Problem], dropped: int = 0) -> None:
    from hpc.registry.problems import LEVELS

    if not problems:
        return
    ordered = sorted(problems, key=lambda p: LEVELS.index(p.level))
    rows = [[p.level, p.code, escaped(p.path), escaped(p.message)] for p in ordered[:SHOWN]]
    click.echo(table(rows, ["LEVEL", "CODE", "PATH", "WHAT"]))
    if more := len(problems) - len(rows) + dropped:
        click.echo(f"… and {more} more; --json lists up to 20000")


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


@registry.command()
@click.option("--deadline", default="", metavar="TIME", help="Stop after this long; the next run goes on.")
@json_option
def seal(deadline: str, as_json: bool) -> int:
    """Write down what is seen for the first time, where no owner can write. For the service user's crontab, or root.

    Exit 0: all is sealed. 1: something could not be read, or the time was up. 2: something differs from its seal.
    """
    from hpc.registry.seal import seal as do_seal
    from hpc.site.users import real_user

    end = _deadline(deadline)
    done = do_seal(
        storage_root(), _kinds(), site=_site(), user=real_user(), now=utc_now(),
        over=lambda: end is not None and time.monotonic() >= end,
    )  # fmt: skip
    if as_json:
        print_json(done.as_json())
    else:
        rest = "" if done.complete else "; the time was up, the next run goes on"
        click.echo(f"sealed {len(done.new)} now, {done.standing} stood already{rest}")
        for subject in done.new[:SHOWN]:
            click.echo(f"  {subject}")
        _say_problems(done.problems)
    return done.exit


def _shelf() -> Shelf:
    from hpc.registry.shelf import Shelf

    return Shelf(storage_root(), _kinds()[0])


@registry.command("ls")
@click.argument("what", default="", metavar="[OWNER[/NAME]]")
@json_option
def list_records(what: str, as_json: bool) -> int:
    """List packages; with OWNER/NAME its versions. Exit code 1 if one of them cannot be believed."""
    from hpc.registry.order import newest_first
    from hpc.registry.shelf import Ref, parse_ref

    shelf = _shelf()
    ref = parse_ref(what, "WHAT") if "/" in what else Ref(what, "")
    owner = ref.owner
    if ref.name:
        return _list_versions(shelf, owner, ref.name, as_json)
    found, bad = [], []
    for each in [owner] if owner else shelf.owners():
        for package in shelf.packages(each):
            try:
                shelf.require(each, package)
            except Refusal as fault:
                bad.append(fault)
                continue
            versions = newest_first(shelf.versions(each, package))
            found.append({"id": f"{each}/{package}", "versions": versions})
    if as_json:
        print_json({"packages": found, "errors": [f.as_json() for f in bad]})
    else:
        rows = [[str(p["id"]), str(len(p["versions"])), (p["versions"] or ["-"])[0]] for p in found]
        click.echo(table(rows, ["PACKAGE", "VERSIONS", "NEWEST"]) if rows else "no packages")
        _complain(bad)
    return exits.REFUSED if bad else exits.DONE


def _complain(bad: list[Refusal]) -> None:
    from hpc.cli.main import report

    report(bad, as_json=False)


def _list_versions(shelf: Shelf, owner: str, name: str, as_json: bool) -> int:
    from hpc.registry.order import newest_first
    from hpc.registry.resolve import load
    from hpc.registry.shelf import Ref
    from hpc.registry.switches import read_switch

    uid = shelf.require(owner, name)
    switch = read_switch(shelf, owner, name, uid)
    found: list[dict[str, Any]] = []
    bad: list[Refusal] = []
    for version in newest_first(shelf.versions(owner, name)):
        try:
            found.append(_row(load(shelf, Ref(owner, name, version), uid), switch))
        except Refusal as fault:
            bad.append(fault)
        except Refusals as faults:
            bad += faults.items
    if as_json:
        print_json({"id": f"{owner}/{name}", "versions": found, "errors": [f.as_json() for f in bad]})
    else:
        keys = ("version", "state", "sealed", "size", "digest", "method", "actor", "at")
        rows = [[str(row[k]) for k in keys] for row in found]
        click.echo(table(rows, [k.upper() for k in keys]) if rows else "no versions")
        _complain(bad)
    return exits.REFUSED if bad else exits.DONE


def _row(version: Version, switch: Switch) -> dict[str, Any]:
    record = version.record
    published = record["published"]
    enabled = switch.enabled(version.version, record["starts"])
    return {
        "version": version.version,
        "state": "enabled" if enabled else "disabled",
        "decided_by": switch.decided_by(version.version, record["starts"]),
        "recommended": switch.recommended == version.version,
        "sealed": "yes" if version.seal else "no",
        "size": version.size,
        "digest": version.digest,
        "digest_v2": version.digest_v2,
        "method": published.get("method", ""),
        "actor": published.get("actor", ""),
        "at": published.get("at", ""),
        "archive_sha256": published.get("archive_sha256", ""),
    }


def _resolve(ref: str) -> Version:
    from hpc.registry.resolve import resolve

    return resolve(storage_root(), _kinds()[0], ref, for_new="@" not in ref, field="REF")


@registry.command()
@click.argument("ref", metavar="OWNER/NAME[@VERSION]")
@json_option
def show(ref: str, as_json: bool) -> None:
    """Show one version's record, its state and its seal. Without a version, the one that a new reference would get."""
    from hpc.registry.switches import read_switch

    version = _resolve(ref)
    shelf = _shelf()
    switch = read_switch(shelf, version.owner, version.name, shelf.uid(version.owner))
    row = _row(version, switch)
    sealed = version.seal and {
        "sealed_at": version.seal.sealed_at,
        "uid": version.seal.uid,
        "digest": version.seal.digest,
    }
    if as_json:
        problems = [p.as_json() for p in switch.problems]
        print_json(
            {"record": dict(version.record), "path": str(version.folder), **row, "seal": sealed, "problems": problems}
        )
        return
    click.echo(f"{version}  {row['state']} (by {row['decided_by']})")
    for key in ("digest", "digest_v2", "size", "method", "actor", "at", "archive_sha256"):
        click.echo(f"  {key:<15} {escaped(str(row[key])) or 'not recorded'}")
    click.echo(f"  {'sealed':<15} {version.seal.sealed_at if version.seal else 'no'}")
    click.echo(f"  {'path':<15} {version.folder}")
    click.echo(table([[f.path, str(f.size), f.sha256] for f in version.files], ["FILE", "SIZE", "SHA-256"]))
    _say_problems(list(switch.problems))


@registry.command()
@click.argument("refs", nargs=-1, required=True, metavar="OWNER/NAME[@VERSION]...")
@json_option
def verify(refs: tuple[str, ...], as_json: bool) -> int:
    """Hash every byte of these versions again. Exit code 2 if one is not what was published, and each difference named."""
    found = [_verified(ref) for ref in refs]
    if as_json:
        print_json(found)
    else:
        for one in found:
            click.echo(f"{one['ref']}  {'whole' if one['whole'] else 'NOT whole'}  {one['digest']}")
            if rows := [[p["code"], escaped(p["field"]), escaped(p["message"])] for p in one["problems"]]:
                click.echo(table(rows, ["CODE", "PATH", "WHAT"]))
    if all(one["whole"] for one in found):
        return exits.DONE
    return exits.TAMPERED if any(p["code"] in _NOT_WHOLE for one in found for p in one["problems"]) else exits.REFUSED


def _verified(ref: str) -> dict[str, Any]:
    """One version's verdict; a record that is no longer what was published is one, too. Raises other refusals, such as an unknown name."""
    from hpc.registry.resolve import verify_content

    digest, faults = "", []
    try:
        version = _resolve(ref)
        ref, digest = str(version), version.digest
        faults = [p.refusal() for p in verify_content(version)]
    except Refusals as several:
        faults = several.items
    except Refusal as fault:
        faults = [fault]
    if not digest and not any(f.code in _NOT_WHOLE for f in faults):
        raise Refusals(faults)
    return {"ref": ref, "digest": digest, "whole": not faults, "problems": [f.as_json() for f in faults]}
