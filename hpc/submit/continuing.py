"""`--init-from run/<id>/checkpoint`: which checkpoint a new run goes on from, and whether it can, said before the queue wait (P34)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tuneplane.contract.layout import RUN_ID, RunPaths, StorageRoot
from tuneplane.contract.reshaping import SHAPE_SETTINGS, shape_faults
from tuneplane.contract.schemas import CHECKPOINT
from tuneplane.record.canonical import parse_json
from tuneplane.record.digest import digest_bytes
from tuneplane.record.files import read_bytes, read_json

from hpc.errors import Refusal, Refusals
from hpc.spec.refs import InitFrom, parse_init_from

if TYPE_CHECKING:
    from hpc.catalog.recipes import Recipe
    from hpc.spec.jobspec import JobSpec

FIELD: Final = "spec.model.init_from"
KIND: Final = "checkpoint"
FRAMEWORKS: Final = ("deepspeed", "trl")
_DECIDED_THERE: Final = ("precision",)
"""`auto` is decided by the GPU; the job compares what it became."""


def start_record(root: StorageRoot, spec: JobSpec, recipe: Recipe, hyperparams: Mapping[str, Any]) -> dict[str, Any]:
    """`{"start": …}` for launch.json: the checkpoint by path and digest of its manifest; {} without init_from, and where a program of the user's
    own decides what it means. Raises Refusal(s) E-SUBMIT-100 to -104.
    """
    text = spec.spec.model.init_from if spec.spec.model else ""
    if not text or recipe.is_custom or recipe.typed.category == "evaluation":
        return {}
    wanted = parse_init_from(text, FIELD)
    if recipe.framework not in FRAMEWORKS or wanted.kind != KIND:
        raise Refusal(
            "E-SUBMIT-101",
            f"{recipe.id} cannot begin with it",
            field=FIELD,
            found=text,
            allowed=f"run/<run_id>/{KIND} with a {FRAMEWORKS[0]}/* or {FRAMEWORKS[1]}/* method; weights alone are a model: --model",
        )
    run = _find(root, wanted.run_id)
    path, manifest, sha256 = _choose(run, wanted)
    if manifest["step"] == manifest.get("total_steps"):
        raise Refusal(
            "E-SUBMIT-104",
            "is the run's last step: nothing is left to train",
            field=FIELD,
            found=f"{path.name} of {manifest['total_steps']} steps",
            allowed="an earlier step",
        )
    if faults := refusals(manifest, spec, recipe, settings_of(hyperparams, spec), path.name):
        raise Refusals(faults)
    return {
        "start": {
            "run_id": run.run_id,
            "step": manifest["step"],
            "attempt": manifest["attempt"],
            "path": str(path),
            "manifest_sha256": sha256,
            "world_size": manifest["world_size"],
        }
    }


def start_refusals(launch: Mapping[str, Any], spec: JobSpec) -> list[Refusal]:
    """Why launch.json's start is not the one that the spec names; admission asks. Pure."""
    start = launch.get("start")
    text = spec.spec.model.init_from if spec.spec.model else ""
    named = parse_init_from(text, FIELD).run_id if text else ""
    if start is None or (isinstance(start, dict) and named and start.get("run_id") == named):
        return []
    found = start.get("run_id") if isinstance(start, dict) else start
    return [
        Refusal("E-SUBMIT-075", "begins with another run", field="launch.start", found=repr(found), allowed=repr(named))
    ]


def _find(root: StorageRoot, run_id: str) -> RunPaths:
    """The run of that id, which must have ended: one that goes on removes its older checkpoints."""
    found = sorted(root.runs.glob(f"*/*/{run_id}")) if RUN_ID.match(run_id) else []
    if not found:
        raise Refusal("E-SUBMIT-100", f"there is no run {run_id} that you can read", field=FIELD, found=run_id)
    run = RunPaths(found[0])
    last = max((int(p.name) for p in run.attempts.glob("[0-9]*") if p.name.isdigit()), default=-1)
    try:
        goes_on = bool(read_json(run.attempt(last).end)["requeue"])
    except (OSError, ValueError, KeyError, TypeError):
        goes_on = last >= 0
    if goes_on:
        raise Refusal(
            "E-SUBMIT-103",
            f"{run_id} has not ended",
            field=FIELD,
            found=f"attempt {last}",
            allowed="a run that has ended",
        )
    return run


def _choose(run: RunPaths, wanted: InitFrom) -> tuple[Path, dict[str, Any], str]:
    """Folder, manifest and its digest: of the step and attempt that are named, else the newest."""
    there = []
    for folder in sorted(run.checkpoints.glob("step-*"), reverse=True):
        try:
            data = read_bytes(folder / "manifest.json")
            manifest = parse_json(data)
        except (OSError, ValueError):
            continue
        if not isinstance(manifest, dict) or manifest.get("schema") != CHECKPOINT:
            continue
        there.append(f"step={manifest['step']},attempt={manifest['attempt']}")
        if wanted.step in (None, manifest["step"]) and wanted.attempt in (None, manifest["attempt"]):
            return folder, manifest, digest_bytes(data)
    raise Refusal(
        "E-SUBMIT-100",
        f"{run.run_id} has no such checkpoint",
        field=FIELD,
        found=str(wanted),
        allowed=", ".join(there) or "none is complete",
    )


def settings_of(hyperparams: Mapping[str, Any], spec: JobSpec) -> dict[str, Any]:
    """The resolved hyperparameters with what `model.peft` says of LoRA."""
    peft = spec.spec.model.peft if spec.spec.model else None
    said = {"lora_rank": peft.dim, "lora_alpha": peft.alpha} if peft else {}
    return {**hyperparams, **{name: value for name, value in said.items() if value is not None}}


def refusals(
    then: Mapping[str, Any], spec: JobSpec, recipe: Recipe, settings: Mapping[str, Any], name: str
) -> list[Refusal]:
    """Why a run with these settings does not continue the checkpoint of manifest `then`; [] if it does as far as can be told here. Pure."""
    ranks = sum(p.nodes * p.ranks for p in spec.spec.resources.pools)
    pairs = [("method", f"{then.get('framework')}/{then['method']}", f"{recipe.framework}/{recipe.typed.name}")]
    reshaped = ranks != then["world_size"]
    for key in sorted(set(then["settings"]) & set(settings)):
        if key not in _DECIDED_THERE and not (reshaped and key in SHAPE_SETTINGS):
            pairs.append((key, then["settings"][key], settings[key]))
    out = [
        Refusal("E-SUBMIT-102", f"{key} is another than in {name}", field=FIELD, found=str(now), allowed=str(before))
        for key, before, now in pairs
        if before != now
    ]
    if reshaped:
        out += [
            Refusal("E-SUBMIT-102", f"{field} is another than in {name}", field=FIELD, found=found, allowed=allowed)
            for field, found, allowed in shape_faults(then, settings, ranks)
        ]
    return out
