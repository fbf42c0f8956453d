"""The evaluations of a run's checkpoints as `tp eval ls RUN` and `tp job status` show them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click
from tuneplane.contract.layout import RunPaths
from tuneplane.record.files import read_json

from hpc.cli.context import table
from hpc.spec.text import escaped

if TYPE_CHECKING:
    from hpc.cli.desk import Desk
    from hpc.evaluate.checkpoints import Row


def trained(desk: Desk, run: RunPaths) -> RunPaths:
    """The run that a follow-up follows; any other run itself."""
    try:
        named = read_json(run.launch).get("follows")
        return desk.root.run(run.owner, named["exp"], named["run_id"]) if named else run
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return run


def checkpoints(desk: Desk, run: RunPaths) -> tuple[RunPaths, list[Row]] | None:
    """(their run, a row a step); None for a run whose checkpoints nobody evaluates. Raises Refusal E-SUBMIT-097 for damaged records."""
    from hpc.evaluate.checkpoints import rows
    from hpc.runs.arrays import elements
    from hpc.submit.followlist import evaluations

    found = evaluations(run)
    if found is None:
        return None
    facts, _ = desk.state(found.run)
    states = elements(facts, desk.asker.look(facts), time.time()) if facts.submissions else {}
    _, state = desk.state(run)
    return found.run, rows(run, found, states, ended=state.final)


def as_json(found: tuple[RunPaths, list[Row]] | None) -> dict[str, Any] | None:
    return (
        {"run_id": found[0].run_id, "exp": found[0].exp, "steps": [row.as_json() for row in found[1]]}
        if found
        else None
    )


def print_steps(found: tuple[RunPaths, list[Row]]) -> None:
    """The table of the steps, and where one of them is looked at."""
    run, rows = found
    lines = [
        [str(row.step), f"{run.run_id}/{row.element}", _state(row), _text(row.result.get("suite")), _text(row.score), _tier(row)] for row in rows
    ]  # fmt: skip
    click.echo(table(lines, ["STEP", "RUN", "STATE", "SUITE", "SCORE", ""]))
    click.echo(f"they inform and decide nothing{_next(run, rows)}")
    if any(row.stranded for row in rows):
        click.echo(f"the run has ended, and nothing lets go what waits: tp job stop {run.run_id}, or retry the run")


def _next(run: RunPaths, rows: list[Row]) -> str:
    """What to type to look at one that is done, and at why others did not get there."""
    done = next((f"; one of them: tp eval show {run.run_id}/{row.element}" for row in rows if row.result), "")
    failed = any(row.state not in ("done", "queued", "running", "requeued", "cancelled", "unknown") for row in rows)
    return done + (f"; why one failed: tp job why {run.run_id}" if failed else "")


def _state(row: Row) -> str:
    if row.stranded:
        return "held, though the run has ended"
    if row.held:
        return "waits for its checkpoint"
    return f"{row.state}: its checkpoint never came" if row.mark == "cancelled" else row.state


def _tier(row: Row) -> str:
    return "of a sample of the rows" if row.result.get("tier") == "screening" else ""


def _text(value: Any) -> str:
    return escaped("-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value))
