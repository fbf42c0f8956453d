"""`tp runs` and `tp run`: the records of runs, their audit, and who may read them."""

from __future__ import annotations

import time
from typing import Any

import click

from hpc.cli import runview
from hpc.cli.context import json_option, print_json, table
from hpc.cli.desk import Desk
from hpc.cli.runreport import report
from hpc.cli.runs_audit import audit
from hpc.runs.find import all_runs, owners, resolve

SECTIONS = ["settings", "data", "code", "environment", "result", "metrics", "answers"]
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


@click.group(context_settings=SETTINGS)
def runs() -> None:
    """Run records: ls, compare, report, audit."""


runs.add_command(audit)


@click.group(context_settings=SETTINGS)
def run() -> None:
    """One run: share."""


@runs.command()
@click.option("--all", "everybody", is_flag=True, help="Of every user whose records you may read.")
@click.option("--owner", default="", metavar="USER", help="Another user's runs.")
@click.option("--exp", default="", help="One experiment.")
@click.option("-m", "--method", default="", metavar="F/M", help="One method, deepspeed/sft or sft.")
@click.option("--state", default="", help="One state: done, error, …")
@click.option("--since", default="", metavar="WHEN", help="Submitted since then: 2026-01-31, now-7days.")
@click.option("--label", multiple=True, metavar="NAME[=VALUE]", help="With this label; may be given again.")
@click.option("--commit", default="", metavar="HEX", help="Of a git commit, by its beginning.")
@click.option(
    "--data", default="", metavar="SHA256", help="With an input file or data set of this digest, by its beginning."
)
@json_option
def ls(everybody: bool, owner: str, as_json: bool, **asked: Any) -> None:
    """List run records as the files tell them, without asking Slurm."""
    from hpc.runs.arrays import decide_run
    from hpc.runs.filters import Wanted, parse_labels
    from hpc.runs.records import read_facts
    from hpc.runs.state import Look
    from hpc.spec.since import parse_since

    desk = Desk(owner)
    names = owners(desk.root) if everybody else [desk.owner]
    now = time.time()
    since = parse_since(asked["since"], now, "--since") if asked["since"] else 0.0
    data = asked["data"].lower().removeprefix("sha256:")
    plain = {key: asked[key] for key in ("exp", "method", "state", "commit")}
    wanted = Wanted(**plain, since=since, data=data, labels=parse_labels(asked["label"]))
    every = ((r, decide_run(read_facts(r), Look(), now)) for name in names for r in all_runs(desk.root, name))
    rows = [row for row in every if wanted.fits(*row)]
    rows.sort(key=lambda row: (row[1].submitted_at or 0.0, row[0].run_id), reverse=True)
    if as_json:
        print_json({"runs": [runview.run_json(*row) for row in rows]})
    else:
        click.echo(runview.runs_table(rows, now, with_owner=everybody) if rows else "no runs")


@runs.command()
@click.argument("a")
@click.argument("b")
@click.option("--owner", default="", metavar="USER", help="Another user's runs.")
@click.option("--only", type=click.Choice(SECTIONS), default=None)
@click.option("--examples", type=click.IntRange(0, 1000), default=10, show_default=True, help="Of each kind of change.")
@json_option
def compare(a: str, b: str, owner: str, only: str | None, examples: int, as_json: bool) -> None:
    """Show what differs between two runs: settings, data, code, environment, what came out, and single answers where both were evaluated.

    From their records alone.
    """
    from hpc.cli.runexamples import answers, say_answers
    from hpc.runs.compare import compare_runs

    desk = Desk(owner)
    paths = [resolve(desk.root, name, desk.owner) for name in (a, b)]
    found = compare_runs(*paths)
    differences = [d for d in found.differences if only in (None, d.section)]
    changes = answers(desk.root, *paths, examples=examples) if only in (None, "answers") else None
    if as_json:
        told = {"a": paths[0].run_id, "b": paths[1].run_id, "same": dict(found.same)}
        print_json(
            {**told, "differences": [d.as_json() for d in differences], "answers": changes and changes.as_json()}
        )
        return
    rows = [
        [d.section, d.key, _shown(d.a), _shown(d.b), "" if d.delta is None else f"{d.delta:+.4g}"] for d in differences
    ]
    click.echo(table(rows, ["", "", paths[0].run_id, paths[1].run_id, "B - A"]) if rows else "no difference")
    alike = ", ".join(f"{count} of {name}" for name, count in found.same.items() if count)
    click.echo(f"\nalike: {alike or 'nothing'}")
    if changes is not None:
        say_answers(changes)


def _shown(value: Any, width: int = 40) -> str:
    """One cell: a digest by its first digits, a long text cut in the middle."""
    from hpc.spec.text import escaped

    if value is None:
        return "-"
    text = escaped(f"{value:.6g}" if isinstance(value, float) else str(value))
    text = text[:19] + "…" if text.startswith("sha256:") else text
    return text if len(text) <= width else f"{text[: width // 2 - 1]}…{text[-width // 2 :]}"


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


runs.add_command(report)
