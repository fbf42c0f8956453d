"""What two runs answered differently, question by question, where both were evaluated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from tuneplane.contract.layout import RunPaths, StorageRoot

from hpc.errors import Refusal

if TYPE_CHECKING:
    from hpc.evaluate.compare import Comparison
    from hpc.evaluate.reports import Report


def answers(root: StorageRoot, a: RunPaths, b: RunPaths, *, examples: int) -> Comparison | None:
    """The comparison of both runs' newest evaluations; None where one has none, or they cannot be compared."""
    from hpc.evaluate.compare import compare

    before, after = _report(root, a), _report(root, b)
    if before is None or after is None:
        return None
    try:
        return compare(before, after, examples=examples)
    except Refusal as exc:
        click.echo(f"tp: note: the evaluations are not compared: {exc.code} {exc.message}", err=True)
        return None


def _report(root: StorageRoot, run: RunPaths) -> Report | None:
    """The report that a run made itself, or that the newest evaluation after it made."""
    from tuneplane.contract.followups import EVAL

    from hpc.evaluate.reports import read_report
    from hpc.runs.records import numbers
    from hpc.submit.followlist import children

    for place in (run, *reversed([child for action, child in children(root, run) if action == EVAL])):
        for number in reversed(numbers(place.attempts)):
            try:
                return read_report(place.attempt(number).out)
            except Refusal:
                continue
    return None


def say_answers(found: Comparison) -> None:
    """The comparison for people."""
    from hpc.cli.evaluate import print_comparison

    click.echo("")
    print_comparison(found)
