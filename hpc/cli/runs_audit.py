"""`tp runs audit`: one run, or many, judged from the files alone and compared with the log where there is one."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click
from tuneplane.contract import exits
from tuneplane.contract.layout import RunPaths

from hpc.cli import runview
from hpc.cli.context import json_option, print_json, table
from hpc.cli.desk import Desk
from hpc.errors import Refusal
from hpc.runs.find import all_runs, begun_at, owners, resolve

if TYPE_CHECKING:
    from hpc.runs.audit import Audit

Judge = Callable[[RunPaths], "Audit"]


@click.command()
@click.argument("run", default="", metavar="[RUN]")
@click.option("--all", "everything", is_flag=True, help="Every run that you may read; for cron.")
@click.option(
    "--since",
    default="",
    metavar="TIME",
    help="Every run submitted since then: 2026-01-31, now-7days. With --owner, that user's.",
)
@click.option("--owner", default="", metavar="USER", help="Another user's runs.")
@click.option("--if-idle", is_flag=True, help="Exit 0 without a word while another audit runs.")
@json_option
def audit(run: str, everything: bool, since: str, owner: str, if_idle: bool, as_json: bool) -> int:
    """Judge records from the files alone: verified, incomplete, or tampered (exit 2). Without RUN the newest run.

    Where the site has a witnessed log, what was logged of a run is compared with its records, too.
    """
    from hpc.spec.since import parse_since

    begin = parse_since(since, time.time(), "--since") if since else 0.0
    desk = Desk(owner)
    if not everything and not since:
        paths = resolve(desk.root, run, desk.owner, newest=True)
        found = _judge_of(desk, [paths])(paths)
        if as_json:
            print_json(found.as_json())
        else:
            _say(found)
        return found.exit
    if run:
        raise click.UsageError("RUN excludes --all and --since")
    return _audit_all(desk, [owner] if owner else owners(desk.root), since=begin, if_idle=if_idle, as_json=as_json)


def _judge_of(desk: Desk, runs: list[RunPaths]) -> Judge:
    """The audit of each of these runs, with what the log says about it. The log is read once, and only where one was begun."""
    from hpc.evidence.log import CHECKPOINT
    from hpc.runs.audit import audit as from_files

    if not os.path.lexists(desk.root.log / CHECKPOINT):
        return lambda run: _with_owner(desk, from_files(run))
    from hpc.evidence.logged import Logged

    log = Logged(desk.root, desk.site)
    log.read(runs)
    if log.why:
        click.echo(f"tp: note: nothing is compared with the log: {log.why}", err=True)
    return lambda run: _with_owner(desk, log.judge(from_files(run)))


def _with_owner(desk: Desk, found: Audit) -> Audit:
    """The audit, and whether the folder that bears the owner's name is the owner's: whoever comes first can make one under another's name."""
    from dataclasses import replace

    from hpc.runs.audit import verdict_of
    from hpc.runs.evidence import Finding
    from hpc.site.roll import owner_uid

    owner = found.run.owner
    try:
        uid, account = os.lstat(desk.root.owner_runs(owner)).st_uid, pwd.getpwnam(owner).pw_uid
        if uid == account or uid == owner_uid(desk.root, owner):
            return found
    except (OSError, KeyError, Refusal):
        return found  # an account that went away; what its records say can still be compared with each other
    text = f"the folder runs/{owner} belongs to uid {uid}, not to {owner}"
    findings = (Finding("tampered", "owner", "../..", text), *found.findings)
    return replace(found, findings=findings, verdict=verdict_of(findings))


def _say(found: Audit) -> None:
    """One audit for people."""
    events = sum(len(c.events) for c in found.chains)
    mode = found.facts.get("admission") or "no"
    click.echo(f"{found.run.run_id}  {found.run.exp}  {found.verdict}")
    click.echo(
        f"  {len(found.chains)} chains, {events} events; {mode} admission; package {found.facts['package_digest'] or 'not readable'}"
    )
    if (count := found.facts.get("log")) is not None:
        click.echo(f"  {count} entries of the log agree" if count else "  nothing about it is in the log yet")
    for stage in found.timeline:
        click.echo(f"  {stage.started_at}  {stage.stage:<12} {runview.span(stage.duration_s)}")
    if found.findings:
        click.echo(table([[f.level, f.path, f.message] for f in found.findings], ["FINDING", "PATH", "WHAT"]))


def _audit_all(desk: Desk, names: list[str], *, since: float, if_idle: bool, as_json: bool) -> int:
    from hpc.store.locks import held

    folder = desk.root.user_state(desk.user)
    lock = (folder if folder.is_dir() else desk.root.index) / "audit-runs.lock"
    with ExitStack() as stack:
        try:
            stack.enter_context(held(lock, purpose="audit runs"))
        except Refusal as exc:
            if exc.code == "E-STORE-001" and if_idle:
                return exits.DONE
            if exc.code == "E-STORE-001":
                raise Refusal("E-RUNS-030", exc.message, found=exc.found) from exc
            if exc.code not in ("E-STORE-020", "E-STORE-021", "E-STORE-024"):
                raise
            # An audit only reads; it can be done where its lock cannot be written.
            click.echo(f"tp: note: other audits are not held off: {exc.field}: {exc.message}", err=True)
        chosen = [r for name in names for r in all_runs(desk.root, name) if not since or begun_at(r) >= since]
        judge = _judge_of(desk, chosen)
        found = [_row(r, judge) for r in chosen]
    counts = {v: sum(row["verdict"] == v for row in found) for v in ("verified", "incomplete", "tampered")}
    if as_json:
        print_json({"counts": counts, "runs": found})
    else:
        bad = [
            [r["verdict"], r["owner"], r["exp"], r["run_id"], r["worst"]] for r in found if r["verdict"] != "verified"
        ]
        click.echo(", ".join(f"{n} {v}" for v, n in counts.items()))
        if bad:
            click.echo(table(bad, ["VERDICT", "OWNER", "EXPERIMENT", "RUN", "FIRST FINDING"]))
    return exits.TAMPERED if counts["tampered"] else exits.DONE


def _row(paths: RunPaths, judge: Judge) -> dict[str, Any]:
    try:
        found = judge(paths)
    except Exception as exc:  # one run that trips the audit must not hide all others
        failed = {
            "level": "incomplete",
            "check": "audit",
            "path": ".",
            "message": f"our bug, please report: {exc!r:.300}",
        }
        return {
            "run_id": paths.run_id, "owner": paths.owner, "exp": paths.exp, "verdict": "incomplete", "worst": failed["message"],
            "findings": [failed],
        }  # fmt: skip
    worst = f"{found.findings[0].path}: {found.findings[0].message}" if found.findings else ""
    return {
        "run_id": paths.run_id, "owner": paths.owner, "exp": paths.exp, "verdict": found.verdict, "worst": worst,
        "findings": [f.as_json() for f in found.findings],
    }  # fmt: skip
