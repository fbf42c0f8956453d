"""Gathers what an attempt left behind that can tell why it ended: exit codes, nodes without an end, error lines, what was never written."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tuneplane.contract import exits
from tuneplane.contract.layout import RunPaths
from tuneplane.record.files import read_object

from hpc.plugins.playbook import BUILTIN, Thresholds
from hpc.runs.layers import compared
from hpc.runs.logs import Line, Source, plain, sources, tail
from hpc.runs.records import numbers, read_submissions

_EXCEPTION: Final = re.compile(
    r"^(?:\[rank\d+\]:? ?)?([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning|Failure|Abort))(?::|$)"
)
_WORDS: Final = re.compile(
    r"out of memory|oom[-_ ]kill|segmentation fault|core dumped|bus error|no space left on device|disk quota exceeded|command not found"
    r"|no such file or directory|permission denied|nccl (?:error|warn)|cuda error|illegal instruction|\bfatal\b|^error[: ]|\berror:"
    r"|a peer was lost|timed out waiting|no end in sight:",
    re.IGNORECASE,
)
CODE: Final = re.compile(r"\b(E-(?:JOB|TRAIN|EVAL)-\d{3})\b")
"""A code of ours in a log: the rank was refused, and says why."""
_ECHO: Final = re.compile(
    r"a peer was lost|this rank stops \(exit 87\)|connection (?:closed|reset) by peer|remote process exited|timed out waiting \d+ ?ms"
    r"|no end in sight:|ranks did not end by themselves|watchdog caught collective|application timeout caused pair closure|broken pipe"
    r"|the last meeting failed|DistBackendError|terminated$|srun: error:|killing step|CANCELLED AT|BrokenPipeError",
    re.IGNORECASE,
)
"""What ranks and Slurm say when another one ended: an echo of the error, and not the error."""
_BEGINS: Final = re.compile(r"tp: run \S+ attempt (\d+), job \S+, nodes (.*)")
"""Where an attempt's part of a submission's log begins; a job that Slurm restarts writes on in the same file."""
_ENDED_BY: Final = re.compile(r"slurmstepd\S*: error: \*\*\* JOB \S+ ON .* CANCELLED AT .* DUE TO ([A-Z ]+?) \*\*\*")
_MEMORY: Final = re.compile(r"out of memory|oom[-_ ]kill|outofmemoryerror|cannot allocate memory", re.IGNORECASE)


@dataclass(frozen=True)
class RankEnd:
    """One rank's end: exit code, signal that killed it (0: none), whether our launcher killed it because of another."""

    rank: int
    node: int
    exit_code: int
    signal: int
    by_us: bool

    def describe(self) -> str:
        if self.signal:
            return f"killed by signal {self.signal}" + (
                " by the launcher, after another rank ended" if self.by_us else ""
            )
        return MEANINGS.get(self.exit_code, f"exit code {self.exit_code}")


MEANINGS: Final = {
    exits.DONE: "done",
    exits.LAUNCH_FAILED: "exit code 2: refused before the user's code, or wrong usage in it",
    exits.PREEMPTED: "saved after a warning (exit code 85)",
    exits.CLAIMED: "another job had this attempt already (exit code 86)",
    exits.PEER_LOST: "lost a peer (exit code 87)",
    126: "exit code 126: the program may not be executed",
    127: "exit code 127: the program was not found",
    134: "exit code 134: aborted",
    137: "exit code 137: killed, often for memory",
    139: "exit code 139: segmentation fault",
}


@dataclass(frozen=True)
class Clues:
    """What was found. `first_error` is the earliest error line over all ranks, by time; an echo of another only where there is nothing else.

    `errors` and `echoes`: the first of each log, by time; `batch_errors`: those of the batch script's own output. `unseen`: what was not read.
    """

    ranks: tuple[RankEnd, ...] = ()
    silent_nodes: tuple[str, ...] = ()
    killed_nodes: tuple[str, ...] = ()
    """Those among the silent ones of which srun reported the end: they were there, and were ended before they could write it."""
    absent_nodes: tuple[str, ...] = ()
    """Those of the job's nodes whose launcher never began."""
    ended_by: str = ""
    """Why Slurm itself ended the job, in its words: PREEMPTION, TIME LIMIT, NODE FAILURE; "" where its log does not say."""
    refused: str = ""
    first_error: Line | None = None
    memory: Line | None = None
    rank_logs: int = 0
    batch_log: bool = False
    batch_tail: tuple[str, ...] = ()
    errors: tuple[Line, ...] = ()
    echoes: tuple[Line, ...] = ()
    batch_errors: tuple[Line, ...] = ()
    unseen: tuple[str, ...] = ()
    layers: str = ""
    """How the environments of the batch step and the nodes' steps compare."""


