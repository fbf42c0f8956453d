"""`tp sweep`: many variants of an experiment as one job array, its table, its plot, its end."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click
from tuneplane.contract.layout import RunPaths

from hpc.cli.context import GivenPath, json_option, print_json, table, writing
from hpc.cli.desk import Desk
from hpc.cli.job import one_to_stop, stop_one
from hpc.cli.submit import chosen_experiment, clock, job_options, read_flags, surroundings
from hpc.errors import Refusal
from hpc.runs.sweep import SweepTable, look_at, table_of
from hpc.spec.text import escaped

SHOWN = 30


class _SweepGroup(click.Group):
    """`tp sweep EXP …` is `tp sweep submit EXP …`; an experiment with a command's name is meant by the long form."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["submit", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_SweepGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
def sweep() -> None:
    """Sweeps: EXP -g NAME=VALUE,… submits one; status, plot, stop look at it and end it.

    `tp sweep my-exp -g learning_rate=1e-5,2e-5 -g seed=0,1,2` trains six variants as one job array.
    """


@sweep.command()
@click.argument("exp", required=False)
@click.option(
    "-g", "--grid", multiple=True, metavar="NAME=V,V", help="Values, or LOW..HIGH and log:LOW..HIGH to draw from."
)
@click.option("--random", "count", type=click.IntRange(1), default=None, help="Draw so many variants instead of all.")
@click.option("--seed", type=int, default=None, help="Of the draw.  [default: 0]")
@click.option(
    "--stop-metric", "metric", default="", metavar="NAME", help="Early stopping by this metric.  [default: loss]"
)
@click.option("--maximise", is_flag=True, help="More of the metric is better.")
@click.option("--rungs", default="", metavar="STEP,STEP", help="Steps at which variants are compared.")
@click.option("--keep", type=click.IntRange(2), default=None, help="Of so many at a rung one goes on.  [default: 3]")
@click.option("--max-running", type=click.IntRange(1), default=None, help="So many elements at once.")
@job_options
@click.option("--allow-dirty", is_flag=True, help="Submit with uncommitted changes; their digests are recorded.")
@click.option("--no-validate", is_flag=True, help="Leave out the extra checks of `tp validate`.")
@click.option("--dry-run", is_flag=True, help="Show the variants and the batch script, and write nothing.")
@click.option("--again", is_flag=True, help="Submit although the same sweep was submitted a moment ago.")
@json_option
def submit(exp: str | None, as_json: bool, **values: Any) -> None:
    """Submit every variant of EXP as an element of one job array, from one package."""
    from dataclasses import replace

    from tuneplane.record.times import utc_now

    from hpc.project.config import load_config
    from hpc.submit import pipeline
    from hpc.submit.dispatch import settle
    from hpc.submit.sweeps import Asked, plan

    if values["slurm_array"]:
        raise click.UsageError("a sweep makes its own --array")
    around = surroundings()
    experiment = chosen_experiment(around, exp)
    asked = Asked(
        values["grid"], values["count"] or 0, values["seed"], values["metric"], values["maximise"], values["rungs"],
        values["keep"] or 0, values["max_running"] or 0,
    )  # fmt: skip
    planned = plan(asked, load_config(experiment.path))
    given = read_flags(values)
    flags = replace(given, slurm={**given.slurm, "array": planned.array}, sweep=planned.sweep.as_json())
    if values["dry_run"]:
        prepared, script = pipeline.preview(around, experiment, flags, clock())
        _show(prepared.records["variants.json"], script.text, as_json=as_json)
        return
    settle(around.root, around.site, around.user, utc_now)
    done = pipeline.submit(around, experiment, flags, clock=clock(), sleep=time.sleep, again=values["again"])
    for warning in done.warnings:
        click.echo(f"tp: warning: {warning}", err=True)
    count, jobs = len(planned.sweep.variants), list(done.job_ids or (done.job_id,))
    if as_json:
        print_json(
            {
                "run_id": done.run.run_id,
                "exp": done.run.exp,
                "run_dir": str(done.run.root),
                "variants": count,
                "job_ids": jobs,
            }
        )
        return
    click.echo(f"{done.run.run_id}  {count} variants submitted as Slurm array {', '.join(jobs)}")
    click.echo(f"  table:   tp sweep status {done.run.run_id}\n  stop:    tp sweep stop {done.run.run_id}")


def _show(document: dict[str, Any], script: str, *, as_json: bool) -> None:
    if as_json:
        print_json({**document, "script": script})
        return
    names = list(dict.fromkeys(name for row in document["variants"] for name in row))
    click.echo(
        table(
            [[str(n), *(str(row.get(k, "")) for k in names)] for n, row in enumerate(document["variants"])],
            ["#", *names],
        )
    )
    click.echo(script, nl=False)


def _find(desk: Desk, name: str) -> RunPaths:
    """The sweep that is meant; of an experiment the newest run that is one. Raises Refusal E-RUNS-*, E-SWEEP-007."""
    from hpc.runs.find import all_runs, begun_at, resolve

    of_experiment = [r for r in all_runs(desk.root, desk.owner) if name in ("", r.exp) and r.variants.is_file()]
    if of_experiment:
        return max(of_experiment, key=lambda r: (begun_at(r), r.run_id))
    found = resolve(desk.root, name, desk.owner, newest=True)
    table_of(found)
    return found


