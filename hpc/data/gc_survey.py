"""What can be removed below a storage root, why, and how much it is. Looks only.

    litter      temporary names of writers that died: publishers, prefetchers, removals that were cut
    part        partial downloads whose writer is gone
    claim       claims of prefetchers that are gone
    commit      commits in the hub cache that no run, no model and no lock names
    blob        files of the cache that no commit leads to
    run         packages that were made and never submitted
    admitted    the service user's copies of such packages
    checkpoint  checkpoints of runs that have ended, kept for an evaluation that has ended, too

Nothing younger than MIN_AGE_S is touched, commits not before `keep_s`. What others could be writing, and what cannot be read, stays.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tuneplane.contract.checkpointed import evaluations_of, job_of, name_of, pinned
from tuneplane.contract.layout import RUN_ID, RunPaths, StorageRoot
from tuneplane.record.files import read_json

from hpc.data.gc_marks import Marks, marks
from hpc.data.hub_claims import is_stale_claim
from hpc.data.hub_fetch import part_is_dead
from hpc.data.hub_names import HubCache, Repo, digest_of_blob, is_commit, repo_of_folder
from hpc.data.uses import runs
from hpc.registry.shelf import is_litter
from hpc.site.plan import SHELVES

MIN_AGE_S: Final = 86_400
KEEP_S: Final = 30 * 86_400


@dataclass(frozen=True)
class Item:
    """One thing that can go. `size`: bytes that come free; `uid`: whose it is; `repo`: of a commit or blob."""

    kind: str
    path: Path
    why: str
    size: int
    uid: int
    repo: Repo | None = None

    def as_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "path": str(self.path), "why": self.why, "size": self.size, "uid": self.uid}


@dataclass
class Survey:
    """`items` can go; `kept` says of cached commits who holds on to them; `closed` could not be read."""

    items: list[Item] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    closed: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        return sum(i.size for i in self.items)


def survey(root: StorageRoot, *, now_s: float, keep_s: float = KEEP_S) -> Survey:
    """Everything that can be removed at `now_s` (seconds since 1970). Raises Refusal E-STORE-02x where the cache's own folders cannot be listed."""
    out = Survey()
    cache = HubCache(root)
    held = marks(cache)
    out.closed = sorted(set(held.closed))
    out.items += _litter(root, now_s)
    out.items += _unsubmitted(root, now_s)
    out.items += _unsubmitted_copies(root, now_s)
    out.items += _evaluated(root, now_s)
    for folder in _names(cache.hub):
        repo = repo_of_folder(folder)
        if repo is not None:
            _repository(cache, repo, held, now_s, keep_s, out)
    for name in _names(cache.claims):
        if is_litter(name):
            continue
        path = cache.claims / name
        if (found := _old(path, now_s, MIN_AGE_S)) or is_stale_claim(path):
            found = found or _lstat(path)
            if found:
                out.items.append(Item("claim", path, "its prefetch is gone", found.st_size, found.st_uid))
    return out


def _litter(root: StorageRoot, now_s: float) -> Iterator[Item]:
    """Temporary names on the shelves, in the cache and among runs."""
    tops = [(root.shelf(s), 2) for s in SHELVES] + [
        (root.cache / "hf", 6),
        (root.runs, 2),
        (root.registry / "channels", 3),
    ]
    for top, depth in tops:
        for path in _walk(top, depth):
            name = path.name
            refused = name.startswith(".run-") and name.endswith(".refused")
            if (is_litter(name) or refused) and (found := _old(path, now_s, MIN_AGE_S)):
                yield Item("litter", path, "its writer died", _size(path), found.st_uid)


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    for name in _names(folder):
        path = folder / name
        yield path
        found = _lstat(path)
        if depth and found and stat.S_ISDIR(found.st_mode) and not is_litter(name):
            yield from _walk(path, depth - 1)


def _unsubmitted(root: StorageRoot, now_s: float) -> Iterator[Item]:
    for owner in _names(root.runs):
        for exp in _names(root.owner_runs(owner)):
            for run_id in _names(root.owner_runs(owner) / exp):
                run = root.run(owner, exp, run_id)
                if not RUN_ID.match(run_id) or not (found := _old(run.root, now_s, MIN_AGE_S)):
                    continue
                if _never_began(run) and _no_intent(root, owner, run_id):
                    yield Item("run", run.root, "packed and never submitted", _size(run.root), found.st_uid)


def _unsubmitted_copies(root: StorageRoot, now_s: float) -> Iterator[Item]:
    """Copies that an enforced admission made for runs which never began. One whose run is gone stays: it says that there was a run."""
    old = {name: found for name in _names(root.admitted) if (found := _old(root.admitted / name, now_s, MIN_AGE_S))}
    for run in runs(root, []) if old else ():
        if run.run_id in old and _never_began(run) and _no_intent(root, run.owner, run.run_id):
            path = root.admitted / run.run_id
            yield Item("admitted", path, "of a run that was never submitted", _size(path), old[run.run_id].st_uid)


