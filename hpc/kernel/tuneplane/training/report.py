"""What a run tells people before, at the start and at the end; and result.json."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tuneplane.training.engine import Engine
from tuneplane.training.loop import Progress
from tuneplane.training.metrics import clock_text, thousands
from tuneplane.training.program import Job
from tuneplane.training.rowmethod import RowMethod
from tuneplane.training.saving import Resumed, versions
from tuneplane.training.settings import Settings

RESULT_SCHEMA = "tuneplane-hpc/training-result/v1"


class FirstBatch:
    """Seconds from the interpreter's start to the first batch, and to the end of the first step (P72)."""

    def __init__(self, age_s: Callable[[], float]) -> None:
        self._age, self.batch_s, self.step_s = age_s, 0.0, 0.0

    def batch(self) -> None:
        self.batch_s = self.batch_s or round(self._age(), 2)

    def done(self) -> None:
        self.step_s = round(self._age(), 2)


def before(job: Job, method: RowMethod) -> list[str]:
    """The facts of the run, before anything dear is done."""
    place, counts = job.place, method.train.meta["counts"]
    left_out = (
        ", ".join(f"{counts[k]} {k}" for k in ("truncated", "skipped", "unfit") if counts[k]) or "none cut or left out"
    )
    nodes = place.world_size // place.local_world_size
    return [
        f"run {place.run_id} attempt {place.attempt}: {method.name} on {place.world_size} ranks, {nodes} nodes, {job.device.type}",
        f"rows {counts['kept']} of {counts['read']} ({left_out}), {thousands(method.train.meta['tokens'])} tokens",
        *_told(method),
        method.arithmetic(),
        *method.facts(),
    ]


def _told(method: RowMethod) -> list[str]:
    """What became of rows on the way to the tokens, and how full the packs are."""
    meta, packs = method.train.meta, method.train.packs
    out = []
    if columns := meta.get("columns"):
        words = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in columns.items())
        out.append(f"columns mapped: {words}")
    if packs is not None:
        room = len(packs) * packs.meta["width"]
        out.append(
            f"packed: {len(method.train)} rows in {len(packs)} sequences, {100 * meta['tokens'] / room:.1f} % full"
        )
    return out


def start(resumed: Resumed | None, method: RowMethod) -> str:
    """Whether this attempt begins or goes on, with the digest of the rows that come next (P35)."""
    step = resumed.step if resumed else 0
    digest = method.state(step)["next_samples_sha256"]
    if resumed is None:
        return f"starts at step 1 of {method.total_steps}; next samples {digest[:23]}"
    return (
        f"continues attempt {resumed.attempt} at step {resumed.step} of {method.total_steps}: {resumed.name} verified "
        f"({resumed.files} files); next samples {digest[:23]}, as that attempt had before it"
    )


def result(
    job: Job,
    settings: Settings,
    method: RowMethod,
    engine: Engine,
    progress: Progress,
    resumed: Resumed | None,
    started: FirstBatch,
    artefact: dict[str, Any],
) -> dict[str, Any]:
    """The content of result.json. A collective: the ranks' peaks of memory are compared.

    Steps and tokens are the run's; its seconds are those of this attempt, whose own steps and tokens stand in `attempt`.
    """
    shapes, trainable = engine.shapes(trainable=False), engine.shapes(trainable=True)
    return {
        "schema": RESULT_SCHEMA,
        "method": method.name,
        "final_loss": progress.loss,
        "validation_loss": None,
        **{f"validation_{name}": value for name, value in progress.validation.items()},
        "steps": progress.step,
        "tokens": progress.tokens,
        "seconds": round(progress.seconds, 3),
        "attempt": {
            "steps": progress.step - (resumed.step if resumed else 0),
            "tokens": progress.tokens - (resumed.tokens if resumed else 0),
        },
        "first_batch_s": started.batch_s,
        "first_step_s": started.step_s,
        "parameters_total": sum(math.prod(s) for s in shapes.values()),
        "parameters_trainable": sum(math.prod(s) for s in trainable.values()),
        "rows": method.train.meta["counts"],
        **_more_rows(method),
        "samples_sha256": method.order.digest(0),
        "world_size": job.place.world_size,
        "zero_stage": settings.zero_stage,
        "precision": engine.precision,
        "deepspeed_config_sha256": engine.config_sha256,
        "saves": {"count": len(progress.save_seconds), "longest_s": round(max(progress.save_seconds, default=0.0), 3)},
        "resumed_from": None
        if resumed is None
        else {"step": resumed.step, "checkpoint": resumed.name, "attempt": resumed.attempt},
        "memory": peak(job.peers.gather(progress.memory)),
        "artefact": artefact,
        "versions": versions(),
    }


def peak(ranks: list[dict[str, int]]) -> dict[str, int]:
    """The most of each figure over all ranks, in bytes (`tuneplane.training.memory.seen`). Pure."""
    return {name: max(rank.get(name, 0) for rank in ranks) for name in sorted({n for rank in ranks for n in rank})}


def _more_rows(method: RowMethod) -> dict[str, Any]:
    """Counts of mapped columns and of packs, of the training rows and the held-out ones; only what there is."""
    out: dict[str, Any] = {}
    for name, tokens in (("", method.train), ("validation_", method.held_out)):
        if tokens is not None and (columns := tokens.meta.get("columns")):
            out[f"{name}columns"] = columns
    if (packs := method.train.packs) is not None:
        out["packs"] = {name: packs.meta[name] for name in ("rows", "packs", "width")}
    return out


def end(value: dict[str, Any]) -> str:
    loss = "no step was left to do" if value["final_loss"] is None else f"final loss {value['final_loss']:.4f}"
    held_out = "" if value["validation_loss"] is None else f", validation loss {value['validation_loss']:.4f}"
    made, own = value["artefact"], value["attempt"]["steps"]
    steps = f"{own} steps" if own == value["steps"] else f"{own} of {value['steps']} steps"
    return (
        f"done: {loss}{held_out}, {steps} in {clock_text(value['seconds'])}, first batch after {value['first_batch_s']} s; "
        f"{made['path']}: {made['kind']} of {made['tensors']} tensors, {thousands(made['parameters'])} values, verified"
    )
