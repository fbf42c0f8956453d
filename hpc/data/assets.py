"""What the shared cache holds: one row a commit, and every byte of it read again on request.

A file is good if it is there, of the recorded length, and has the digest that the hub announced. A damaged record, or one that says something else
than the names in the cache, is a finding, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

from hpc.data.hub_cache import CachedFile, commit_of, damage, not_downloaded, snapshot
from hpc.data.hub_choice import RemoteFile
from hpc.data.hub_manifest import Manifest, manifests
from hpc.data.hub_names import HubCache, Repo, RepoType, parse_repo
from hpc.errors.core import Refusal

READERS = 2


@dataclass(frozen=True)
class Asset:
    """One commit in the cache, as all users' records tell of it. `newest`: when it was fetched last; `requested`: the names it was asked by."""

    repo: Repo
    commit: str
    files: tuple[RemoteFile, ...]
    users: tuple[str, ...]
    requested: tuple[str, ...]
    newest: str
    locks: tuple[str, ...]

    @property
    def size(self) -> int:
        return sum(f.size for f in {f.digest: f for f in self.files}.values())

    def as_json(self, cache: HubCache) -> dict[str, Any]:
        return {
            "type": self.repo.type, "repo": str(self.repo), "commit": self.commit, "requested": list(self.requested), "size": self.size,
            "files": len(self.files), "users": list(self.users), "fetched_at": self.newest, "locks": list(self.locks),
            "path": str(cache.snapshot(self.repo, self.commit)),
        }  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong. `kind`: changed, missing or layout; `found`: what is there instead."""

    repo: Repo
    commit: str
    path: str
    kind: Literal["changed", "missing", "layout"]
    found: str
    wanted: str

    def __str__(self) -> str:
        words = {
            "changed": f"has other bytes: {self.found}, not {self.wanted}",
            "missing": "is missing",
            "layout": self.found,
        }
        return f"{self.repo}@{self.commit}/{self.path}: {words[self.kind]}"

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "repo": str(self.repo), "type": self.repo.type}


def assets(cache: HubCache, repo: Repo | None = None) -> list[Asset]:
    """Every recorded commit, the one fetched last first. Raises Refusal E-STORE-02x."""
    found: dict[tuple[str, str, str], list[Manifest]] = {}
    for one in manifests(cache, repo):
        found.setdefault((one.repo.type, one.repo.id, one.commit), []).append(one)
    rows = [_asset(group) for group in found.values()]
    return sorted(rows, key=lambda a: (a.newest, a.repo.id, a.commit), reverse=True)


def _asset(group: Sequence[Manifest]) -> Asset:
    files = {f.path: f for one in group for f in one.files}
    return Asset(
        group[0].repo,
        group[0].commit,
        tuple(files[p] for p in sorted(files)),
        tuple(sorted({one.user for one in group})),
        tuple(sorted({one.requested for one in group})),
        max(one.fetched_at for one in group),
        tuple(sorted({lock for one in group for lock in one.locks})),
    )


def find(cache: HubCache, text: str, kind: RepoType | None = None) -> Asset:
    """The asset that `[hf:]ORG/NAME[@revision]` means; without a revision the one fetched last.

    Raises Refusal E-SPEC-026, E-HUB-002, E-HUB-020 (with the command that fetches it), E-HUB-007 (a model and a data set of that name).
    """
    kinds: tuple[RepoType, ...] = (kind,) if kind else ("model", "dataset")
    named = text if ":" in text else f"hf:{text}"
    hits = []
    for each in kinds:
        if "/" not in named and each == "dataset":
            continue
        repo, revision = parse_repo(named, each, "REPO")
        rows = assets(cache, repo)
        if revision and rows:
            commit = commit_of(cache, repo, revision)
            rows = [a for a in rows if a.commit == commit]
        hits += rows[:1]
    if len(hits) > 1:
        raise Refusal("E-HUB-007", f"{text} is a model and a data set", field="REPO", found=text, allowed="--type")
    if not hits:
        repo, revision = parse_repo(named, kinds[0], "REPO")
        raise not_downloaded(repo, revision)
    return hits[0]


def verify(cache: HubCache, rows: Sequence[Asset]) -> Iterator[tuple[Asset, list[Finding]]]:
    """Each asset with what is wrong with it; every byte is read. Raises Refusal E-STORE-02x where something cannot be read."""
    with ThreadPoolExecutor(READERS) as pool:
        for asset in rows:
            yield asset, _verify(cache, asset, pool)


def _verify(cache: HubCache, asset: Asset, pool: ThreadPoolExecutor) -> list[Finding]:
    repo, commit = asset.repo, asset.commit
    try:
        there = snapshot(cache, repo, commit)
    except Refusal as fault:
        if not fault.code.startswith("E-HUB-"):
            raise
        kind: Literal["missing", "layout"] = "layout" if fault.code == "E-HUB-023" else "missing"
        path = str(fault.found or "") if fault.code == "E-HUB-021" else ""
        return [Finding(repo, commit, path, kind, fault.message, "")]
    out = [
        Finding(repo, commit, f.path, "missing", "", f.digest) if f.path not in there else
        Finding(repo, commit, f.path, "changed", there[f.path].digest, f.digest)
        for f in asset.files
        if f.path not in there or there[f.path].digest != f.digest
    ]  # fmt: skip
    unique: dict[str, CachedFile] = {f.blob.name: f for f in there.values()}
    for file, found in zip(unique.values(), pool.map(damage, unique.values()), strict=True):
        if found:
            out.append(Finding(repo, commit, file.path, "changed", found, file.digest))
    return out
