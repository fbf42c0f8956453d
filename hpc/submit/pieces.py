"""An array in as many sbatch calls as the site's MaxArraySize makes of it: one run, one package, one submission a piece.

MaxArraySize bounds the highest index, so a piece's own indices begin near 0 again and the script adds the offset. The attempts of a piece are
counted from a thousand of its own: an attempt's number then names its submission in every element, however often Slurm restarts it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from tuneplane.contract.layout import RunPaths

from hpc.errors import Refusal
from hpc.spec.arrays import parse_array
from hpc.submit.usage import newest_number

if TYPE_CHECKING:
    from hpc.slurm.commands import Slurm
    from hpc.submit.dispatch import Clock, Submitted
    from hpc.submit.prepare import Around, Prepared

STRIDE: Final = 1000
"""Attempts that one submission of an array can have; a spec allows 100."""
LONGEST: Final = 900
"""Characters of one piece's indices; a directive line has room for a thousand."""


@dataclass(frozen=True)
class Piece:
    """One sbatch of an array: its first attempt, what is added to Slurm's index, and the indices with their limit (`0-999%16`)."""

    first: int
    offset: int = 0
    tasks: str = ""

    def as_json(self) -> dict[str, Any]:
        """What the submission's record says of it."""
        return {"array": {"offset": self.offset, "tasks": self.tasks}} if self.tasks else {}

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Piece:
        """The piece that a submission's record tells. Raises KeyError, TypeError, ValueError."""
        array = record.get("array") or {}
        return cls(int(record["first_attempt"]), int(array.get("offset", 0)), str(array.get("tasks", "")))


def pieces_of(indices: Iterable[int], limit: int, max_array_size: int, first: int) -> list[Piece]:
    """The pieces of an array; `limit` elements at once (0: no limit) are shared out over them, at least one each. Pure."""
    parts: dict[int, list[int]] = {}
    for index in indices:
        parts.setdefault(index // max_array_size, []).append(index % max_array_size)
    texts = [(number, text) for number, tasks in sorted(parts.items()) for text in _texts(ranges(tasks))]
    each = f"%{max(1, limit // len(texts))}" if limit and texts else ""
    return [Piece(first + n * STRIDE, number * max_array_size, text + each) for n, (number, text) in enumerate(texts)]


def _texts(items: list[str]) -> list[str]:
    """The items with commas, cut where a directive would get too long."""
    out = [""]
    for item in items:
        if len(out[-1]) + len(item) > LONGEST:
            out.append("")
        out[-1] += ("," if out[-1] else "") + item
    return out


def ranges(indices: Iterable[int]) -> list[str]:
    """`0-3`, `7`: neighbours as ranges."""
    out: list[list[int]] = []
    for index in sorted(indices):
        if out and index == out[-1][1] + 1:
            out[-1][1] = index
        else:
            out.append([index, index])
    return [str(a) if a == b else f"{a}-{b}" for a, b in out]


def next_first(run: RunPaths) -> int:
    """The first attempt of a new submission of an array."""
    newest = max(newest_number(run, folder) or 0 for folder in ("submissions", "batch"))
    return (newest // STRIDE + 1) * STRIDE


def unfinished(run: RunPaths, indices: Iterable[int]) -> list[int]:
    """Elements without a report: those that did not end well, and those that never began. Raises Refusal E-SWEEP-011."""
    left = [i for i in indices if not run.element(i).report.exists()]
    if not left:
        raise Refusal("E-SWEEP-011", f"every element of {run.run_id} is done", field=run.run_id)
    return left


def dispatch_whole(
    around: Around,
    prepared: Prepared,
    *,
    first: int,
    clock: Clock,
    sleep: Callable[[float], None],
    slurm: Slurm | None,
    indices: Iterable[int] | None = None,
) -> Submitted:
    """Hand a job to its fleet: one submission, or one a piece of an array (of all its elements, or of `indices`).

    Raises Refusal; E-SWEEP-010 where a later piece is refused after Slurm took an earlier one, which stays submitted.
    """
    from hpc.slurm.site_facts import read
    from hpc.submit.batchscript import make_script
    from hpc.submit.dispatch import dispatch

    text = str(prepared.options.get("array") or "")
    if not text or slurm is None:
        return dispatch(around, prepared, Piece(first), clock=clock, sleep=sleep, slurm=slurm)
    spec = parse_array(text)
    size = read(slurm).max_array_size
    whole = indices is None and spec.highest < size
    pieces = (
        [Piece(first, 0, text)] if whole else pieces_of(spec if indices is None else indices, spec.limit, size, first)
    )
    fleet = around.site.fleets[prepared.fleet]
    for piece in pieces[1:]:  # what cannot be rendered is refused before anything is submitted
        make_script(around.root, prepared, fleet, piece, nonce="0" * 16, kind=fleet.kind, cluster=fleet.cluster)
    done: list[Submitted] = []
    for piece in pieces:
        try:
            done.append(dispatch(around, prepared, piece, clock=clock, sleep=sleep, slurm=slurm))
        except Refusal as exc:
            if not done:
                raise
            message = f"{len(done)} of {len(pieces)} parts of the array are submitted; then: {exc.code} {exc.message}"
            raise Refusal("E-SWEEP-010", message, field=prepared.run.run_id, found=piece.tasks) from exc
    return replace(done[0], job_ids=tuple(d.job_id for d in done))
