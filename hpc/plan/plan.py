"""The plan of a submission: parameters, memory, batches, tokens, disk, time, start. Every number is computed, measured or sampled, and says which;
what is not known is said instead of guessed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tuneplane.contract.datasets import is_data

from hpc.data.rows import Source
from hpc.errors import Refusal
from hpc.plan import history, memory
from hpc.plan.arithmetic import Batches, Disk, batches, disk
from hpc.plan.faults import Judged
from hpc.plan.fit import Verdict, fit
from hpc.plan.history import Band, Past
from hpc.plan.memory import Forecast, Setting
from hpc.plan.model_facts import ModelFacts, read_model
from hpc.plan.rows import Packed, Rows, content_digests, from_caches, measured, packed, tokenizer_counter
from hpc.plan.template import chat_template
from hpc.spec.sizes import parse_memory

if TYPE_CHECKING:
    from hpc.project.project import Experiment
    from hpc.submit.prepare import InProject, Prepared

NEEDED: Final = frozenset({"micro_batch_size", "gradient_accumulation", "max_length", "max_steps", "epochs", "zero_stage", "precision",
                           "gradient_checkpointing", "lora_rank", "lora_targets", "lora_dropout", "keep_checkpoints"})  # fmt: skip
"""Parameters of a recipe that the arithmetic is about; a recipe without them is not forecast."""


@dataclass
class Plan:
    """What is known of a submission. `unknown`: what is not, each with the reason."""

    method: str = ""
    ranks: int = 0
    gpus: int = 0
    nodes: int = 0
    setting: Setting | None = None
    model: ModelFacts | None = None
    trained: int = 0
    forecast: Forecast | None = None
    available: int = 0
    verdict: Verdict = "unknown"
    calibration: tuple[float, ...] = ()
    batches: Batches | None = None
    rows: Rows | None = None
    packed: Packed | None = None
    """Where rows are packed: an example is a sequence of several, then."""
    disk: Disk | None = None
    disk_free: int = 0
    band: Band | None = None
    limit_s: int | None = None
    unknown: list[str] = field(default_factory=list)

    @property
    def tokens(self) -> float | None:
        """Tokens of the whole run; None where the model draws its own."""
        if self.method.endswith("/grpo"):
            return None
        steps, examples = self.batches.total_steps if self.batches else None, self.packed or self.rows
        return steps * self.batches.global_batch * examples.mean_tokens if steps and self.batches and examples else None

    def as_json(self) -> dict[str, Any]:
        """For programs; bytes, seconds and counts."""
        size = {
            "terms": self.forecast.terms(), "available": self.available or None, "verdict": self.verdict,
            "measured_by_forecast": [round(ratio, 3) for ratio in self.calibration],
        } if self.forecast else None  # fmt: skip
        hours = (
            {
                f"{which}_gpu_hours": getattr(self.band, f"{which}_s") * self.gpus / 3600
                for which in ("low", "mid", "high")
            }
            if self.band
            else {}
        )
        return {
            "method": self.method, "ranks": self.ranks, "gpus": self.gpus, "nodes": self.nodes,
            "model": self.model.as_json() if self.model else None, "parameters_trained": self.trained or None, "memory_per_rank": size,
            "batches": self.batches.as_json() if self.batches else None, "rows": self.rows.as_json() if self.rows else None,
            "packed": self.packed.as_json() if self.packed else None,
            "tokens": round(self.tokens) if self.tokens else None,
            "disk": {**self.disk.as_json(), "free": self.disk_free} if self.disk else None,
            "time": {**self.band.as_json(), **hours} if self.band else None, "limit_s": self.limit_s, "unknown": self.unknown,
        }  # fmt: skip


def make(around: InProject, experiment: Experiment, judged: Judged) -> Plan:
    """The plan of what was judged. Reads records, headers and rows; writes nothing."""
    prepared, plan = judged.prepared, Plan()
    if prepared is None:
        plan.unknown.append("everything else: the submission cannot be prepared")
        return plan
    launch = prepared.records["launch.json"]
    shape, hyperparams = launch["shape"], launch["hyperparams"]
    plan.method, plan.ranks, plan.nodes = prepared.recipe.id, shape["world_size"], shape["nodes"]
    plan.gpus = sum(p["nodes"] * p["gpus_per_node"] for p in shape["pools"])
    plan.limit_s = judged.script.time_s if judged.script else None
    past = history.similar(around.root, launch, prepared.recipe.id)
    if not hyperparams.keys() >= NEEDED:
        plan.unknown.append(f"memory, batches and tokens: {plan.method} has not the parameters of the training engine")
        _time(plan, past)
        return plan
    where = _Where(experiment, f"{prepared.work}/{experiment.rel}")
    method = plan.method.rpartition("/")[2]
    _rows(plan, launch, method, past, where)
    if plan.rows and hyperparams.get("packing"):
        plan.packed = packed(plan.rows, int(hyperparams["max_length"]))
    examples = plan.packed.sequences if plan.packed else plan.rows.rows if plan.rows else None
    plan.batches = batches(hyperparams, method, plan.ranks, examples)
    _memory(plan, prepared, method, past, where)
    _disk(plan, around, int(hyperparams["keep_checkpoints"]))
    _time(plan, past)
    return plan


@dataclass(frozen=True)
class _Where:
    """Where an input of launch.json lies now: the package is not written yet."""

    experiment: Experiment
    work_exp: str

    def __call__(self, path: str) -> Path:
        inside = path.startswith(f"{self.work_exp}/")
        return self.experiment.path / path[len(self.work_exp) + 1 :] if inside else Path(path)


def _sources(source: Mapping[str, Any], where: _Where) -> list[Source]:
    base = where(source["path"])
    names = [row["path"] for row in source.get("files", ())] or [""]
    if base.is_dir() and names == [""]:
        names = sorted(os.listdir(base))
    paths = [base / name if name else base for name in names]
    return [Source(str(p), p, p.stat().st_size) for p in paths if is_data(p.name) and p.is_file()]


def _rows(plan: Plan, launch: Mapping[str, Any], method: str, past: list[Past], where: _Where) -> None:
    source, max_length = launch["inputs"].get("train"), int(launch["hyperparams"]["max_length"])
    if not source or source.get("from") or not source.get("path"):
        plan.unknown.append("rows and tokens: there is no training data to look at yet")
        return
    digests = content_digests(source.get("files", ()))
    model = launch["inputs"].get("model") or {}
    folder = where(model["path"]) if model.get("path") else None
    counter, render = (tokenizer_counter(folder), chat_template(folder)) if folder else (None, None)
    caches = [folder for p in past for folder in p.caches]
    plan.rows = from_caches(caches, digests, max_length) or measured(
        _sources(source, where), max_length, counter, render
    )
    if plan.rows is None:
        plan.unknown.append("rows and tokens: no row of the training data could be read")
    elif not plan.rows.exact and method in memory.ROWS_OF:
        pair = memory.ROWS_OF[method]  # a sample looks at the chosen answer alone
        plan.rows = replace(
            plan.rows, mean_tokens=plan.rows.mean_tokens * pair, how=f"{plan.rows.how}, for both answers"
        )


def _memory(plan: Plan, prepared: Prepared, method: str, past: list[Past], where: _Where) -> None:
    launch = prepared.records["launch.json"]
    hyperparams, source = launch["hyperparams"], launch["inputs"].get("model") or {}
    longest = _longest(hyperparams, method, plan.rows) or int(hyperparams["max_length"])
    plan.setting = Setting.of(hyperparams, method, world=plan.ranks, gpu=plan.gpus > 0, length=longest)
    try:
        if not source.get("path"):
            raise Refusal("E-PLAN-001", "no model is named yet", field="spec.model.base")
        plan.model = read_model(where(source["path"]))
        plan.forecast = memory.forecast(plan.model, plan.setting)
        if teacher := hyperparams.get("teacher"):
            folder = where.experiment.path / str(teacher)
            plan.forecast = memory.with_teacher(plan.forecast, read_model(folder, "hyperparams.teacher"), plan.setting)
    except Refusal as fault:
        plan.unknown.append(f"memory: {fault.message}")
        return
    plan.trained = memory.trainable(plan.model, plan.setting)
    plan.calibration = tuple(_calibrated(plan.model, method, past, plan))
    plan.available = _available(plan, prepared)
    plan.verdict = fit(plan.forecast.total * max(1.0, *plan.calibration, 1.0), plan.available)
    if not plan.available:
        what = "the profile states no gpu_memory_gb" if plan.gpus else "neither --mem nor the profile states a memory"
        plan.unknown.append(f"whether it fits: {what}")


def _longest(hyperparams: Mapping[str, Any], method: str, rows: Rows | None) -> int:
    """Tokens of the longest sequence: one that is packed, or drawn, may be as long as any may be. 0 where the rows are not known."""
    if hyperparams.get("packing") or method == "grpo":
        return int(hyperparams["max_length"])
    return rows.longest_tokens if rows else 0


def _calibrated(model: ModelFacts, method: str, past: list[Past], plan: Plan) -> list[float]:
    """Measured by forecast, of earlier runs of this model and shape; a run whose row lengths are not known is left out."""
    out = []
    for p in past:
        # What torch reserved on a GPU does not hold CUDA's context.
        reserved = p.memory.get("gpu_reserved", 0)
        taken = (reserved + memory.GPU_PROCESS if reserved else 0) if plan.gpus else p.memory.get("rss_peak", 0)
        rows = next((rows for f in p.caches if (rows := _of_cache(f, p))), None)
        if taken and rows:
            try:
                longest = _longest(p.hyperparams, method, rows)
                setting = Setting.of(p.hyperparams, method, world=plan.ranks, gpu=plan.gpus > 0, length=longest)
            except (KeyError, TypeError, ValueError):
                continue  # another release's, or another user's fancy
            out.append(taken / memory.forecast(model, setting).total)
    return out


def _of_cache(folder: Path, past: Past) -> Rows | None:
    from tuneplane.record.files import read_json

    try:
        digest = str(read_json(folder / "meta.json")["source_sha256"])
        return from_caches([folder], {digest}, int(past.hyperparams["max_length"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _available(plan: Plan, prepared: Prepared) -> int:
    """Bytes that a rank may use: of its GPU, or its share of the node's memory; 0 where nobody says."""
    profile, pool = prepared.pool_profiles[0], prepared.spec.spec.resources.pools[0]
    if plan.gpus:
        return int(profile.gpu_memory_gb) << 30
    asked = prepared.options.get("mem")
    node = parse_memory(str(asked)) << 20 if asked else (pool.memory_gb or profile.memory_gb) << 30
    return node // max(1, pool.ranks)


def _disk(plan: Plan, around: InProject, keep: int) -> None:
    if plan.model is None or plan.setting is None:
        return
    plan.disk = disk(plan.model.parameters, plan.trained, plan.setting, keep)
    found = os.statvfs(around.root.runs)
    plan.disk_free = found.f_bavail * found.f_frsize


def _time(plan: Plan, past: list[Past]) -> None:
    if plan.tokens:
        plan.band = history.walltime(past, plan.tokens)
    if plan.method.endswith("/grpo"):
        plan.unknown.append("tokens and time: how long the answers will be is not known before they are drawn")
    elif plan.band is None:
        plan.unknown.append("time and GPU-hours: no earlier run of this recipe, model and shape has ended well here")
