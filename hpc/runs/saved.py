"""The check of an audit on checkpoints: each folder against its manifest, and the manifest against the closing event that names it.

Checkpoints come and go while a run goes on: one that is gone was pruned, and accuses nobody. Standard library only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tuneplane.contract.layout import RunPaths
from tuneplane.record.digest import FileEntry, TreeError
from tuneplane.record.events import Chain

from hpc.runs.evidence import Case

CHECK: Final = "checkpoints"
MANIFEST: Final = "manifest.json"
_STEP: Final = re.compile(r"step-[0-9]{9,}")


def check_checkpoints(case: Case, part: RunPaths, chains: Mapping[str, Chain]) -> None:
    """Every checkpoint that is there: sizes, in a deep audit digests, and for the last one of each attempt its manifest's digest."""
    recorded = dict(filter(None, map(_recorded, chains.values())))
    for name in case.names(CHECK, part.checkpoints):
        if _STEP.fullmatch(name):
            _one(case, part.checkpoints / name, recorded.get(name))


def _recorded(chain: Chain) -> tuple[str, str] | None:
    """(folder, digest of its manifest) that an attempt's closing event names."""
    for event in reversed(chain.events):
        details = event.get("details")
        told = details.get("checkpoint") if isinstance(details, dict) and "end_sha256" in details else None
        if isinstance(told, dict):
            return str(told.get("path")), str(told.get("manifest_sha256"))
    return None


def _one(case: Case, folder: Path, recorded: str | None) -> None:
    path = folder / MANIFEST
    found = case.digest(CHECK, path)
    if found is None:
        if recorded is not None and folder.is_dir():
            case.gone(CHECK, path, "is gone; the closing event names it")
        return
    if recorded is not None and found != recorded:
        case.tampered(CHECK, path, f"was changed: recorded {recorded}, found {found}")
    manifest = case.json(CHECK, path)
    try:
        files = [FileEntry.from_json(e) for e in (manifest or {"files": []})["files"]]
    except (KeyError, TypeError, TreeError) as exc:
        case.tampered(CHECK, path, f"is not the list of a checkpoint: {exc}")
        return
    for entry in files:
        if not _file(case, folder, entry):
            return


def _file(case: Case, folder: Path, entry: FileEntry) -> bool:
    """Compare one file; False where the whole folder went meanwhile."""
    path = folder / entry.path
    try:
        size = os.lstat(path).st_size
        same = size == entry.size and (not case.deep or case.file_digest(path) == entry.sha256)
    except FileNotFoundError:
        if not folder.is_dir():
            return False
        case.tampered(CHECK, path, "is gone")
    except OSError as exc:
        case.failed(CHECK, path, exc)
    else:
        case.listed += size if size == entry.size else 0
        if not same:
            case.tampered(CHECK, path, "was changed" if size == entry.size else f"has {size} bytes, not {entry.size}")
    return True
