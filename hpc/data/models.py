"""Models on the shelf: `registry/models/<owner>/<name>/<version>`, immutable, with what they are and where they come from.

The bytes are copied onto the shelf once and read back once; nothing is linked, so no later change of a run's folder reaches a model. A version is
what its record says: architecture, parameters, tokenizer, and the run, attempt, export and base model that it was made from.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import tuneplane
from tuneplane.contract.layout import RunPaths, StorageRoot
from tuneplane.record.digest import digest_file, is_relative
from tuneplane.record.files import read_json

from hpc.data.model_check import check_model
from hpc.errors.core import Refusal
from hpc.registry.kinds import Checked, Kind
from hpc.registry.publish import Published, publish
from hpc.registry.shapes import Named
from hpc.registry.shelf import RECORD
from hpc.site.users import User
from hpc.spec.text import segment, visible

if TYPE_CHECKING:
    from hpc.site.sitefile import Site

MAX_BYTES: Final = 8 << 40
MAX_FILES: Final = 4096
FINAL: Final = "final"
PARTS: Final = {"final": "artefact", "export": "artefact", "adapter": "adapter"}
"""What of a run can be registered → where its result.json describes it. `export` and `adapter` are those of an export's run."""
FACTS: Final = {
    "form": str,
    **dict.fromkeys(("model_type?", "peft_type?", "base_model?", "base_revision?", "tokenizer?"), str),
    "architectures?": [str],
    "lora_targets?": [str],
    **dict.fromkeys(("parameters?", "tensors?"), int),
    **dict.fromkeys(("config?", "dtypes?", "lora?"), Named(int)),
    "lineage?": {},
}
"""What readers of a record rely on, whoever wrote it."""


def _standing(content: Path) -> Checked:
    """A version that stands on the shelf: its place says who it is, its bytes what it is, and only its record where it comes from."""
    folder = content.parent
    lineage = _record(folder / RECORD).get("facts", {}).get("lineage", {})
    return Checked(folder.parent.name, folder.name, {**check_model(content), "lineage": lineage})


MODEL: Final = Kind("model", "models", _standing, MAX_BYTES, MAX_FILES, FACTS)
"""For whoever reads the shelf. Publishing needs a name, a version and a lineage: `model_kind`."""


def model_kind(name: str, version: str, lineage: Mapping[str, Any]) -> Kind:
    """The kind under which one folder is published. Raises (when it checks) the refusals of `check_model`."""

    def check(folder: Path) -> Checked:
        return Checked(name, version, {**check_model(folder), "lineage": dict(lineage)})

    return Kind(MODEL.name, MODEL.shelf, check, MAX_BYTES, MAX_FILES, FACTS)


def register(
    root: StorageRoot, site: Site, folder: Path, name: str, version: str, *, user: User, now: str, lineage: Mapping[str, Any], owner: str = ""
) -> Published:  # fmt: skip
    """Publish a model's folder. Raises Refusal E-SPEC-017, E-MODEL-042, those of `check_model` and of `hpc.registry.publish.publish`."""
    segment(name, "NAME")
    segment(version, "VERSION")
    owner = owner or user.name
    if os.path.lexists(channels_of(root, owner, name) / version):
        raise Refusal("E-MODEL-042", f"{version} is a channel of {owner}/{name}", field="VERSION", found=version)
    return publish(
        root, model_kind(name, version, lineage), folder, user=user, owner=owner, site=site, method="publish",
        core_version=tuneplane.__version__, now=now,
    )  # fmt: skip


def channels_of(root: StorageRoot, owner: str, name: str) -> Path:
    """Where a model's channels are kept, a folder each."""
    return root.registry / "channels" / owner / name


def of_folder(folder: Path, base: str = "") -> dict[str, Any]:
    """The lineage of a folder that no run of this root made."""
    return {"source": "folder", "base": base, "given": visible(str(folder), 400)}


