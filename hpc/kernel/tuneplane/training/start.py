"""The checkpoint of another run that this one goes on from: `start` of launch.json, which `--init-from` put there. Standard library only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tuneplane.record.files import read_json
from tuneplane.training import checkpoint as disk
from tuneplane.training.refusals import refuse


def start_of(work: Path) -> dict[str, Any]:
    """The record, {} without one. Raises Refused when it cannot be read: a run must not begin anew in silence."""
    path = work / ".tuneplane" / "launch.json"
    try:
        value = read_json(path).get("start") or {}
        return {"path": Path(value["path"]), "manifest_sha256": str(value["manifest_sha256"])} if value else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise refuse("E-TRAIN-003", f"its start cannot be read: {exc}", field=f"{path}: start") from exc


def taken_from(
    start: dict[str, Any], *, share: int, of: int, together: disk.Together, moved: Callable[[], None]
) -> disk.Checkpoint:
    """That checkpoint, whole and as it was when the run was submitted; the ranks share the digests. A collective. Raises Refused on all."""
    path = start["path"]

    def look() -> str:
        try:
            found = disk.read(path)
            if found.manifest_sha256 != start["manifest_sha256"]:
                return "its manifest is not the one that the run was submitted with"
            disk.verify(found, share=share, of=of, moved=moved)
        except disk.Damaged as exc:
            return str(exc)
        return ""

    if fault := next((f for f in together(look) if f), ""):
        raise refuse("E-TRAIN-051", f"the run cannot begin there: {fault}", field="launch.json: start", found=str(path))
    return disk.read(path)
