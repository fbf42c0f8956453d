"""`tp runs` and `tp run`: the records of runs, their audit, and who may read them."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any

import click
from tuneplane.contract import exits
from tuneplane.contract.layout import RunPaths

from hpc.cli import runview
from hpc.cli.context import json_option, print_json, table
from hpc.cli.desk import Desk
from hpc.errors import Refusal
from hpc.runs.find import all_runs, begun_at, owners, resolve

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


@click.group(context_settings=SETTINGS)
def runs() -> None:
    """Run records: ls, compare, audit."""


@click.group(context_settings=SETTINGS)
def run() -> None:
    """One run: share."""


@runs.command()
@click.option("--all", "everybody", is_flag=True, help="Of every user whose records you may read.")
@click.option("--owner", default="", metavar="USER", help="Another user's runs.")
@json_option
def ls(everybody: bool, owner: str, as_json: bool) -> None:
    """List run records as the files tell them, without asking Slurm."""
    from hpc.runs.arrays import decide_run
    from hpc.runs.records import read_facts
    from hpc.runs.state import Look

    desk = Desk(owner)
    names = owners(desk.root) if everybody else [desk.owner]
    now = time.time()
    rows = [(r, decide_run(read_facts(r), Look(), now)) for name in names for r in all_runs(desk.root, name)]
    rows.sort(key=lambda row: (row[1].submitted_at or 0.0, row[0].run_id), reverse=True)
    if as_json:
        print_json({"runs": [runview.run_json(*row) for row in rows]})
    else:
        click.echo(runview.runs_table(rows, now, with_owner=everybody) if rows else "no runs")


@runs.command()
@click.argument("a")
@click.argument("b")
@click.option("--owner", default="", metavar="USER", help="Another user's runs.")
@click.option(
    "--only", type=click.Choice(["settings", "data", "code", "environment", "result", "metrics"]), default=None
)
@json_option
def compare(a: str, b: str, owner: str, only: str | None, as_json: bool) -> None:
    """Show what differs between two runs: settings, data, code, environment, and what came out. From their records alone."""
    from hpc.runs.compare import compare_runs

    desk = Desk(owner)
    paths = [resolve(desk.root, name, desk.owner) for name in (a, b)]
    found = compare_runs(*paths)
    differences = [d for d in found.differences if only in (None, d.section)]
    if as_json:
        told = {"a": paths[0].run_id, "b": paths[1].run_id, "same": dict(found.same)}
        print_json({**told, "differences": [d.as_json() for d in differences]})
        return
    rows = [
        [d.section, d.key, _shown(d.a), _shown(d.b), "" if d.delta is None else f"{d.delta:+.4g}"] for d in differences
    ]
    click.echo(table(rows, ["", "", paths[0].run_id, paths[1].run_id, "B - A"]) if rows else "no difference")
    alike = ", ".join(f"{count} of {name}" for name, count in found.same.items() if count)
    click.echo(f"\nalike: {alike or 'nothing'}")


def _shown(value: Any, width: int = 40) -> str:
    """One cell: a digest by its first digits, a long text cut in the middle."""
    from hpc.spec.text import escaped

    if value is None:
        return "-"
    text = escaped(f"{value:.6g}" if isinstance(value, float) else str(value))
    text = text[:19] + "…" if text.startswith("sha256:") else text
    return text if len(text) <= width else f"{text[: width // 2 - 1]}…{text[-width // 2 :]}"


@runs.command()
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
    """Judge records from the files alone: verified, incomplete, or tampered (exit 2). Without RUN the newest run."""
    from hpc.runs.audit import audit as judge
    from hpc.spec.since import parse_since

    begin = parse_since(since, time.time(), "--since") if since else 0.0
    desk = Desk(owner)
    if not everything and not since:
        found = judge(resolve(desk.root, run, desk.owner, newest=True))
        if as_json:
            print_json(found.as_json())
        else:
            _say(found)
        return found.exit
    if run:
        raise click.UsageError("RUN excludes --all and --since")
    return _audit_all(desk, [owner] if owner else owners(desk.root), since=begin, if_idle=if_idle, as_json=as_json)


def _say(found: Any) -> None:
    """One audit for people."""
    events = sum(len(c.events) for c in found.chains)
    mode = found.facts.get("admission") or "no"
    click.echo(f"{found.run.run_id}  {found.run.exp}  {found.verdict}")
    click.echo(
        f"  {len(found.chains)} chains, {events} events; {mode} admission; package {found.facts['package_digest'] or 'not readable'}"
    )
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
        chosen = (r for name in names for r in all_runs(desk.root, name) if not since or begun_at(r) >= since)
        found = [_row(r) for r in chosen]
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


def _row(paths: RunPaths) -> dict[str, Any]:
    from hpc.runs.audit import audit as judge

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


@run.command()
@click.argument("run")
@click.option("--undo", is_flag=True, help="Close it again.")
@json_option
def share(run: str, undo: bool, as_json: bool) -> None:
    """Let every user of this storage root read one run, to audit it. The job's environment stays yours alone."""
    from hpc.runs import actions

    desk = Desk()
    paths = resolve(desk.root, run, desk.owner)
    touched = actions.share(paths, desk.actor, undo=undo)
    if as_json:
        print_json({"run_id": paths.run_id, "shared": not undo, "path": str(paths.root), "touched": touched})
    elif undo:
        click.echo(f"{paths.run_id} is closed to others")
    else:
        click.echo(
            f"{paths.run_id} can be read by everybody: tp runs audit {paths.exp}/{paths.run_id} --owner {desk.user}"
        )