def gather(
    run: RunPaths, attempt: int | None, element: int | None = None, *, limits: Thresholds = BUILTIN.thresholds
) -> Clues:
    """Read the attempt's records and the ends of its logs, of one element if the run is an array. What cannot be read is left out."""
    batch = _batch(run, attempt, element)
    batch_lines, hosts = _of_attempt(_tail(batch, 200), attempt) if batch else ([], ())
    memory = next((line for line in batch_lines if _MEMORY.search(line.text)), None)
    shown = tuple(plain(line.text) for line in batch_lines[-5:])
    said = tuple(line for line in _errors(batch_lines) if not _ECHO.search(line.text))
    ended_by = next((m[1] for line in reversed(batch_lines) if (m := _ENDED_BY.match(line.text))), "")
    if attempt is None:
        return Clues(batch_log=bool(batch), batch_tail=shown, memory=memory, batch_errors=said, ended_by=ended_by)
    part = run if element is None else run.element(element)
    nodes = part.attempt(attempt).nodes
    ranks, silent, refused = _nodes(nodes)
    absent = tuple(host for number, host in enumerate(hosts) if not (nodes / f"{number}.start.json").exists())
    logs = sources(part, kind="rank", attempt=attempt)
    read = _interesting(logs, ranks, limits.logs_read)
    found = [_errors(_tail(source, limits.log_tail_lines)) for source in read]
    if not any(found):
        found = [_errors(_tail(s, limits.log_tail_lines)) for s in sources(part, kind="node", attempt=attempt)]
    memory = memory or next((line for lines in found for line in lines if _MEMORY.search(line.text)), None)
    errors, echoes = _told_apart(found)
    first = next(iter((*errors, *echoes)), None)
    return Clues(
        ranks, silent, _reported(silent, batch_lines), absent, ended_by, refused, first, memory, len(logs), bool(batch), shown, errors, echoes, said,
        _unseen(logs, read, limits), compared(part.attempt(attempt).root),
    )  # fmt: skip


def _batch(run: RunPaths, attempt: int | None, element: int | None) -> Source | None:
    """The log of the submission that the attempt is of; before an attempt began, that of the newest submission."""
    found = sources(run, kind="batch", element=element)
    if attempt is not None:
        return next((s for s in reversed(found) if s.attempt <= attempt), None)
    mine = [s.first_attempt for s in read_submissions(run, {}) if element is None or s.is_of(element)]
    return next((s for s in reversed(found) if s.attempt == mine[-1]), None) if mine else None


def _of_attempt(lines: list[Line], attempt: int | None) -> tuple[list[Line], tuple[str, ...]]:
    """The attempt's own lines of a log's end, and its nodes where they stand there. A log without any beginning is taken whole."""
    marks = [(at, int(m[1]), m[2]) for at, line in enumerate(lines) if (m := _BEGINS.fullmatch(line.text))]
    if attempt is None or not marks:
        return lines, ()
    end = next((at for at, number, _ in marks if number > attempt), len(lines))
    begun = [mark for mark in marks if mark[1] <= attempt]
    if begun and begun[-1][1] == attempt:
        return lines[begun[-1][0] : end], tuple(begun[-1][2].split(","))
    return lines[:end] if not begun and marks[0][1] == attempt + 1 else [], ()


def _reported(hosts: tuple[str, ...], batch: list[Line]) -> tuple[str, ...]:
    text = "\n".join(line.text for line in batch)
    return tuple(
        h
        for h in hosts
        if re.search(rf"^srun: error: {re.escape(h)}: tasks? .*: (?:Killed|Exited|Terminated)", text, re.MULTILINE)
    )


def _told_apart(found: list[list[Line]]) -> tuple[tuple[Line, ...], tuple[Line, ...]]:
    """The first error of each log and the first echo of one, each by time: clocks of two nodes may differ, echo and error do not change places."""
    sides: tuple[list[Line], list[Line]] = ([], [])
    for lines in found:
        for side, echo in zip(sides, (False, True), strict=True):
            side += [line for line in lines if bool(_ECHO.search(line.text)) == echo][:1]
    ordered = [tuple(sorted(side, key=lambda line: (line.time or "~", line.source.number))) for side in sides]
    return ordered[0], ordered[1]


def _unseen(logs: list[Source], read: list[Source], limits: Thresholds) -> tuple[str, ...]:
    """What of the logs was not read."""
    out = [f"{len(logs) - len(read)} of {len(logs)} rank logs"] if len(read) < len(logs) else []
    long = [s for s in read if _size(s) > limits.log_tail_lines * 40]
    if long:
        out.append(f"the beginning of {len(long)} long logs, before their last {limits.log_tail_lines} lines")
    return tuple(out)


def _size(source: Source) -> int:
    try:
        return os.lstat(source.path).st_size
    except OSError:
        return 0


def _interesting(logs: list[Source], ranks: tuple[RankEnd, ...], most: int) -> list[Source]:
    """Ranks that ended badly by themselves first; of very many not all."""
    bad = {r.rank for r in ranks if r.exit_code not in (exits.DONE, exits.PREEMPTED, exits.PEER_LOST) and not r.by_us}
    return sorted(logs, key=lambda s: (s.number not in bad, s.number))[:most]


def _tail(source: Source, count: int) -> list[Line]:
    try:
        return tail(source, count)
    except OSError:
        return []


def _errors(lines: list[Line]) -> list[Line]:
    """Codes of ours and exceptions if there are any, else lines with words of failure."""
    exceptions = [
        line
        for line in lines
        if CODE.search(line.text) or ((m := _EXCEPTION.match(plain(line.text))) and not m.group(1).endswith("Warning"))
    ]
    return exceptions or [line for line in lines if _WORDS.search(line.text)]


def _nodes(folder: Path) -> tuple[tuple[RankEnd, ...], tuple[str, ...], str]:
    ranks: list[RankEnd] = []
    silent, refused = [], ""
    for number in numbers(folder, ".start.json"):
        start, end = read_object(folder / f"{number}.start.json"), read_object(folder / f"{number}.end.json")
        if end is None:
            silent.append(str((start or {}).get("host", f"node {number}")))
            continue
        if isinstance(end.get("refused"), dict) and not refused:
            refused = f"{end['refused'].get('code', '')} {end['refused'].get('message', '')}".strip()
        for entry in end.get("ranks") or ():
            try:
                values = (int(entry["rank"]), number, int(entry["exit_code"]), int(entry.get("signal") or 0))
            except (KeyError, TypeError, ValueError):
                continue
            ranks.append(RankEnd(*values, bool(entry.get("by_us"))))
    return tuple(sorted(ranks, key=lambda r: r.rank)), tuple(silent), refused