def _evaluated(root: StorageRoot, now_s: float) -> Iterator[Item]:
    """Checkpoints that only an evaluation kept: beyond those that their run keeps, and not what another run begins with."""
    found = [path for run in runs(root, []) if _names(run.evaluations) for path in _beyond(run)]
    begun = {_start(run) for run in runs(root, [])} if found else set()
    for path in found:
        if str(path) not in begun and (told := _old(path, now_s, MIN_AGE_S)):
            why = "its writer died" if is_litter(path.name) else "its evaluation has ended, and its run keeps others"
            yield Item("litter" if is_litter(path.name) else "checkpoint", path, why, _size(path), told.st_uid)


def _beyond(run: RunPaths) -> list[Path]:
    """Such folders of a run that has ended, and what removals of them left; none where a record cannot be read."""
    try:
        last = max(int(name) for name in os.listdir(run.attempts) if name.isascii() and name.isdecimal())
        ended = run.report.exists() or read_json(run.attempt(last).end)["requeue"] is False
        keep = int(read_json(run.launch)["hyperparams"]["keep_checkpoints"])
        if (asked := evaluations_of(run)) is not None:
            job_of(asked.run)  # what cannot be read pins nothing, and here it keeps
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
    if not ended or asked is None:
        return []
    steps = [name for name in _names(run.checkpoints) if name.startswith("step-") and name[5:].isdecimal()]
    steps.sort(key=lambda name: int(name[5:]), reverse=True)
    held = {name_of(step) for step in pinned(run)}
    litter = [run.checkpoints / name for name in _names(run.checkpoints) if is_litter(name)]
    return litter + [run.checkpoints / name for name in steps[max(1, keep) :] if name not in held]


def _start(run: RunPaths) -> str:
    """The checkpoint that a run begins with, "" for none."""
    try:
        return str((read_json(run.launch).get("start") or {}).get("path", ""))
    except (OSError, ValueError, AttributeError):
        return ""


def _never_began(run: RunPaths) -> bool:
    """True if the run's folder can be looked into and holds no submission and no attempt."""
    return _may_list(run.root) and not any(map(_names, (run.submissions, run.attempts, run.array)))


def _no_intent(root: StorageRoot, owner: str, run_id: str) -> bool:
    """True if the owner's intents can be read and none is about the run: an open one may still become a job."""
    folder = root.user_state(owner) / "intents"
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return os.access(folder.parent, os.R_OK | os.X_OK)
    except OSError:
        return False
    return not any(run_id in name for name in names)


def _repository(cache: HubCache, repo: Repo, held: Marks, now_s: float, keep_s: float, out: Survey) -> None:
    blobs, used, gone = cache.blobs(repo), set(), []
    for commit in filter(is_commit, _names(cache.repo(repo) / "snapshots")):
        folder = cache.snapshot(repo, commit)
        links = {os.path.basename(os.path.realpath(p)) for p in _walk(folder, 8) if p.is_symlink()}
        holder = held.holder(commit)
        found = _lstat(folder)
        if holder or found is None or now_s - _newest(cache, repo, folder, found) <= keep_s:
            out.kept[f"{repo}@{commit}"] = holder or "fetched lately"
            used |= links
        else:
            gone.append((folder, commit, links, found.st_uid))
    freed: set[str] = set()
    for folder, commit, links, uid in gone:
        mine = links - used - freed
        freed |= mine
        size = sum(s.st_size for n in mine if (s := _lstat(blobs / n)))
        out.items.append(Item("commit", folder, f"{repo}@{commit[:12]} is named by nobody", size, uid, repo))
    for name in _names(blobs):
        path = blobs / name
        found = _lstat(path)
        if found is None or name in used or name in freed:
            continue
        if name.endswith(".part"):
            if part_is_dead(name) or _old(path, now_s, MIN_AGE_S):
                out.items.append(Item("part", path, "a download that nobody goes on with", found.st_size, found.st_uid))
        elif digest_of_blob(name) and _old(path, now_s, MIN_AGE_S):
            out.items.append(Item("blob", path, "no commit leads to it", found.st_size, found.st_uid, repo))


def _newest(cache: HubCache, repo: Repo, folder: Path, found: os.stat_result) -> float:
    """When the commit was fetched last: by its links, or by a user's record where all of it was there."""
    assets = cache.assets / repo.folder
    records = [assets / n for n in _names(assets) if n.startswith(f"{folder.name}.")]
    return max([found.st_mtime, *(s.st_mtime for p in [*_walk(folder, 8), *records] if (s := _lstat(p)))])


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _may_list(folder: Path) -> bool:
    try:
        os.listdir(folder)
    except OSError:
        return False
    return True


def _lstat(path: Path) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def _old(path: Path, now_s: float, age_s: float) -> os.stat_result | None:
    found = _lstat(path)
    return found if found is not None and now_s - found.st_mtime > age_s else None


def _size(path: Path) -> int:
    found = _lstat(path)
    if found is None or not stat.S_ISDIR(found.st_mode):
        return found.st_size if found else 0
    return sum(s.st_size for p in _walk_all(path) if (s := _lstat(p)) and stat.S_ISREG(s.st_mode))


def _walk_all(folder: Path) -> Iterator[Path]:
    for base, _, names in os.walk(folder):
        for name in names:
            yield Path(base) / name
