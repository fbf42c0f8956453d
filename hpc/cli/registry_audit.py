"""`tp registry audit`: the one command for cron that covers the shelves and the runs of a storage root."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from tuneplane.contract import exits
from tuneplane.record.times import parse_utc, utc_now

from hpc.cli.context import GivenPath, json_option, print_json, storage_root, table
from hpc.errors import Refusal
from hpc.spec.text import escaped

if TYPE_CHECKING:
    from tuneplane.contract.layout import StorageRoot

    from hpc.registry.audit import Options, Report
    from hpc.registry.problems import Problem
    from hpc.runs.nightly import Nightly
    from hpc.site.users import User

SHOWN = 200
STUCK_S = 24 * 3600
"""An audit that is as old is no reason to be silent: its storage hangs, or its night is too short."""
_SIZE = re.compile(r"([0-9]{1,9})(?:([kKMGT])(i?))?B?")


def _bytes(ctx: click.Context, param: click.Parameter, value: str) -> int | None:
    """`50GB`, `512MiB`: decimal units, binary ones with an i."""
    if not value:
        return None
    match = _SIZE.fullmatch(value)
    if not match or int(match[1]) == 0:
        raise click.BadParameter(f"{value!r} is no size such as 50GB or 512MiB", ctx, param)
    base, power = 1024 if match[3] else 1000, " KMGT".index((match[2] or " ").upper())
    return int(match[1]) * int(base**power)


def deadline_of(text: str) -> float | None:
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


@click.command()
@click.option("--deep", is_flag=True, help="Also read all bytes, going on where the last deep audit stopped.")
@click.option(
    "--budget", default="", callback=_bytes, metavar="SIZE", help="With --deep: read about this much, such as 50GB."
)
@click.option(
    "--runs/--no-runs",
    "with_runs",
    default=None,
    help="Runs, too. Default: for root and the service user, who may read them.",
)
@click.option("--jobs", type=click.IntRange(1, 256), default=1, metavar="N", help="Processes to use.")
@click.option("--deadline", default="", metavar="TIME", help="Stop after this long ([D-]HH:MM:SS or minutes).")
@click.option(
    "--if-idle", is_flag=True, help="Exit 0 without a word while another audit runs that is younger than a day."
)
@click.option("--prom", type=GivenPath(dir_okay=False), metavar="FILE", help="Also write FILE for Prometheus.")
@json_option
def audit(
    deep: bool, budget: int | None, with_runs: bool | None, jobs: int, deadline: str, if_idle: bool, prom: Path | None, as_json: bool
) -> int:  # fmt: skip
    """Judge the whole registry and all runs from their files alone; for cron.

    Exit 0: whole. 1: something could not be looked at. 2: something is not what was published or recorded.
    75: another audit runs, or a Kerberos ticket is missing.
    """
    from hpc.registry.audit import Options, only_one
    from hpc.site.users import real_user

    if budget is not None and not deep:
        raise click.UsageError("--budget is for --deep")
    root, user = storage_root(), real_user()
    options = Options(deep, budget, jobs, deadline_of(deadline))
    try:
        with only_one(root, user) as why:
            if why:
                click.echo(f"tp: note: {why}", err=True)
            report, runs = _judge(root, user, options, with_runs)
    except Refusal as fault:
        if fault.code == "E-REG-030" and if_idle and not _stuck(root, user):
            return exits.DONE
        raise
    return _tell(report, runs, prom, as_json=as_json)


def _stuck(root: StorageRoot, user: User) -> bool:
    """Whether the audit that holds the lock began so long ago that somebody should know."""
    from hpc.registry.rotation import own_folder
    from hpc.store.locks import claims

    try:
        begun = [c.owner.since for c in claims(own_folder(root, user) / "audit.lock") if c.owner is not None]
        return any(time.time() - parse_utc(since).timestamp() > STUCK_S for since in begun)
    except (Refusal, ValueError):
        return False


def _judge(root: StorageRoot, user: User, options: Options, with_runs: bool | None) -> tuple[Report, Nightly | None]:
    """The quick passes first; then half of the budget for the shelves' bytes, and what is left of it for those of runs."""
    from dataclasses import replace

    import tuneplane

    from hpc.cli.registry import _kinds
    from hpc.registry.audit import audit as judge
    from hpc.registry.seals import sealers
    from hpc.runs.nightly import Nightly
    from hpc.site.sitefile import load_site

    site, now, budget = load_site(root), utc_now(), options.budget
    runs = None
    if with_runs if with_runs is not None else user.uid in sealers(root):
        runs = Nightly(root, site=site, user=user, options=options, now=now)
        runs.quick()
    half = budget if budget is None or runs is None else max(1, budget // 2)
    report = judge(
        root, _kinds(), site=site, user=user, options=replace(options, budget=half), core_version=tuneplane.__version__,
        now=now, check_pack=check_pack,
    )  # fmt: skip
    if runs is not None and options.deep:
        runs.deep(None if budget is None else max(1, budget - report.tally.hashed))
    return report, runs


def _tell(report: Report, runs: Nightly | None, prom: Path | None, *, as_json: bool) -> int:
    from hpc.registry.auditreport import as_json as report_json
    from hpc.registry.auditreport import exit_of, write_prometheus
    from hpc.runs.nightly import as_json as runs_json

    every = [report, *([runs.report] if runs is not None else [])]
    code = exit_of(every)
    if as_json:
        told: dict[str, Any] = report_json(report)
        print_json({**told, "exit": code, "runs": runs_json(runs.report) if runs is not None else None})
    else:
        _say(report)
        if runs is None:
            click.echo("runs: not looked at (--runs)")
        else:
            _say_runs(runs.report)
    if prom is not None:
        from hpc.cli.main import report as complain

        try:
            write_prometheus(prom, report, runs.report if runs is not None else None)
        except Refusal as fault:
            # The verdict of hours is told and kept in the exit code, wherever else it could not be written.
            complain([fault], as_json=False)
            return code or exits.REFUSED
    return code


def _say(report: Report) -> None:
    tally = report.tally
    click.echo(
        f"{report.verdict}: {report.owners} owners, {tally.packages} packages, {tally.versions} versions, "
        f"{size(tally.size)}, {tally.packs} recipe packs, {tally.generations} generations, {tally.seals} seals"
        f" ({tally.unsealed} unsealed) in {report.duration_s:.1f} s"
    )
    _say_coverage(report, "versions")
    say_problems(report.problems, report.dropped)


def _say_runs(report: Report) -> None:
    from hpc.runs.nightly import VERDICTS

    counts = ", ".join(f"{getattr(report.tally, v)} {v}" for v in VERDICTS)
    click.echo(
        f"{report.verdict}: {report.tally.versions} runs of {report.owners} owners, {size(report.tally.size)}: {counts}"
        f" in {report.duration_s:.1f} s"
    )
    _say_coverage(report, "runs")
    say_problems(report.problems, report.dropped)


def _say_coverage(report: Report, what: str) -> None:
    from hpc.registry.audit import coverage

    if report.deep:
        part = coverage(report)
        click.echo(
            f"hashed {size(part['hashed_bytes'])} in {part['hashed_versions']} of {part['total_versions']} {what}; "
            f"round {part['round']} has {100 * float(part['round_share']):.0f} % of the bytes so far"
        )


def say_problems(problems: list[Problem], dropped: int = 0) -> None:
    from hpc.registry.problems import LEVELS

    if not problems:
        return
    ordered = sorted(problems, key=lambda p: LEVELS.index(p.level))
    rows = [[p.level, p.code, escaped(p.path), escaped(p.message)] for p in ordered[:SHOWN]]
    click.echo(table(rows, ["LEVEL", "CODE", "PATH", "WHAT"]))
    if more := len(problems) - len(rows) + dropped:
        click.echo(f"… and {more} more; --json lists up to 20000")


def size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
