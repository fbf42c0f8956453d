"""Everything that is known of one run in one document: its report, joined with what only others know. Derived each time, never stored.

What a record does not hold is None here; nothing is guessed. `recorded` is what the job wrote down itself when it ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuneplane.contract import schemas
from tuneplane.contract.layout import RunPaths
from tuneplane.record.digest import digest_json

from hpc.runs.metrics import is_number, read_metrics
from hpc.runs.records import Attempt, Facts, mapping_at, object_of
from hpc.slurm.usage import JobUsage


@dataclass(frozen=True)
class Accounting:
    """Accounting's answer for the newest job, or why there is none."""

    usage: JobUsage | None = None
    why: str = "accounting was not asked"

    def as_json(self) -> dict[str, Any]:
        return self.usage.as_json() if self.usage else {"not_known": self.why}


def dossier(facts: Facts, accounting: Accounting, element: int | None = None) -> dict[str, Any]:
    """The document of a run, done or not, or of one element of its array. Damaged records count as absent."""
    run = facts.run
    part, attempts = (
        (run, facts.attempts) if element is None else (run.element(element), dict(facts.elements).get(element, ()))
    )
    report, launch, spec = object_of(part.report), object_of(run.launch), object_of(run.jobspec)
    recorded = mapping_at(report, "origin")
    admission = object_of(run.admission)
    last = attempts[-1] if attempts else None
    return {
        "run_id": run.run_id,
        "owner": run.owner,
        "exp": run.exp,
        "element": element,
        "labels": mapping_at(spec, "metadata", "labels"),
        "recipe": mapping_at(spec, "spec", "recipe"),
        "hyperparams": mapping_at(launch, "hyperparams"),
        "shape": mapping_at(launch, "shape"),
        "admission": {key: admission.get(key) for key in ("mode", "package_digest", "spec_digest", "admitted_at")},
        "origin": recorded or _packed(spec, launch),
        "origin_is": "recorded by the job" if recorded else "what the package says; the job has not ended well",
        "attempts": [_attempt(a) for a in attempts],
        "submissions": [
            {
                "first_attempt": s.first_attempt,
                "kind": s.kind,
                "job_id": s.job_id,
                "script_sha256": s.script_sha256 or None,
            }
            for s in facts.submissions
        ],
        "accounting": accounting.as_json(),
        "efficiency": efficiency(launch, recorded, last, accounting.usage, report.get("result")),
        "result": report.get("result"),
        "artifacts": report.get("artifacts") or [],
        "problems": dict(facts.problems),
    }


def _packed(spec: Mapping[str, Any], launch: Mapping[str, Any]) -> dict[str, Any]:
    """What the package alone says of where a run comes from; the job adds the rest at its end."""
    told, inputs = mapping_at(spec, "provenance"), mapping_at(launch, "inputs")
    return {
        "schema": schemas.PROVENANCE,
        "software": {"core": told.get("core_version"), "kernel": launch.get("kernel")},
        "container": launch.get("runtime"),
        "spec": {"spec_sha256": digest_json(spec), "launch_sha256": digest_json(launch), "config_sha256": told.get("config_sha")},
        "git": {
            "commit": told.get("git_commit") or None, "dirty": bool(told.get("git_dirty")), "diff_sha256": launch.get("git_diff_sha256"),
        },
        "data": {n: {"path": i.get("path")} for n, i in inputs.items() if isinstance(i, dict)},
    }  # fmt: skip


def _attempt(attempt: Attempt) -> dict[str, Any]:
    end = attempt.end or {}
    return {
        "attempt": attempt.number, "started_at": (attempt.start or {}).get("started_at"), "ended_at": end.get("ended_at"),
        "class": end.get("class"), "message": end.get("message"), "step": end.get("step"), "hosts": list(attempt.hosts),
        "job_id": end.get("job_id") or (attempt.start or {}).get("job_id"),
    }  # fmt: skip


def efficiency(
    launch: Mapping[str, Any], origin: Mapping[str, Any], last: Attempt | None, accounting: JobUsage | None, result: Any
) -> dict[str, Any]:
    """What the newest attempt used of what it asked for. Pure; None where it is not known.

    Shares are of 1. CPU time is accounting's, else the launchers'; memory is accounting's largest task, else the largest process.
    """
    slurm, used = mapping_at(origin, "slurm"), mapping_at(origin, "used")
    named = slurm.get("nodes")
    nodes = len(named) if isinstance(named, list) and named else None
    told = accounting or JobUsage("", "", None, None, None, {})
    begun, ended = (last.started_at, last.ended_at) if last else (None, None)
    elapsed = told.elapsed_s or (max(0.0, ended - begun) if begun and ended else None)
    per_node, memory_mb = _number(slurm.get("cpus_per_node")), _number(slurm.get("memory_mb_per_node"))
    cpus = per_node * nodes if per_node and nodes else None
    cpu_s = told.cpu_s or _number(used.get("cpu_s"))  # a site that gathers nothing says 0
    memory = told.max_rss_bytes or _number(used.get("largest_process_bytes"))
    limit = _number(slurm.get("time_limit_s"))
    return {
        "elapsed_s": round(elapsed, 3) if elapsed else None,
        "time": _of(elapsed, limit, "s"),
        "cpu": _of(cpu_s, elapsed * cpus if elapsed and cpus else None, "CPU s"),
        "memory": _of(memory, memory_mb * (1 << 20) if memory_mb else None, "bytes"),
        "gpus_asked": _number(slurm.get("gpus")) if slurm else _gpus(launch),
        "gpu_memory_bytes": _number(mapping_at(result, "memory").get("gpu_reserved")),
        "gpu_share": None,
    }


def _of(used: float | None, asked: float | None, unit: str) -> dict[str, Any]:
    share = round(used / asked, 4) if used is not None and asked else None
    return {"used": used, "asked": asked, "unit": unit, "share": share}


def _gpus(launch: Mapping[str, Any]) -> float | None:
    """GPUs of all pools; None where none says."""
    pools = mapping_at(launch, "shape").get("pools")
    rows = [p for p in pools if isinstance(p, dict)] if isinstance(pools, list) else []
    found = [(_number(p.get("nodes")), _number(p.get("gpus_per_node"))) for p in rows]
    known = [n * g for n, g in found if n is not None and g is not None]
    return sum(known) if known else None


def _number(value: Any) -> float | None:
    return value if is_number(value) and not isinstance(value, bool) else None


def curves(run: RunPaths) -> dict[str, list[tuple[float, float]]]:
    """(step, value) of the loss and of what was measured on held-out rows."""
    rows = read_metrics(run)
    names = ["loss", *sorted({k for r in rows for k in r if k.startswith("validation_")})]
    points = {
        name: [(float(r["step"]), float(r[name])) for r in rows if is_number(r["step"]) and is_number(r.get(name))]
        for name in names
    }
    return {name: found for name, found in points.items() if found}
