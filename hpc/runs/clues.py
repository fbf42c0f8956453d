"""Gathers what an attempt left behind that can tell why it ended: exit codes, nodes without an end, error lines, what was never written."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tuneplane.contract import exits
from tuneplane.contract.layout import RunPaths
from tuneplane.record.files import read_json

from hpc.plugins.playbook import BUILTIN, Thresholds
from hpc.runs.logs import Line, Source, plain, sources, tail
from hpc.runs.records import numbers

_EXCEPTION: Final = re.compile(
    r"^(?:\[rank\d+\]:? ?)?([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning|Failure|Abort))(?::|$)"
)
_WORDS: Final = re.compile(
    r"out of memory|oom[-_ ]kill|segmentation fault|core dumped|bus error|no space left on device|disk quota exceeded|command not found"
    r"|no such file or directory|permission denied|nccl (?:error|warn)|cuda error|illegal instruction|\bfatal\b|^error[: ]|\berror:",
    re.IGNORECASE,
)
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
    """What was found. `first_error` is the earliest error line over all ranks, by time."""

    ranks: tuple[RankEnd, ...] = ()
    silent_nodes: tuple[str, ...] = ()
    refused: str = ""
    first_error: Line | None = None
    memory: Line | None = None
    rank_logs: int = 0
    batch_log: bool = False
    batch_tail: tuple[str, ...] = ()


def gather(
    run: RunPaths, attempt: int | None, element: int | None = None, *, limits: Thresholds = BUILTIN.thresholds
) -> Clues:
    """Read the attempt's records and the ends of its logs, of one element if the run is an array. What cannot be read is left out."""
    batch = sources(run, kind="batch", element=element)
    batch_lines = _tail(batch[-1], 200) if batch else []
    memory = next((line for line in batch_lines if _MEMORY.search(line.text)), None)
    shown = tuple(plain(line.text) for line in batch_lines[-5:])
    if attempt is None:
        return Clues(batch_log=bool(batch), batch_tail=shown, memory=memory)
    part = run if element is None else run.element(element)
    ranks, silent, refused = _nodes(part.attempt(attempt).nodes)
    logs = sources(part, kind="rank", attempt=attempt)
    count = limits.log_tail_lines
    found = [_errors(_tail(source, count)) for source in _interesting(logs, ranks, limits.logs_read)]
    node_logs = (
        [_errors(_tail(source, count)) for source in sources(part, kind="node", attempt=attempt)]
        if not any(found)
        else []
    )
    firsts = [lines[0] for lines in (*found, *node_logs) if lines]
    memory = memory or next((line for lines in found for line in lines if _MEMORY.search(line.text)), None)
    first = min(firsts, key=lambda line: (line.time or "~", line.source.number), default=None)
    return Clues(ranks, silent, refused, first, memory, len(logs), bool(batch), shown)


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
    """Exceptions if there are any, else lines with words of failure."""
    exceptions = [
        line for line in lines if (m := _EXCEPTION.match(plain(line.text))) and not m.group(1).endswith("Warning")
    ]
    return exceptions or [line for line in lines if _WORDS.search(line.text)]


def _nodes(folder: Path) -> tuple[tuple[RankEnd, ...], tuple[str, ...], str]:
    ranks: list[RankEnd] = []
    silent, refused = [], ""
    for number in numbers(folder, ".start.json"):
        start, end = _object(folder / f"{number}.start.json"), _object(folder / f"{number}.end.json")
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


def _object(path: os.PathLike[str]) -> dict[str, Any] | None:
    try:
        value = read_json(path)
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
