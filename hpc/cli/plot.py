"""`tp job plot`: a run's loss (or another metric) as a chart in the terminal or a PNG."""

from __future__ import annotations

from pathlib import Path

import click

from hpc.cli.context import GivenPath, json_option, print_json
from hpc.errors import Refusal


@click.command()
@click.argument("run", required=False, default="")
@click.option("--metric", default="loss", show_default=True, help="Which column of metrics.jsonl.")
@click.option("--png", type=GivenPath(dir_okay=False), default=None, help="Write a picture instead.")
@click.option("--owner", default="", metavar="USER", help="Another user's runs.")
@json_option
def plot(run: str, metric: str, png: Path | None, owner: str, as_json: bool) -> None:
    """Plot a metric of RUN over its steps, all attempts in one line."""
    from hpc.cli import context
    from hpc.runs import chart
    from hpc.runs.find import resolve
    from hpc.runs.metrics import read_metrics, series

    paths = resolve(context.storage_root(), run, owner or context.current_user(), newest=not run)
    points = series(read_metrics(paths), metric)
    title = f"{paths.exp}  {paths.run_id}  {metric}: {points[0][1]:.4g} at step {points[0][0]:g}, {points[-1][1]:.4g} at step {points[-1][0]:g}"
    if png is not None:
        try:
            chart.write_png(points, png, title=title, name=metric)
        except ImportError as exc:
            raise Refusal("E-RUNS-041", "matplotlib is not installed here", field="--png") from exc
    if as_json:
        print_json(
            {
                "run_id": paths.run_id,
                "metric": metric,
                "points": [[x, y] for x, y in points],
                "png": str(png) if png else None,
            }
        )
    else:
        click.echo(str(png) if png else chart.chart(points, title=title))
