"""A reference to a hub as the input of a job: the snapshot folder (or one file of it) in the shared cache, with a digest a file.

The same rules for whoever submits and whoever only looks: nothing is written, nothing is fetched. The lock decides; without an entry in it the
cache's own idea of the revision does, and the entry that comes out is what the first real submission writes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuneplane.record.digest import digest_file, is_relative

from hpc.data.hub_cache import CachedFile, Digest, commit_of, damage, missing, snapshot
from hpc.data.hub_choice import DATA
from hpc.data.hub_names import MAIN, HubCache, Repo
from hpc.data.lock import Entry, Lock, accept_command, locked_commit
from hpc.errors.core import Refusal
from hpc.spec.text import leaf_variable, visible

_SHARD = re.compile(r"(.*?)-(\d{5,})-of-(\d{5,})(\.[a-z]+)")
DEAR = 8 << 30
"""Inputs above this many bytes are recorded by size, time and owner, as paths are."""


@dataclass(frozen=True)
class HubInput:
    """`row` belongs into launch.json, `entry` into the lock."""

    row: dict[str, Any]
    entry: Entry


def hub_input(
    cache: HubCache, lock: Lock, role: str, repo: Repo, revision: str, *, field: str, exp: str, digest: Digest,
    only: Sequence[str] = (),
) -> HubInput:  # fmt: skip
    """The input `role` of experiment `exp`. `only`: some files of the repository, as data sets name them; none means all.

    Raises Refusal E-HUB-003 (`only` leads out), E-HUB-020 … E-HUB-023, E-LOCK-002 … E-LOCK-006, E-STORE-02x: each before anything is queued, each
    with the command that mends or accepts it.
    """
    for name in only:
        if not is_relative(name):
            raise Refusal("E-HUB-003", "leads out of the repository", field=field, found=visible(name))
    fetch, accept = f"tp {repo.type} prefetch {exp}", accept_command(exp, repo.type)
    locked = locked_commit(lock, role, repo, revision, field=field, accept=accept)
    if locked and not cache.snapshot(repo, locked).is_dir():
        text = f"the locked commit of {repo} is not in this cache"
        found = str(cache.snapshot(repo, locked))
        raise Refusal("E-LOCK-006", text, field=field, found=found, allowed=locked, hint=f"run: {fetch}")
    commit = locked or commit_of(cache, repo, revision, field=field, command=fetch)
    files = snapshot(cache, repo, commit, field=field, command=fetch)
    if locked:
        _against_lock(files, lock.inputs[role].files, field, fetch, accept, whole=not only)
    chosen = _chosen(files, only, field, fetch)
    for file in chosen.values():
        if found := damage(file, digest):
            text = f"{file.path} in the cache has other bytes than {'the lock' if locked else 'the hub'} says"
            code = "E-LOCK-005" if locked else "E-HUB-022"
            raise Refusal(code, text, field=field, found=found, allowed=file.digest, hint=f"run: {fetch}")
    folder = cache.snapshot(repo, commit)
    single = only[0] if len(only) == 1 else ""
    path = str(folder / single) if single else str(folder)
    named = {"" if single else p: f for p, f in chosen.items()}
    variable = f"{leaf_variable(repo.id.rpartition('/')[2])}_{'MODEL' if repo.type == 'model' else 'DATA'}_DIR"
    row = {
        "path": path, "files": _rows(named, digest), "closed": not only, "source": f"{repo}@{commit}", "variables": {variable: str(folder)},
    }  # fmt: skip
    kept = lock.inputs[role].files if locked else {p: f.digest for p, f in chosen.items()}
    requested = lock.inputs[role].requested if locked else revision or MAIN
    return HubInput(row, Entry("hf", repo.type, repo.id, requested, commit, kept))


def _chosen(files: Mapping[str, CachedFile], only: Sequence[str], field: str, fetch: str) -> dict[str, CachedFile]:
    if not only:
        if not files:
            raise missing("every file", field, fetch)
        return dict(files)
    for name in only:
        if name not in files:
            raise missing(name, field, fetch)
    return {name: files[name] for name in only}


def _against_lock(
    files: Mapping[str, CachedFile], locked: Mapping[str, str], field: str, fetch: str, accept: str, *, whole: bool
) -> None:
    for path, digest in sorted(locked.items()):
        if path not in files:
            text = f"{path} is locked and not in the cache"
            raise Refusal("E-LOCK-004", text, field=field, found=path, allowed=digest, hint=f"run: {fetch}")
        if files[path].digest != digest:
            text = f"{path} is another file than the locked one"
            found = files[path].digest
            raise Refusal("E-LOCK-005", text, field=field, found=found, allowed=digest, hint=f"run: {accept}")
    extra = sorted(files.keys() - locked.keys())
    if whole and extra:
        text = f"{extra[0]} is in the cache and not in the lock"
        raise Refusal("E-LOCK-008", text, field=field, found=", ".join(extra[:10]), hint=f"run: {accept}")


def _rows(files: Mapping[str, CachedFile], digest: Digest) -> list[dict[str, Any]]:
    dear = sum(f.size for f in files.values()) > DEAR
    rows = []
    for path, file in sorted(files.items()):
        row: dict[str, Any] = {"path": path, "size": file.size}
        if file.digest.startswith("sha256:") and not dear:
            row["sha256"] = file.digest
        elif dear:
            row |= {"mtime_ns": file.status.st_mtime_ns, "uid": file.status.st_uid}
        else:
            row["sha256"] = digest_file(os.fspath(file.blob))
        rows.append(row)
    return rows


def are_shards(names: Sequence[str]) -> bool:
    """True for all shards of one split, as hubs name them (`train-00000-of-00003.parquet`), and each of them once. Pure."""
    found = [_SHARD.fullmatch(name) for name in names]
    parts = [match.groups() for match in found if match]
    if len(parts) != len(names) or len({(stem, total, suffix) for stem, _, total, suffix in parts}) != 1:
        return False
    return sorted(int(number) for _, number, _, _ in parts) == list(range(int(parts[0][2])))


def data_files(
    cache: HubCache, lock: Lock, role: str, repo: Repo, revision: str, split: str, *, field: str, exp: str
) -> tuple[str, ...]:
    """The files of a cached data set that a source without a path means: the only one, the only one named after its split, or all its shards.

    Raises Refusal E-HUB-008 (several that are no whole set of shards), and those of `hub_input`.
    """
    fetch, accept = f"tp {repo.type} prefetch {exp}", accept_command(exp, repo.type)
    commit = locked_commit(lock, role, repo, revision, field=field, accept=accept)
    commit = commit or commit_of(cache, repo, revision, field=field, command=fetch)
    files = [p for p in snapshot(cache, repo, commit, field=field, command=fetch) if p.lower().endswith(DATA)]
    words = (split,) if split else ("train",) if role == "train" else ("validation", "valid", "dev", "test")
    for word in words:
        named = [p for p in files if word in re.split(r"[^a-z0-9]+", p.lower())]
        if len(named) == 1 or are_shards(named):
            return tuple(named)
    if not split and (len(files) == 1 or are_shards(files)):
        return tuple(files)
    allowed = ", ".join(files[:10]) or "none"
    raise Refusal("E-HUB-008", f"{repo} has {len(files)} files of data", field=field, found=split, allowed=allowed)