def of_run(run: RunPaths, attempt: int | None = None, part: str = FINAL) -> tuple[Path, dict[str, Any]]:
    """(folder, lineage) of what a run that ended well left: `final` of a training, `export` or `adapter` of an export.

    Every file is compared with the digest that the run recorded. The lineage is the training run's, with the gates that it was to be judged by.
    Raises Refusal E-MODEL-030 (no success, no such artefact), E-MODEL-031 (another file than the run made).
    """
    number = _last_success(run, attempt)
    paths = run.attempt(number)
    launch, spec, result = _record(run.launch), _record(run.jobspec), _record(paths.out / "result.json")
    described = result.get(PARTS[part]) or {}
    folder = paths.out / str(described.get("path") or FINAL)
    if (
        not folder.is_dir()
        or (part != FINAL and not described)
        or is_relative(str(described.get("path") or FINAL)) is False
    ):
        raise Refusal("E-MODEL-030", f"{run.run_id} left no {part}", field=str(folder), found=f"attempt {number}")
    recorded = described.get("files") or []
    for row in recorded:
        path = folder / str(row["path"])
        found = digest_file(path) if os.path.lexists(path) else "missing"
        if found != row["sha256"]:
            text = f"{row['path']} is not the file that the run made"
            raise Refusal("E-MODEL-031", text, field=str(path), found=found, allowed=str(row["sha256"]))
    model = launch.get("inputs", {}).get("model") or {}
    lineage = {
        "source": "run",
        "run_id": run.run_id,
        "owner": run.owner,
        "exp": run.exp,
        "attempt": number,
        "recorded": bool(recorded),
        "recipe": _body(spec, "recipe", "name"),
        "base": _body(spec, "model", "base"),
        "base_source": str(model.get("source") or model.get("path") or ""),
        "base_files": {str(f["path"]): str(f.get("sha256", "")) for f in model.get("files", []) if f.get("sha256")},
        "git_commit": str((spec.get("provenance") or {}).get("git_commit") or ""),
        "sif": str((launch.get("runtime") or {}).get("sha256") or ""),
        "evaluation": (spec.get("spec") or {}).get("evaluation") or {},
    }
    return folder, _of_training(run, launch, result, lineage, part)


def _of_training(
    run: RunPaths, launch: Mapping[str, Any], result: Mapping[str, Any], lineage: dict[str, Any], part: str
) -> dict[str, Any]:
    """An export's lineage is that of the run that was trained, and names the export."""
    follows, of = launch.get("follows"), result.get("of") or {}
    if not isinstance(follows, dict):
        return lineage
    trained = RunPaths(run.root.parent.parent / str(follows["exp"]) / str(follows["run_id"]))
    export = {"run_id": run.run_id, "exp": run.exp, "attempt": lineage["attempt"], "part": part}
    evaluation = (_record(trained.jobspec).get("spec") or {}).get("evaluation") or {}
    named = {"run_id": trained.run_id, "exp": trained.exp, "attempt": of.get("attempt", 0), "evaluation": evaluation}
    return {**lineage, **named, "export": export}


def _body(spec: Mapping[str, Any], *keys: str) -> str:
    value: Any = spec.get("spec") or {}
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return str(value or "")


def _record(path: Path) -> dict[str, Any]:
    try:
        value = read_json(path)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as exc:
        raise Refusal("E-MODEL-030", f"cannot be read: {exc}"[:200], field=str(path)) from exc
    return value if isinstance(value, dict) else {}


def _last_success(run: RunPaths, attempt: int | None = None) -> int:
    """The newest attempt that ended well, or the one that is named if it did."""
    try:
        numbers = sorted((int(n) for n in os.listdir(run.attempts) if n.isdigit()), reverse=True)
    except OSError:
        numbers = []
    said = ""
    for number in numbers:
        if attempt not in (None, number):
            continue
        said = str(_record(run.attempt(number).end).get("class") or "has not ended")
        if said == "done":
            return number
    name = run.run_id if attempt is None else f"attempt {attempt} of {run.run_id}"
    raise Refusal(
        "E-MODEL-030", f"{name} did not end well", field=run.run_id, found=said or "no attempt", allowed="done"
    )
