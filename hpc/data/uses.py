"""Who names a version: runs (their spec, their launch record, the lock files that travelled with them) and the records of models.

A search for the exact reference in these files, so that a form which this release does not know is found as well. What the caller cannot read
is told apart: it may name the version too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tuneplane.contract.layout import RUN_ID, RunPaths, StorageRoot

from hpc.registry.shelf import RECORD, is_segment

MAX_RECORD = 64 << 20
_LOCK = re.compile(r".*lock.*\.json")


@dataclass
class Uses:
    """`named`: what names it, as paths below the root; `closed`: folders that could not be read."""

    named: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)


def uses_of(root: StorageRoot, ref: str) -> Uses:
    """Everything that names `ref`. Reads only; costs a look at every run of the root. Never raises for what it cannot read."""
    out = Uses()
    pattern = re.compile(rb"(?<![A-Za-z0-9._/-])" + re.escape(ref.encode()) + rb"(?![A-Za-z0-9._-])")
    for run in runs(root, out.closed):
        for path in _run_records(run, out.closed, root):
            if _names(path, pattern, out.closed, root):
                out.named.append(_below(root, path))
                break
    for path in _model_records(root, out.closed):
        if _names(path, pattern, out.closed, root):
            out.named.append(_below(root, path))
    return out


def runs(root: StorageRoot, closed: list[str]) -> Iterator[RunPaths]:
    """Every run below the root, in order of names."""
    for owner in _list(root, root.runs, closed):
        for exp in _list(root, root.owner_runs(owner), closed):
            for run_id in _list(root, root.owner_runs(owner) / exp, closed):
                if RUN_ID.match(run_id):
                    yield root.run(owner, exp, run_id)


def _run_records(run: RunPaths, closed: list[str], root: StorageRoot) -> Iterator[Path]:
    yield run.jobspec
    yield run.launch
    experiments = run.work / "experiments"
    for folder, folders, names in os.walk(experiments, onerror=lambda exc: _close(exc, closed, root)):
        folders.sort()
        for name in sorted(names):
            if _LOCK.fullmatch(name):
                yield Path(folder) / name


def _close(exc: OSError, closed: list[str], root: StorageRoot) -> None:
    if isinstance(exc, PermissionError):
        closed.append(_below(root, Path(exc.filename)))


def _model_records(root: StorageRoot, closed: list[str]) -> Iterator[Path]:
    shelf = root.shelf("models")
    for owner in _list(root, shelf, closed):
        for name in _list(root, shelf / owner, closed):
            for version in _list(root, shelf / owner / name, closed):
                yield shelf / owner / name / version / RECORD


def _list(root: StorageRoot, folder: Path, closed: list[str]) -> list[str]:
    try:
        return sorted(n for n in os.listdir(folder) if is_segment(n))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError:
        closed.append(_below(root, folder))
        return []


def _names(path: Path, pattern: re.Pattern[bytes], closed: list[str], root: StorageRoot) -> bool:
    try:
        with open(path, "rb") as stream:
            return pattern.search(stream.read(MAX_RECORD)) is not None
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        closed.append(_below(root, path))
        return False


def _below(root: StorageRoot, path: Path) -> str:
    return os.path.relpath(path, root.path)
