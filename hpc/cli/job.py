"""`tp job`: what runs, what it says, why it waits or failed, and how to stop or continue it."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from tuneplane.contract import exits
from tuneplane.contract.layout import RunPaths
from tuneplane.record.files import read_object

from hpc.cli import followview, runview
from hpc.cli.context import json_option, print_json
from hpc.cli.desk import Desk
from hpc.cli.plot import plot
from hpc.errors import Refusal
from hpc.runs.find import resolve
from hpc.runs.state import CLASSES, RunState

if TYPE_CHECKING:
    from hpc.runs.logs import Line, Source

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
STATES = sorted({*CLASSES.values(), "queued", "running", "requeued", "vanished", "unknown"})


@click.group(context_settings=SETTINGS)
def job() -> None:
    """Jobs: ls, status, logs, wait, stop, retry, resume, why, plot.

    RUN is a run id, an experiment, or the unambiguous beginning of one.
    """


def _owner_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--owner", default="", metavar="USER", help="Another user's runs.")(function)


@job.command()
@click.option("--exp", default="", help="One experiment only.")
@click.option("--state", "cls", type=click.Choice(STATES), default=None, help="One state only.")
@click.option(
    "-n", "--limit", type=click.IntRange(0), default=15, show_default=True, help="How many, newest first; 0: all."
)
@click.option("--all", "everybody", is_flag=True, help="Runs of all users that you may see.")
@_owner_option
@json_option
def ls(exp: str, cls: str | None, limit: int, everybody: bool, owner: str, as_json: bool) -> None:
    """List runs, newest first."""
    from hpc.runs.find import owners

    desk = Desk(owner)
    rows: list[tuple[RunPaths, RunState]] = []
    total = 0
    for name in owners(desk.root) if everybody else [desk.owner]:
        desk.owner, desk.asker = name, desk.new_asker(name)
        found = desk.survey()
        rows += found.newest(limit, exp=exp, cls=cls or "")
        total += sum(found.counts().values())
        desk.complain()
    rows.sort(key=lambda r: (r[1].submitted_at or 0.0, r[0].run_id), reverse=True)
    rows = rows[:limit] if limit else rows
    if as_json:
        print_json({"runs": [runview.run_json(*row) for row in rows], "total": total})
    elif not rows:
        click.echo("no runs" if not total else f"none of {total} runs fits")
    else:
        click.echo(runview.runs_table(rows, time.time(), with_owner=everybody))
        if len(rows) < total:
            click.echo(f"{len(rows)} of {total} runs; -n 0 shows all", err=True)


@job.command()
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@_owner_option
@json_option
def status(runs: tuple[str, ...], owner: str, as_json: bool) -> None:
    """Show how runs stand; without RUN the counts and everything that is not over."""
    desk = Desk(owner)
    if not runs:
        _status_of_all(desk, as_json=as_json)
        return
    from hpc.runs import continuity
    from hpc.runs.progress import newest_metrics

    shown: list[dict[str, Any]] = []
    for word in runs:
        run = resolve(desk.root, word, desk.owner, newest=True)
        _, state = desk.state(run)
        metrics = newest_metrics(run if state.element is None else run.element(state.element), state.attempt)
        report = read_object(run.report) or {}
        after, parent = followview.followups(desk, run), followview.follows(desk, run)
        gates = followview.verdict(desk, run, after)
        part = run if state.element is None else run.element(state.element)
        certified, told = continuity.certificates(part), continuity.advice(run)
        shown.append(
            {
                **runview.run_json(run, state),
                "followups": after,
                "follows": parent,
                "gates": gates.as_json() if gates else None,
                "continuity": certified,
                "warning_advice": told or None,
                "metrics": metrics,
                "result": report.get("result"),
                "output_dataset": report.get("output_dataset"),
            }
        )
        if not as_json:
            age = desk.age_s(state)
            output = runview.output_text(report)
            text = runview.run_text(
                run,
                state,
                time.time(),
                age_s=age,
                metrics=metrics,
                output=output,
                more=[*continuity.rows(certified, told), *followview.lines(after, gates, parent)],
            )
            click.echo(("\n" if len(shown) > 1 else "") + text)
    desk.complain()
    if as_json:
        print_json({"runs": shown})


def _status_of_all(desk: Desk, *, as_json: bool) -> None:
    found = desk.survey()
    counts = dict(sorted(found.counts().items()))
    rows = found.newest(only_open=True)
    desk.complain()
    if as_json:
        print_json({"counts": counts, "active": [runview.run_json(*row) for row in rows]})
        return
    click.echo(", ".join(f"{n} {cls}" for cls, n in counts.items()) or "no runs")
    if rows:
        click.echo(runview.runs_table(rows, time.time()))


@job.command()
@click.argument("run", default="", metavar="[RUN]")
@click.option("--rank", type=click.IntRange(0), help="One rank only.")
@click.option("--node", type=click.IntRange(0), help="The launcher of one node.")
@click.option("--batch", is_flag=True, help="The batch script's own output.")
@click.option("--attempt", type=click.IntRange(0), help="One attempt only.")
@click.option("--element", type=click.IntRange(0), help="One element of an array only.")
@click.option("-n", "--lines", type=click.IntRange(0), default=200, show_default=True, help="The last LINES; 0: all.")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run has ended, through new attempts and ranks.")
@click.option("--time", "times", is_flag=True, help="Show each line's time.")
@click.option("--raw", is_flag=True, help="Leave control characters in.")
@_owner_option
@json_option
def logs(
    run: str, rank: int | None, node: int | None, batch: bool, attempt: int | None, element: int | None, lines: int, follow: bool,
    times: bool, raw: bool, owner: str, as_json: bool,
) -> None:  # fmt: skip
    """Print logs: all ranks merged by time, or one source. Without RUN the newest run's."""
    from hpc.runs import logs as reading

    if sum((rank is not None, node is not None, batch)) > 1:
        raise click.UsageError("--rank, --node and --batch exclude each other")
    desk = Desk(owner)
    paths = resolve(desk.root, run, desk.owner, newest=True)
    kind = "batch" if batch else "node" if node is not None else "rank"
    number = rank if rank is not None else node

    def look() -> list[Source]:
        return reading.sources(paths, kind=kind, number=number, attempt=attempt, element=element)

    printer = _Printer(times=times, raw=raw, as_json=as_json, label=number is None and not batch)
    if not follow:
        what = kind if number is None else f"{kind} {number}"
        printer.show(reading.last_lines(reading.need(look(), paths, what), lines))
        return
    follower = reading.Follower(look, skip=True)
    printer.show(reading.last_lines(look(), lines, follower.offsets))
    watch = _Watch(desk, paths)
    for line in reading.follow(follower, over=watch.over):
        printer.show([line])
    click.echo(f"tp: {paths.run_id} {watch.last}", err=True)


