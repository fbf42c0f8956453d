"""`tp eval run` and `tp eval ls`, and `tp model export`: what follows a run, asked for by hand."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import click
from tuneplane.contract.followups import CHECKPOINTS
from tuneplane.contract.layout import RunPaths
from tuneplane.record.files import read_json

from hpc.cli.context import json_option, print_json, table
from hpc.cli.desk import Desk
from hpc.runs.find import resolve
from hpc.spec.refs import is_path
from hpc.spec.text import escaped

if TYPE_CHECKING:
    from hpc.runs.state import RunState


@click.command("run")
@click.argument("run", metavar="RUN")
@click.option(
    "--baseline",
    default="",
    help="Compare with this instead: base, run/<run_id>, or a model; a path is meant from here.",
)
@click.option("--limit", type=click.IntRange(1), default=None, help="At most so many rows, drawn by the seed.")
@json_option
def run_evaluation(run: str, baseline: str, limit: int | None, as_json: bool) -> None:
    """Evaluate what RUN left, or will leave, in its suites (else on its validation rows): a job of its own, as after `--then eval`.

    It takes the run's export where there is one, else the model or adapter that training left. With --baseline or --limit the
    result informs and does not decide; the run's own words decide. Rows of your own are an experiment: tp new NAME --method evalkit/behaviour.
    """
    asked: dict[str, Any] = {
        **({"baseline": from_here(baseline)} if baseline else {}),
        **({"limit": limit} if limit else {}),
    }
    _by_hand(run, "eval", asked, as_json)


def from_here(baseline: str) -> str:
    """A path as it is meant where the command is typed; the package, where it is read, lies elsewhere. References stay as they are."""
    return os.path.abspath(os.path.expanduser(baseline)) if is_path(baseline) and "${" not in baseline else baseline


@click.command("export")
@click.argument("run", metavar="RUN")
@json_option
def export_model(run: str, as_json: bool) -> None:
    """Export what RUN left, or will leave, as a job of its own, as after `--then export`.

    One Hugging Face folder with the adapter merged, the adapter beside it, a model card, and GGUF where the runtime has a converter.
    """
    _by_hand(run, "export", {}, as_json)


def _by_hand(word: str, action: str, asked: dict[str, Any], as_json: bool) -> None:
    from hpc.cli.submit import clock
    from hpc.runs.actions import require_owner
    from hpc.submit.following import by_hand
    from hpc.submit.prepare import Around

    desk = Desk()
    desk.settle()
    paths = resolve(desk.root, word, desk.user, newest=True)
    require_owner(paths, desk.actor)
    around = Around(desk.root, desk.site, desk.user, os.getuid())
    done = by_hand(around, paths, action, asked, clock=clock(), sleep=time.sleep)
    if as_json:
        print_json(done.as_json())
        return
    click.echo(f"{done.run.run_id}  {action} of {done.after} submitted as {done.job_id}")
    click.echo(f"  follow:  tp job logs -f {done.run.run_id}\n  state:   tp job status {done.run.run_id}")


@click.command("ls")
@click.argument("run", required=False, metavar="[RUN]")
@click.option("--exp", default="", help="Of one experiment only.")
@click.option("-n", "--limit", type=click.IntRange(0), default=15, show_default=True, help="How many, newest first.")
@click.option("--owner", default="", metavar="USER", help="Another user's.")
@json_option
def list_evaluations(run: str | None, exp: str, limit: int, owner: str, as_json: bool) -> None:
    """List evaluations, newest first: those that followed a run, and runs of evalkit.

    With RUN those of that run, or of the one that it follows, and its checkpoints by step where `on_checkpoint` has them evaluated.
    """
    from hpc.cli import evaluate_steps

    desk = Desk(owner)
    of = evaluate_steps.trained(desk, resolve(desk.root, run, desk.owner, newest=True)) if run else None
    steps = evaluate_steps.checkpoints(desk, of) if of else None
    rows = _rows(desk, of, exp, limit)
    desk.complain()
    if as_json:
        more = {"checkpoints": evaluate_steps.as_json(steps)} if of else {}
        print_json({"evaluations": rows, **more})
        return
    if steps:
        evaluate_steps.print_steps(steps)
    if not rows and not steps:
        click.echo("no evaluations")
    elif rows:
        head = ["RUN", "OF", "STATE", "SUITE", "SCORE", "BASELINE", "GATES"]
        click.echo(table([[escaped(_shown(_cell(row, key))) for key in _COLUMNS] for row in rows], head))


def _rows(desk: Desk, of: RunPaths | None, exp: str, limit: int) -> list[dict[str, Any]]:
    """Rows of the list. Of one run its checkpoints' have a table of their own."""
    rows: list[dict[str, Any]] = []
    for run, state in desk.survey().newest():
        row = _evaluation(run, state)
        if row is None or exp not in ("", row["exp"], row["of_exp"]):
            continue
        if of is None or (row["of"] == of.run_id and row["action"] != CHECKPOINTS):
            rows.append(row)
        if limit and len(rows) == limit:
            break
    return rows


_COLUMNS = ("run_id", "of", "state", "suite", "score", "baseline", "verdict")


def _cell(row: dict[str, Any], key: str) -> Any:
    """What --baseline or --limit asked for decides nothing, whatever its own verdict says; nor do checkpoints on the way."""
    if key == "verdict" and row.get("action") == CHECKPOINTS:
        return f"tp eval ls {row['of']}"
    informs = key == "verdict" and row["asked"] and row[key] is not None
    return f"({row[key]}) informs only" if informs else row[key]


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(map(_shown, value.values()))
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _evaluation(run: RunPaths, state: RunState) -> dict[str, Any] | None:
    """A row of the list; None for a run that is no evaluation. The numbers are what its report says."""
    launch: dict[str, Any] | None = None
    follows: dict[str, Any] = {}
    try:
        if not run.exp.endswith(".eval") and not read_json(run.jobspec)["spec"]["recipe"]["name"].startswith(
            "evalkit/"
        ):
            return None
        launch = read_json(run.launch)
        follows = launch.get("follows") or {}
        result = (read_json(run.report).get("result") or {}) if run.report.exists() else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        if launch is None:
            return None
        result = {}
    metrics, before = result.get("metrics") or {}, result.get("baseline") or {}
    return {
        "run_id": run.run_id, "exp": run.exp, "of": follows.get("run_id"), "of_exp": follows.get("exp"), "state": state.cls,
        "suite": result.get("suite"), "score": _score(metrics), "baseline": _score(before), "verdict": result.get("verdict"),
        "asked": follows.get("asked"), "action": follows.get("action"),
    }  # fmt: skip


def _score(numbers: dict[str, Any]) -> Any:
    """The score of a single suite; of several a score each by suite; None where there is none."""
    if "score" in numbers:
        return numbers["score"]
    return {key.removesuffix("/score"): value for key, value in numbers.items() if key.endswith("/score")} or None
