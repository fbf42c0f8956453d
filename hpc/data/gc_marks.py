"""What holds on to a cached commit: runs, models, lock files. Read from the files alone; what cannot be read holds on to everything."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from tuneplane.contract.layout import StorageRoot

from hpc.data.hub_manifest import Manifest, manifests
from hpc.data.hub_names import HubCache
from hpc.data.lock import LOCK_NAME, read_lock
from hpc.data.uses import runs
from hpc.errors.core import Refusal
from hpc.registry.shelf import RECORD, is_segment

_COMMIT = re.compile(rb"(?<![0-9a-f])[0-9a-f]{40}(?![0-9a-f])")
MAX_RECORD = 64 << 20


@dataclass
class Marks:
    """`commits`: 40 digits → one who names them; `closed`: what could not be read, so that nobody can say what it names."""

    commits: dict[str, str] = field(default_factory=dict)
    closed: list[str] = field(default_factory=list)

    def holder(self, commit: str) -> str:
        """Who holds on to the commit, "" if nobody does."""
        if commit in self.commits:
            return self.commits[commit]
        return f"perhaps {self.closed[0]}, which cannot be read" if self.closed else ""


def marks(cache: HubCache) -> Marks:
    """Every commit that a run, a model or a lock names. Costs a look at every run of the root; raises Refusal E-STORE-02x for the cache itself."""
    out = Marks()
    root = cache.root
    for run in runs(root, out.closed):
        for path in (run.launch, run.jobspec, *sorted(run.work.glob(f"experiments/**/{LOCK_NAME}"))):
            _read(root, path, f"run {run.owner}/{run.exp}/{run.run_id}", out)
    for path in _records(root, out):
        _read(root, path, f"model {path.parent.parent.parent.name}/{path.parent.parent.name}@{path.parent.name}", out)
    for manifest in manifests(cache):
        for text in manifest.locks:
            _lock(manifest, Path(text), out)
    return out


def _read(root: StorageRoot, path: Path, who: str, out: Marks) -> None:
    try:
        with open(path, "rb") as stream:
            data = stream.read(MAX_RECORD)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError:
        out.closed.append(os.path.relpath(path, root.path))
        return
    for commit in _COMMIT.findall(data):
        out.commits.setdefault(commit.decode(), who)


def _records(root: StorageRoot, out: Marks) -> list[Path]:
    shelf, found = root.shelf("models"), []
    for base, folders, _ in os.walk(shelf, onerror=lambda exc: out.closed.append(str(exc.filename))):
        folders[:] = sorted(f for f in folders if is_segment(f))
        if len(Path(base).relative_to(shelf).parts) == 3:
            folders.clear()
            found.append(Path(base) / RECORD)
    return found


def _lock(manifest: Manifest, path: Path, out: Marks) -> None:
    """A lock that is gone names nothing; one that cannot be read, or that others may not see, names the commit it was made for."""
    try:
        entries = read_lock(path.parent).inputs.values() if path.name == LOCK_NAME else ()
        if not entries:
            os.stat(path.parent)
    except FileNotFoundError:
        return
    except (Refusal, OSError):
        out.commits.setdefault(manifest.commit, f"lock {path}")
        return
    for entry in entries:
        out.commits.setdefault(entry.commit, f"lock {path}")
