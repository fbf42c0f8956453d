"""What one user fetched of one commit: `cache/hf/assets/<repository>/<commit>.<user>.json`. One writer a file, so two users never race.

The record says what was announced and stored, and which lock files count on it. Whether the bytes still are that is `hpc.data.assets`' question;
what a job may use is the lock's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tuneplane.record import files as record_files
from tuneplane.record.canonical import CanonicalError, parse_json, pretty_bytes
from tuneplane.record.digest import is_relative

from hpc.data.hub_choice import RemoteFile
from hpc.data.hub_names import HubCache, Repo, is_commit, is_content_digest, repo_of_folder
from hpc.data.hub_store import share_folder
from hpc.store.faults import refusal

SCHEMA = "tuneplane-hpc/asset/v1"


@dataclass(frozen=True)
class Manifest:
    """One user's record of one commit. `requested`: the revision as it was asked for; `locks`: absolute paths of lock files."""

    repo: Repo
    commit: str
    requested: str
    endpoint: str
    user: str
    fetched_at: str
    files: tuple[RemoteFile, ...]
    left_out: Mapping[str, int]
    locks: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return sum(f.size for f in self.files)

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA, "hub": "hf", "type": self.repo.type, "repo": self.repo.id, "commit": self.commit, "requested": self.requested,
            "endpoint": self.endpoint, "user": self.user, "fetched_at": self.fetched_at, "left_out": dict(self.left_out),
            "files": {f.path: {"size": f.size, "digest": f.digest} for f in self.files}, "locks": sorted(self.locks),
        }  # fmt: skip


def write(cache: HubCache, manifest: Manifest) -> None:
    """Write the user's record; what they fetched of the commit earlier, and the locks that count on it, stay in it. Raises Refusal E-STORE-02x."""
    folder = cache.assets / manifest.repo.folder
    share_folder(folder)
    path = folder / f"{manifest.commit}.{manifest.user}.json"
    earlier = _read(path, manifest.repo)
    if earlier is not None:
        merged = {f.path: f for f in (*earlier.files, *manifest.files)}
        locks = tuple(sorted({*earlier.locks, *manifest.locks}))
        manifest = replace(manifest, files=tuple(merged[p] for p in sorted(merged)), locks=locks)
    try:
        record_files.replace(path, pretty_bytes(manifest.as_json()), mode=0o644)
    except OSError as exc:
        raise refusal(exc, path, "write") from exc


def manifests(cache: HubCache, repo: Repo | None = None) -> Iterator[Manifest]:
    """Every readable record, of one repository or of all, by repository, commit and user. Damaged ones are passed over."""
    for folder in [repo.folder] if repo else _names(cache.assets):
        owner = repo_of_folder(folder)
        for name in _names(cache.assets / folder) if owner else []:
            commit, _, rest = name.partition(".")
            if owner and is_commit(commit) and rest.endswith(".json"):
                found = _read(cache.assets / folder / name, owner)
                if found is not None and found.commit == commit:
                    yield found


def _names(folder: os.PathLike[str]) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as exc:
        raise refusal(exc, folder, "list") from exc


def _read(path: os.PathLike[str], repo: Repo) -> Manifest | None:
    try:
        value = parse_json(record_files.read_bytes(path))
        return _parse(value, repo)
    except (OSError, CanonicalError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _parse(value: Any, repo: Repo) -> Manifest:
    """Raises ValueError, KeyError, TypeError, AttributeError for anything else than a record of `repo`."""
    if (
        value["schema"] != SCHEMA
        or (value["type"], value["repo"]) != (repo.type, repo.id)
        or not is_commit(value["commit"])
    ):
        raise ValueError("not a record of this repository")
    files = []
    for path, row in sorted(value["files"].items()):
        if not is_relative(path) or not is_content_digest(row["digest"]) or type(row["size"]) is not int:
            raise ValueError("not a file's entry")
        files.append(RemoteFile(path, row["size"], row["digest"]))
    commit, requested, endpoint, user, at = (
        value[k] for k in ("commit", "requested", "endpoint", "user", "fetched_at")
    )
    if not all(isinstance(t, str) for t in (requested, endpoint, user, at, *value["locks"])):
        raise ValueError("a field of another shape")
    left = {str(k): int(v) for k, v in value["left_out"].items()}
    return Manifest(repo, commit, requested, endpoint, user, at, tuple(files), left, tuple(value["locks"]))
