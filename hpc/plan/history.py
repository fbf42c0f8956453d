"""What earlier runs of the same kind took: tokens a second, time beside the steps, memory. Only finished runs whose records this user may read.

Like: the same recipe, model and shape (nodes, ranks, GPUs). Rows, settings of the optimiser and lengths may differ; what changes a step's speed a
great deal (LoRA or not, ZeRO's stage, precision, recomputation, packing) may not.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

from tuneplane.contract.layout import AttemptPaths, RunPaths, StorageRoot
from tuneplane.record.files import read_object

from hpc.runs.find import owners, scan
from hpc.runs.metrics import attempt_rows, is_number
from hpc.runs.records import instant, numbers

MOST_RUNS: Final = 300
"""The newest runs that are looked at."""
ENOUGH_ALIKE: Final = 20
"""Runs of the same kind whose metrics are read."""
ENOUGH: Final = 3
"""From so many runs on, a band is their spread; of fewer it is widened by the spread of their steps."""
SAME: Final = ("zero_stage", "precision", "gradient_checkpointing")


@dataclass(frozen=True)
class Past:
    """One finished run: tokens/s of its steps (median, and the 10th and 90th percentile), seconds beside the steps, its memory and settings."""

    run_id: str
    owner: str
    tokens_per_s: float
    slow_tokens_per_s: float
    fast_tokens_per_s: float
    beside_s: float
    memory: Mapping[str, int]
    hyperparams: Mapping[str, Any]
    caches: tuple[Path, ...]


@dataclass(frozen=True)
class Band:
    """Seconds: low, middle, high, and of how many runs."""

    low_s: float
    mid_s: float
    high_s: float
    runs: int

    def as_json(self) -> dict[str, Any]:
        return {"low_s": round(self.low_s), "mid_s": round(self.mid_s), "high_s": round(self.high_s), "runs": self.runs}


def similar(root: StorageRoot, launch: Mapping[str, Any], recipe: str, *, most: int = MOST_RUNS) -> list[Past]:
    """Finished runs like the one that `launch` describes, newest first."""
    wanted = _kind(launch, recipe)
    found = (past for run in _newest(root, most) if (past := _past(run, wanted)) is not None)
    return list(islice(found, ENOUGH_ALIKE))


def _newest(root: StorageRoot, most: int) -> Iterator[RunPaths]:
    spots = [(changed, owner, exp, run_id) for owner in owners(root) for exp, run_id, changed in scan(root, owner)]
    for _, owner, exp, run_id in sorted(spots, reverse=True)[:most]:
        yield root.run(owner, exp, run_id)


def _kind(launch: Mapping[str, Any], recipe: str) -> tuple[Any, ...]:
    shape, hyperparams = launch["shape"], launch["hyperparams"]
    pools = tuple((p["nodes"], p["ranks_per_node"], p["gpus_per_node"]) for p in shape["pools"])
    settings = tuple(hyperparams.get(key) for key in SAME)
    chosen = tuple(bool(hyperparams.get(key)) for key in ("lora_rank", "packing"))
    return (recipe, _model(launch), pools, *chosen, *settings)


def _model(launch: Mapping[str, Any]) -> Any:
    """What tells two models apart in launch.json: the digests of the files, else the path."""
    source = launch["inputs"].get("model") or {}
    digests = tuple(sorted(str(f["sha256"]) for f in source.get("files", ()) if f.get("sha256")))
    return digests or source.get("path")


def _past(run: RunPaths, wanted: tuple[Any, ...]) -> Past | None:
    report = read_object(run.report) or {}
    if report.get("status") != "done":
        return None
    launch, spec, result = read_object(run.launch) or {}, read_object(run.jobspec) or {}, report.get("result")
    try:
        if not isinstance(result, dict) or _kind(launch, spec["spec"]["recipe"]["name"]) != wanted:
            return None
        speeds, beside = _pace(run)
    except (KeyError, TypeError, ValueError, statistics.StatisticsError):
        return None
    memory = result.get("memory")
    caches = tuple((run.root / "cache" / "tokens").glob("*"))
    known = {k: v for k, v in memory.items() if type(v) is int} if isinstance(memory, dict) else {}
    return Past(run.run_id, run.owner, *speeds, beside, known, launch["hyperparams"], caches)


def _pace(run: RunPaths) -> tuple[tuple[float, float, float], float]:
    """(median, slow, fast) tokens/s of the run's steps but the first of each attempt, and its seconds beside the steps. Raises ValueError for none.

    Steps that were done twice took their time twice, and count so: that is no time beside them.
    """
    firsts: list[float] = []
    others: list[float] = []
    beside: list[float] = []
    for number in numbers(run.attempts):
        rows = attempt_rows(run, number)
        steps = [
            (float(r["tokens"]), float(r["tokens_per_s"]))
            for r in rows
            if is_number(r.get("tokens")) and is_number(r.get("tokens_per_s")) and r["tokens_per_s"] > 0
        ]
        firsts += [speed for _, speed in steps[:1]]
        others += [speed for _, speed in steps[1:]]
        lasted = _lasted(run.attempt(number), rows)
        if lasted is not None:
            beside.append(max(0.0, lasted - sum(tokens / speed for tokens, speed in steps)))
    if not beside:
        raise ValueError("no attempt with times")
    speeds = sorted(others or firsts)
    middle = statistics.median(speeds)
    return (middle, speeds[len(speeds) // 10], speeds[len(speeds) * 9 // 10]), sum(beside)


def _lasted(paths: AttemptPaths, rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Seconds of an attempt, None where nothing says.

    An end without a job was written by the attempt after it, when that one began: hours in the queue lie between, so the newest step is the end.
    """
    end = read_object(paths.end) or {}
    told = end.get("ended_at") if end.get("job_id", "") is not None else None
    began, ended = (
        instant((read_object(paths.start) or {}).get("started_at")),
        instant(told or (rows[-1].get("time") if rows else None)),
    )
    return ended - began if began is not None and ended is not None else None


def walltime(past: Sequence[Past], tokens: float) -> Band | None:
    """How long so many tokens would take, from start to end; None without earlier runs. Pure."""
    if not past:
        return None
    found = [tokens / p.tokens_per_s + p.beside_s for p in past]
    spread = list(found)
    if len(past) < ENOUGH:
        spread += [tokens / speed + p.beside_s for p in past for speed in (p.slow_tokens_per_s, p.fast_tokens_per_s)]
    return Band(min(spread), statistics.median(found), max(spread), len(past))
