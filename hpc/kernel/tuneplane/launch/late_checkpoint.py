"""A late input that is a checkpoint of a run that may still go on: found by the element's step, and every file compared with its manifest.

The run need not have ended, so there is no report that vouches for the bytes. What takes its place: the folder was published by one rename with a
manifest that lists every file by digest; the manifest names the run, and the attempt that wrote it ran the package that was named at submission.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tuneplane.contract.checkpointed import name_of, published
from tuneplane.contract.followups import CHECKPOINT
from tuneplane.contract.layout import RunPaths
from tuneplane.contract.schemas import CHECKPOINT as SCHEMA
from tuneplane.launch.verify import LaunchRefused
from tuneplane.record.canonical import parse_json
from tuneplane.record.digest import FileEntry, TreeError, digest_bytes, digest_file, digest_json
from tuneplane.record.files import read_bytes, read_json


def step_of(named: Mapping[str, Any], element: str) -> int:
    """The step that an element of the array evaluates. Raises LaunchRefused E-JOB-017 for an element that the package does not know."""
    steps = named.get("steps") or []
    if not (element.isascii() and element.isdecimal() and int(element) < len(steps)):
        raise LaunchRefused("E-JOB-017", f"element {element or '?'} of the evaluations of {len(steps)} checkpoints")
    return int(steps[int(element)])


def await_published(
    run: RunPaths, step: int, lag_s: float, sleep: Callable[[float], None], clock: Callable[[], float]
) -> None:
    """Another node published it a moment ago; a mount may show it late."""
    until = clock() + lag_s
    while run.root.is_dir() and published(run, step) is None and clock() < until:
        sleep(1.0)


def resolve_checkpoint(name: str, named: Mapping[str, Any], run: RunPaths, step: int) -> dict[str, Any]:
    """The record of the checkpoint for late.json. Raises LaunchRefused E-JOB-051 (not there), E-JOB-052 (not what was recorded)."""

    def no(code: str, why: str) -> LaunchRefused:
        return LaunchRefused(code, f"input {name}: {named['run_id']} ({named['exp']}) {why}")

    folder = run.checkpoints / name_of(step)
    try:
        if os.lstat(run.root).st_uid != os.getuid():
            raise no("E-JOB-052", "belongs to another user")
        data = read_bytes(folder / "manifest.json", limit=64 << 20)
        manifest = parse_json(data)
    except OSError as exc:
        raise no(
            "E-JOB-051", f"has no checkpoint of step {step}: it was never written, or was pruned ({exc.strerror})"
        ) from exc
    except ValueError as exc:
        raise no("E-JOB-052", f"has a checkpoint of step {step} with a damaged manifest: {exc}") from exc
    try:
        rows = _verified(folder, manifest, run, step)
        package = read_json(run.attempt(int(manifest["attempt"])).start).get("package_digest")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise no("E-JOB-052", f"has a checkpoint of step {step} that is not what its manifest says: {exc}") from exc
    if package != named["package_digest"]:
        raise no("E-JOB-052", f"has another package: spec={named['package_digest']} actual={package}")
    return {
        "run_id": named["run_id"], "exp": named["exp"], "attempt": int(manifest["attempt"]), "artefact": CHECKPOINT, "step": step,
        "path": str(folder), "files": rows, "digest": digest_json([[r["path"], r["sha256"]] for r in rows]),
        "report": str(folder / "manifest.json"), "report_sha256": digest_bytes(data),
    }  # fmt: skip


def _verified(folder: Path, manifest: Any, run: RunPaths, step: int) -> list[dict[str, Any]]:
    """The checkpoint's files, each read and compared. Raises OSError, ValueError, KeyError or TypeError."""
    if (manifest["schema"], manifest["run_id"], manifest["step"]) != (SCHEMA, run.run_id, step):
        raise ValueError(f"it is one of {manifest['run_id']} at step {manifest['step']}")
    rows = []
    for value in manifest["files"]:
        try:
            entry = FileEntry.from_json(value)
        except TreeError as exc:
            raise ValueError(str(exc)) from exc
        if (found := digest_file(folder / entry.path)) != entry.sha256:
            raise ValueError(f"{entry.path} changed: spec={entry.sha256} actual={found}")
        rows.append({"path": entry.path, "size": entry.size, "sha256": found})
    if not rows:
        raise ValueError("it lists no files")
    return sorted(rows, key=lambda row: str(row["path"]))
