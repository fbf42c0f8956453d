"""`tp job plot`: a run's loss, learning rate and tokens/s as charts in the terminal or a PNG."""

from __future__ import annotations

import itertools
import shutil
import sys
from pathlib import Path
from typing import Any

import click

from hpc.cli.context import GivenPath, json_option, print_json, writing
from hpc.errors import Refusal

USUAL = ("loss", "validation_loss", "lr", "tokens_per_s")
"""What is drawn where nobody asks for another; those that the run has."""


@click.command()
@click.argument("run", required=False, default="")
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    help="A column of metrics.jsonl; may be given again.  [default: loss, lr, tokens_per_s]",
)
@click.option("--png", type=GivenPath(dir_okay=False), default=None, help="Write a picture instead.")
@click.option("--owner", default="", metavar="USER", help="Another user's runs.")
@json_option
def plot(run: str, metrics: tuple[str, ...], png: Path | None, owner: str, as_json: bool) -> None:
    """Plot metrics of RUN over its steps, all attempts in one line. Without RUN the newest run."""
    from hpc.cli import context
    from hpc.runs.chart import write_png
    from hpc.runs.find import resolve
    from hpc.runs.metrics import is_number, read_metrics, series

    paths = resolve(context.storage_root(), run, owner or context.current_user(), newest=not run)
    rows = read_metrics(paths)
    known = {key for row in rows for key, value in row.items() if is_number(value)}
    panels = {name: series(rows, name) for name in metrics or [n for n in USUAL if n in known] or ("loss",)}
    marks = _attempts(rows)
    if png is not None:
        try:
            with writing(png):
                write_png(panels, png, title=f"{paths.exp}  {paths.run_id}", marks=marks)
        except ImportError as exc:
            raise Refusal("E-RUNS-041", "matplotlib is not installed here", field="--png") from exc
    if as_json:
        shown = {name: [[x, y] for x, y in points] for name, points in panels.items()}
        print_json(
            {"run_id": paths.run_id, "metrics": shown, "attempts_begin_at": marks, "png": str(png) if png else None}
        )
    else:
        click.echo(str(png) if png else _charts(f"{paths.exp}  {paths.run_id}", panels, marks))


def _attempts(rows: list[dict[str, Any]]) -> list[float]:
    """The steps at which a later attempt went on."""
    return [float(b["step"]) for a, b in itertools.pairwise(rows) if b["attempt"] != a["attempt"]]


def _charts(head: str, panels: dict[str, list[tuple[float, float]]], marks: list[float]) -> str:
    """One chart under the other; the first is the tallest. As wide as the terminal, at most 110 characters."""
    from hpc.runs.chart import chart

    columns = shutil.get_terminal_size((84, 24)).columns if sys.stdout.isatty() else 84
    width = max(30, min(110, columns - 12))
    out: list[str] = []
    for name, points in panels.items():
        said = f"{name}: {points[0][1]:.4g} at step {points[0][0]:g}, {points[-1][1]:.4g} at step {points[-1][0]:g}"
        title = f"{head}  {said}" if not out else said
        out.append(chart(points, title=title, width=width, height=14 if not out else 6, marks=marks))
    return "\n\n".join(out)