def _look(desk: Desk, run: RunPaths, metric: str, *, maximise: bool) -> SweepTable:
    facts, _ = desk.state(run)
    return look_at(facts, desk.asker.look(facts), time.time(), metric=metric, maximise=maximise)


@sweep.command()
@click.argument("run", default="", metavar="[RUN]")
@click.option("--metric", default="", help="Another metric than that of early stopping, or the loss.")
@click.option("--maximise", is_flag=True, help="More of it is better.")
@click.option(
    "-n", "--limit", type=click.IntRange(0), default=SHOWN, show_default=True, help="How many, best first; 0: all."
)
@click.option("--owner", default="", metavar="USER", help="Another user's sweep.")
@json_option
def status(run: str, metric: str, maximise: bool, limit: int, owner: str, as_json: bool) -> None:
    """One row a variant, the best first. RUN is a run id or an experiment; without it your newest sweep."""
    desk = Desk(owner)
    found = _look(desk, _find(desk, run), metric, maximise=maximise)
    desk.complain()
    if as_json:
        stopping = found.sweep.stopping
        print_json(
            {
                "run_id": found.run.run_id, "exp": found.run.exp, "metric": found.metric, "mode": found.mode, "counts": found.counts(),
                "stopping": stopping.as_json() if stopping else None, "variants": [r.as_json() for r in found.rows],
            }
        )  # fmt: skip
        return
    rows = found.ranked[:limit] if limit else found.ranked
    names = found.sweep.names
    lines = [
        [
            str(r.index),
            *(str(r.variant.get(n, "")) for n in names),
            _state(r),
            _step(r),
            _number(r.value),
            _number(r.best),
        ]
        for r in rows
    ]
    counts = ", ".join(f"{n} {word}" for word, n in sorted(found.counts().items()))
    click.echo(f"{found.run.run_id}  {found.run.exp}  {len(found.rows)} variants: {counts}")
    click.echo(table(lines, ["#", *names, "STATE", "STEP", found.metric, "BEST"]))
    if (best := found.ranked[0]).best is not None and best.state == "done":
        settings = " ".join(f"--set {name}={value}" for name, value in best.variant.items())
        click.echo(escaped(f"the best so far alone: tp submit {found.run.exp} {settings}"), err=True)
    if len(rows) < len(found.rows):
        click.echo(f"{len(rows)} of {len(found.rows)} variants; -n 0 shows all", err=True)


def _state(row: Any) -> str:
    return f"stopped at {row.stopped}" if row.stopped is not None else row.state


def _step(row: Any) -> str:
    return "-" if row.step is None else f"{row.step}/{row.total}" if row.total else str(row.step)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


@sweep.command()
@click.argument("run", default="", metavar="[RUN]")
@click.option("--metric", default="", help="Another metric than that of early stopping, or the loss.")
@click.option("--png", type=GivenPath(dir_okay=False), default=None, help="Write a picture instead.")
@click.option("--owner", default="", metavar="USER", help="Another user's sweep.")
@json_option
def plot(run: str, metric: str, png: Path | None, owner: str, as_json: bool) -> None:
    """Plot the metric of every variant over its steps, in one chart."""
    from hpc.runs import chart

    desk = Desk(owner)
    found = _look(desk, _find(desk, run), metric, maximise=False)
    rows = [r for r in found.ranked if r.points]
    if not rows:
        raise Refusal(
            "E-RUNS-040", f"no variant has a metric {found.metric!r} yet", field="--metric", found=found.metric
        )
    best = rows[0]
    title = f"{found.run.exp}  {found.run.run_id}  {found.metric} of {len(rows)} variants; best {best.best:.4g}: #{best.index} {_words(best.variant)}"
    if png is not None:
        try:
            drawn = [(f"#{r.index} {_words(r.variant)}", r.points) for r in rows]
            with writing(png):
                chart.write_lines(drawn, png, title=title, name=found.metric)
        except ImportError as exc:
            raise Refusal("E-RUNS-041", "matplotlib is not installed here", field="--png") from exc
    if as_json:
        lines = [{"index": r.index, "variant": r.variant, "points": [list(p) for p in r.points]} for r in rows]
        print_json(
            {"run_id": found.run.run_id, "metric": found.metric, "lines": lines, "png": str(png) if png else None}
        )
    else:
        click.echo(str(png) if png else chart.overlay([r.points for r in rows], title=escaped(title)))


def _words(variant: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in variant.items())


@sweep.command()
@click.argument("run")
@json_option
def stop(run: str, as_json: bool) -> None:
    """Ask every element of a sweep to end: queued ones leave the queue, running ones are warned, save if they can, and do not come back."""
    desk = Desk()
    found = one_to_stop(desk, run)
    table_of(found)
    stop_one(desk, found, as_json=as_json)
