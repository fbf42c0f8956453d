"""`tp registry`: the shelves as plain files, for admins and cron: audit, seal, ls, show, verify."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click
from tuneplane.contract import exits
from tuneplane.record.times import utc_now

from hpc.cli.context import json_option, print_json, storage_root, table
from hpc.cli.registry_audit import SHOWN, audit, deadline_of, say_problems
from hpc.errors import Refusal, Refusals
from hpc.spec.text import escaped

if TYPE_CHECKING:
    from hpc.registry.resolve import Version
    from hpc.registry.shelf import Shelf
    from hpc.registry.switches import Switch
    from hpc.site.sitefile import Site

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
_NOT_WHOLE = frozenset(f"E-REG-{n}" for n in ("012", "013", "014", "015", "016"))


@click.group(context_settings=SETTINGS)
def registry() -> None:
    """The registry of published records: audit, seal, ls, show, verify."""


def _kinds() -> list[Any]:
    from hpc.data.kinds import DATASET, VOLUME
    from hpc.data.models import MODEL
    from hpc.plugins.environment_shelf import ENVIRONMENT
    from hpc.plugins.kind import PLUGIN

    return [PLUGIN, DATASET, VOLUME, MODEL, ENVIRONMENT]


def _site() -> Site:
    from hpc.site.sitefile import load_site

    return load_site(storage_root())


registry.add_command(audit)


@registry.command()
@click.option("--deadline", default="", metavar="TIME", help="Stop after this long; the next run goes on.")
@json_option
def seal(deadline: str, as_json: bool) -> int:
    """Write down what is seen for the first time, where no owner can write. For the service user's crontab, or root.

    Exit 0: all is sealed. 1: something could not be read, or the time was up. 2: something differs from its seal.
    """
    from hpc.registry.seal import seal as do_seal
    from hpc.site.users import real_user

    end = deadline_of(deadline)
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
        say_problems(done.problems)
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
    say_problems(list(switch.problems))


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
