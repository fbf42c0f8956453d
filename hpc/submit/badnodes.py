"""Nodes that ended attempts of an experiment in a way that points at the node (P76): said before the next attempt may meet them again. Reads only.

An end counts against a node when its launcher left no end record while the run was lost to a dead node, or when it refused the job for what the node
lacks. Two such ends of different attempts within a week make a suspect; an attempt that ended well there since clears it.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tuneplane.contract.layout import RUN_ID, RunPaths
from tuneplane.record.files import read_object
from tuneplane.record.times import parse_utc

AGE_S: Final = 7 * 86400.0
ENDS: Final = 2
RUNS: Final = 20
"""The newest runs of the experiment that are looked at."""
OF_THE_NODE: Final = frozenset({"E-JOB-011", "E-JOB-015", "E-JOB-050"})
"""Refusals of a launcher that another node might not give: GPUs, image, mounts."""


@dataclass(frozen=True)
class NodeEnd:
    """What one attempt says of one node; `bad` is the evidence, empty for an attempt that ended well."""

    node: str
    at: float
    run_id: str
    attempt: int
    bad: str


@dataclass(frozen=True)
class Suspect:
    """A node and the ends that count against it, oldest first."""

    node: str
    ends: tuple[NodeEnd, ...]

    @property
    def text(self) -> str:
        told = "; ".join(f"{e.run_id} attempt {e.attempt}: {e.bad}" for e in self.ends)
        return f"node {self.node} ended {len(self.ends)} attempts lately ({told}): --exclude {self.node} avoids it"


def suspects(ends: Iterable[NodeEnd], now: float) -> list[Suspect]:
    """Nodes with at least two bad ends within a week and none that was good since. Pure."""
    against: dict[str, list[NodeEnd]] = defaultdict(list)
    for end in sorted(ends, key=lambda e: e.at):
        if not end.bad:
            against[end.node] = []
        elif now - end.at <= AGE_S:
            against[end.node].append(end)
    return [Suspect(node, tuple(found)) for node, found in sorted(against.items()) if len(found) >= ENDS]


def node_ends(run: RunPaths) -> list[NodeEnd]:
    """What the attempts of one run say of their nodes; records that are missing or damaged say nothing."""
    out = []
    for attempt in sorted(run.attempts.glob("[0-9]*")):
        paths = run.attempt(int(attempt.name)) if attempt.name.isdigit() else None
        start, end = (read_object(paths.start) or {}, read_object(paths.end) or {}) if paths else ({}, {})
        hosts = start.get("hosts")
        try:
            at = parse_utc(str(end.get("ended_at"))).timestamp()
        except ValueError:
            continue
        for number, host in enumerate(hosts if paths and isinstance(hosts, list) else []):
            bad = (
                _against(read_object(paths.nodes / f"{number}.end.json") or {}, str(end.get("class")))
                if paths
                else None
            )
            if bad is not None:
                out.append(NodeEnd(str(host), at, run.run_id, int(attempt.name), bad))
    return out


def _against(record: dict[str, Any], klass: str) -> str | None:
    """The evidence against a node, "" where its attempt ended well, None where nothing can be said."""
    refused = record.get("refused")
    if isinstance(refused, dict) and refused.get("code") in OF_THE_NODE:
        return f"{refused['code']} {refused.get('message', '')}".strip()
    if klass == "node_fail" and not record:
        return "its launcher disappeared"
    return "" if klass == "done" else None


def known_suspects(experiment: Path, now: float) -> list[Suspect]:
    """Suspects by the newest runs in an experiment's folder of runs."""
    try:
        with os.scandir(experiment) as entries:
            found = [(e.stat(follow_symlinks=False).st_mtime_ns, e.path) for e in entries if RUN_ID.match(e.name)]
    except OSError:
        return []
    newest = [RunPaths(Path(path)) for _, path in sorted(found, reverse=True)[:RUNS]]
    return suspects([end for run in newest for end in node_ends(run)], now)
