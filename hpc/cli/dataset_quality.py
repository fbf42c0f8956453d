"""`tp dataset quality`, `check`, `fingerprint`: how good rows are, and whether an evaluation can be believed."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpc.cli.context import GivenPath, current_user, json_option, named_root, print_json, storage_root, table

if TYPE_CHECKING:
    from tuneplane.contract.layout import StorageRoot

    from hpc.data.measure import Measures
    from hpc.data.rows import Source

QUIET_S = 2.0


class Progress:
    """Rows read so far, on a terminal, once a measure takes longer than QUIET_S."""

    def __init__(self) -> None:
        self.begun = self.shown = time.monotonic()
        self.rows = 0

    def tick(self, rows: int) -> None:
        self.rows += rows
        now = time.monotonic()
        if now - self.begun > QUIET_S and now - self.shown > 0.2 and sys.stderr.isatty():
            self.shown = now
            click.echo(f"\r{self.rows} rows, {self.rows / (now - self.begun):.0f}/s ", err=True, nl=False)

    def done(self) -> None:
        if self.shown != self.begun:
            click.echo("\r" + " " * 40 + "\r", err=True, nl=False)


def _root() -> StorageRoot | None:
    """The storage root where one is named; files and folders can be judged without."""
    return storage_root() if named_root()[0] else None


def _measures(root: StorageRoot | None, progress: Progress) -> Measures:
    from hpc.data.measure import Measures

    state = root.user_state(current_user()) if root else None
    cache = state / "quality" if state and os.access(state, os.W_OK) else None
    return Measures(cache, tick=progress.tick)


@click.command()
@click.argument("target")
@click.option("--split", default="", help="The split of TARGET; train by default.")
@click.option("--near/--no-near", default=True, help="Near-duplicates, too (slower: it reads the words).")
@click.option("--against", default="", metavar="EVAL", help="Overlap with this evaluation set.")
@click.option("--against-split", default="", help="The split of EVAL; all but train by default.")
@click.option("--group-key", default="", help="Leaks of this column's groups into the validation split.")
@click.option(
    "--validation", default="", metavar="TARGET", help="The validation rows; TARGET's own validation split by default."
)
@click.option("--validation-split", default="", help="The split of --validation.")
@json_option
def quality(
    target: str, split: str, near: bool, against: str, against_split: str, group_key: str, validation: str, validation_split: str, as_json: bool,
) -> None:  # fmt: skip
    """Measure the rows of TARGET: a file, a folder, or a data set (OWNER/NAME@VERSION).

    Results are kept by content, where `tp submit` finds them for the gates of spec.data.quality. Nothing is judged here: exit code 0.
    """
    from hpc.data.rows import evaluation_files, find_sources

    root, progress = _root(), Progress()
    measures = _measures(root, progress)
    train = _some(find_sources(target, split, root=root, field="TARGET"), target)
    out: dict[str, Any] = {"target": target, "duplicates": measures.duplicates(train)}
    if near:
        out["near_duplicates"] = measures.near(train)
    if against:
        out["overlap"] = measures.overlap(
            train, _some(evaluation_files(against, against_split, root=root, field="--against"), against)
        )
    if group_key:
        rows = _validation(target, validation, validation_split, root)
        out["groups"] = measures.groups(train, rows, group_key)
    progress.done()
    if as_json:
        print_json(out)
    else:
        _print(out)


def _some(sources: Sequence[Source], target: str) -> list[Source]:
    from hpc.errors import Refusal

    if not sources:
        raise Refusal("E-DATA-054", "there are no JSONL or Parquet rows", found=target)
    return list(sources)


def _validation(target: str, validation: str, split: str, root: StorageRoot | None) -> list[Source]:
    from tuneplane.contract.datasets import VALIDATION

    from hpc.data.rows import find_sources
    from hpc.errors import Refusal

    if validation:
        return _some(find_sources(validation, split, root=root, field="--validation"), validation)
    last: Refusal | None = None
    for name in [split] if split else VALIDATION:
        try:
            return _some(find_sources(target, name, root=root, field="--validation"), target)
        except Refusal as fault:
            last = fault
    assert last is not None
    raise last


_LINES: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "duplicates": ("exact duplicates", lambda v: f"{v['duplicates']} of {v['rows']} rows"),
    "near_duplicates": (
        "near duplicates",
        lambda v: (
            f"{v['near_duplicates']} of {v['rows']} rows share {v['threshold']:.0%} of {v['words']}-grams, {v['sampling']} of them"
        ),
    ),
    "overlap": (
        "overlap",
        lambda v: f"{v['overlapping']} of {v['eval_rows']} evaluation rows ({v['exact']} exact, {v['near']} near)",
    ),
    "groups": (
        "group leaks",
        lambda v: f"{v['leaking']} of {v['validation_rows']} validation rows by {v['group_key']}",
    ),
}


def _print(out: dict[str, Any]) -> None:
    from hpc.spec.text import escaped

    found = [(name, out[name]) for name in _LINES if name in out]
    rows = [[_LINES[name][0], f"{value['ratio']:.6g}", _LINES[name][1](value)] for name, value in found]
    click.echo(escaped(table(rows, ["MEASURE", "RATIO", "WHAT"]), keep="\n"))
    for name, value in found:
        for one in value["offenders"][:5]:
            rest = ", ".join(f"{k} {v}" for k, v in one.items() if k != "row")
            click.echo(escaped(f"  {_LINES[name][0]}: {one['row']}" + (f" ({rest})" if rest else "")))


@click.command()
@click.argument("path")
@click.option(
    "-a", "--against", required=True, metavar="EVAL", help="The evaluation set: a file, a folder or a data set."
)
@click.option("--split", default="", help="The split of PATH; train by default.")
@click.option("--against-split", default="", help="The split of EVAL; all but train by default.")
@json_option
@click.pass_context
def check(ctx: click.Context, path: str, against: str, split: str, against_split: str, as_json: bool) -> None:
    """Say whether rows of EVAL stand in PATH, whole or by most of their 13-grams. Exit code 1 if any does."""
    from hpc.data.rows import evaluation_files, find_sources

    root, progress = _root(), Progress()
    train = _some(find_sources(path, split, root=root, field="PATH"), path)
    evaluation = _some(evaluation_files(against, against_split, root=root, field="EVAL"), against)
    found = _measures(root, progress).overlap(train, evaluation)
    progress.done()
    if as_json:
        print_json({"path": path, "against": against, **found})
    else:
        _print({"overlap": found})
    ctx.exit(1 if found["overlapping"] else 0)


@click.command()
@click.argument("target")
@click.option("--split", default="", help="The split of TARGET; train by default.")
@click.option("--compare", type=GivenPath(dir_okay=False), help="A fingerprint (JSON) to compare with.")
@json_option
def fingerprint(target: str, split: str, compare: Path | None, as_json: bool) -> None:
    """Digests of TARGET's rows: one for all of them in any order, and a sketch that tells the overlap of two sets without their rows."""
    from hpc.data.fingerprint import fingerprint as take
    from hpc.data.fingerprint import read_fingerprint, resemblance
    from hpc.data.rows import find_sources

    progress = Progress()
    value = take(_some(find_sources(target, split, root=_root(), field="TARGET"), target), tick=progress.tick)
    progress.done()
    likeness = resemblance(value, read_fingerprint(compare)) if compare else None
    if as_json:
        print_json(value | ({"resemblance": likeness} if compare else {}))
    else:
        click.echo(f"{value['digest']}  {value['rows']} rows")
        if likeness is not None:
            click.echo(f"about {likeness:.4g} of the distinct rows of both are in both")