class _Printer:
    """Prints log lines; a heading where the attempt changes, the source in front of each line where there are several."""

    def __init__(self, *, times: bool, raw: bool, as_json: bool, label: bool) -> None:
        self._times, self._raw, self._json, self._label = times, raw, as_json, label
        self._attempt: int | None = None

    def show(self, lines: list[Line]) -> None:
        from hpc.runs.logs import plain

        for line in lines:
            if self._json:
                click.echo(json.dumps(line.as_json(), ensure_ascii=False))
                continue
            if line.source.attempt != self._attempt:
                if self._attempt is not None or line.source.attempt:
                    click.echo(f"--- attempt {line.source.attempt} ---")
                self._attempt = line.source.attempt
            moment = f"{line.time} " if self._times and line.time else ""
            of = "" if line.source.element is None else f"{line.source.element}/"
            label = f"[{of}{line.source.number}] " if self._label else ""
            click.echo(
                f"{moment}{label}{line.text if self._raw else plain(line.text)}", color=True if self._raw else None
            )
        sys.stdout.flush()


class _Watch:
    """Whether a run is over, looked at every two seconds; says once on stderr what is waited for."""

    def __init__(self, desk: Desk, run: RunPaths) -> None:
        self._desk, self._run = desk, run
        self._looked, self._over, self._said = 0.0, False, ""
        self.last = ""

    def over(self) -> bool:
        if time.monotonic() - self._looked < 2 and not self._over:
            return False
        self._looked = time.monotonic()
        self._desk.asker.polls.clear()
        _, state = self._desk.state(self._run)
        self._over = state.final or not state.active
        self.last = f"{state.cls}{': ' + state.message if state.message else ''}"
        if state.cls in ("queued", "requeued") and self.last != self._said:
            self._said = self.last
            click.echo(f"tp: {self._run.run_id} is {self.last}", err=True)
        return self._over


@job.command()
@click.argument("run", default="", metavar="[RUN]")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(0), default=None, help="Give up after this many seconds (exit 75)."
)
@_owner_option
@json_option
def wait(run: str, timeout_s: float | None, owner: str, as_json: bool) -> int:
    """Wait until a run has ended for good. Exit 0 if it is done, 1 if it ended in another way, 75 at the timeout."""
    desk = Desk(owner)
    paths = resolve(desk.root, run, desk.owner, newest=True)
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        desk.asker.polls.clear()
        _, state = desk.state(paths)
        over = state.final or not state.active
        if over or (deadline is not None and time.monotonic() >= deadline):
            break
        time.sleep(2 if deadline is None else max(0.0, min(2.0, deadline - time.monotonic())))
    if as_json:
        print_json(runview.run_json(paths, state))
    else:
        click.echo(f"{paths.run_id} {state.cls}{': ' + state.message if state.message else ''}")
    return exits.TRY_LATER if not over else exits.DONE if state.cls == "done" else exits.REFUSED


def one_to_stop(desk: Desk, word: str) -> RunPaths:
    """The run that is meant; of an experiment with several runs the one that is not over, if there is just one."""
    try:
        return resolve(desk.root, word, desk.owner)
    except Refusal as exc:
        if exc.code != "E-RUNS-002":
            raise
        going = [run for run, _ in desk.survey().newest(only_open=True) if run.exp == word]
        if len(going) != 1:
            raise
        return going[0]


@job.command()
@click.argument("run")
@json_option
def stop(run: str, as_json: bool) -> None:
    """Ask a run to end: queued jobs leave the queue, running ones are warned, save if they can, and do not come back."""
    desk = Desk()
    stop_one(desk, one_to_stop(desk, run), as_json=as_json)


def stop_one(desk: Desk, paths: RunPaths, *, as_json: bool) -> None:
    """Ask the run and what follows it to end, and say so."""
    from hpc.runs import actions

    facts, state = desk.state(paths)
    try:
        said = actions.stop(paths, facts, state, desk.actor, lambda: desk.asker.slurm(state.fleet))
        followed = followview.stop_all(desk, paths, runs=state.cls == "running")
    except Refusal as exc:
        followed = followview.stop_stranded(desk, paths) if exc.code == "E-RUNS-010" else []
        if not followed:
            raise
        said = exc.message.removeprefix(f"{paths.run_id} ")
    finally:
        desk.asker.forget(state.fleet)
    if as_json:
        print_json({"run_id": paths.run_id, "stop": "requested", "message": said, "followups": followed})
    else:
        click.echo("\n  ".join([f"{paths.run_id}: {said}", *followed]))


def _again(run: str, *, resume: bool, as_json: bool) -> None:
    from hpc.cli.submit import clock
    from hpc.runs import actions
    from hpc.submit.again import resubmit, resubmit_followups

    desk = Desk()
    paths = resolve(desk.root, run, desk.owner)
    _, state = desk.state(paths)
    actions.require_ended(paths, state, desk.actor)
    step = actions.newest_checkpoint(paths) if resume else None
    done = resubmit(
        desk.root, desk.site, paths, user=desk.user, uid=os.getuid(), resume=resume, clock=clock(), sleep=time.sleep
    )
    os.utime(paths.root)  # the list of finished runs goes by the folder's time
    followed = resubmit_followups(
        desk.root, desk.site, paths, user=desk.user, uid=os.getuid(), clock=clock(), sleep=time.sleep
    )
    for one in followed:
        os.utime(one.run.root)
    desk.asker.forget(state.fleet)
    if as_json:
        told = {"run_id": paths.run_id, "job_id": done.job_id, "resume": resume, "checkpoint_step": step}
        print_json({**told, "followups": [one.as_json() for one in followed]})
    else:
        where = f" from step {step}" if step is not None else ""
        click.echo(f"{paths.run_id} submitted again{where} as {done.job_id}")
        for one in followed:
            click.echo(f"  {one.action} {one.run.run_id} {f'as {one.job_id}' if one.job_id else one.fault}")
        click.echo(f"    next: tp job logs -f {paths.run_id}", err=True)


@job.command()
@click.argument("run")
@json_option
def retry(run: str, as_json: bool) -> None:
    """Submit a run that did not end well again: same run id, same package, next attempt."""
    _again(run, resume=False, as_json=as_json)


@job.command()
@click.argument("run")
@json_option
def resume(run: str, as_json: bool) -> None:
    """Like retry, and refuse unless there is a complete checkpoint to go on from."""
    _again(run, resume=True, as_json=as_json)


@job.command()
@click.argument("run", default="", metavar="[RUN]")
@_owner_option
@json_option
def why(run: str, owner: str, as_json: bool) -> None:
    """Say why a run waits or how it failed, who can mend it, and how. Without RUN the newest run."""
    from hpc.cli.reasoning import estimate, explain_run

    desk = Desk(owner)
    paths = resolve(desk.root, run, desk.owner, newest=True)
    facts, state = desk.state(paths)
    found = explain_run(desk, facts, state)
    start = estimate(desk, state)
    parent = followview.follows(desk, paths)
    desk.complain()
    if as_json:
        print_json({**runview.run_json(paths, state), "why": found.as_json(), "start": start, "follows": parent})
        return
    click.echo(f"{paths.run_id}  {paths.exp}  {found.headline}")
    if found.cause is not None:
        click.echo(f"  {'cause':<12} {found.cause.words} ({found.cause.id}, {found.cause.confidence})")
        for where, text in found.cause.evidence:
            click.echo(f"  {'evidence':<12} {where}: {text}")
    told = followview.lines([], None, parent)
    for name, text in [*told, *found.facts, *(start["text"].items() if start else ())]:
        click.echo(f"  {name:<12} {text}")
    for line in found.lines:
        click.echo(f"  | {line}")
    for text in found.unseen:
        click.echo(f"  {'not looked at':<12} {text}")
    for text in found.mend:
        click.echo(f"  mend: {text.replace('RUN', paths.run_id)}")


job.add_command(plot)
