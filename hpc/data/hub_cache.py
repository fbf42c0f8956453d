"""A repository in the shared cache, found without any network: which commit a name means, which files are there, and whether they are whole.

Everything is reached through the links of a snapshot, and every link must lead into the blobs of the same repository, so a cache that was moved,
copied without its links or edited shows. A file's name in the blobs states its digest; `damage` says whether the bytes agree.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hpc.data.hub_fetch import content_digest
from hpc.data.hub_names import MAIN, HubCache, Repo, blob_name, check_revision, digest_of_blob, is_commit
from hpc.errors.core import Refusal
from hpc.spec.text import visible
from hpc.store.faults import refusal

Digest = Callable[[str, os.stat_result], str]
"""(path, what the kernel says) → `sha256:` of the bytes; may remember files that did not change."""
MAX_DEPTH = 16


@dataclass(frozen=True)
class CachedFile:
    """One file of a snapshot. `place` is the link, `blob` the file; `digest` is what the blob's name states."""

    path: str
    place: Path
    blob: Path
    digest: str
    status: os.stat_result

    @property
    def size(self) -> int:
        return self.status.st_size


def commit_of(cache: HubCache, repo: Repo, revision: str = "", *, field: str = "", command: str = "") -> str:
    """The commit that a revision (default: main) means offline. Raises Refusal E-HUB-002, E-HUB-020 with the command that fetches it."""
    revision = check_revision(revision, field) or MAIN
    if is_commit(revision):
        return revision
    try:
        text = cache.ref(repo, revision).read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        text = ""
    if is_commit(text):
        return text
    raise not_downloaded(repo, revision, field, command)


def not_downloaded(repo: Repo, revision: str, field: str = "", command: str = "") -> Refusal:
    what = f"{repo}@{revision}" if revision else str(repo)
    command = command or repo.prefetch("" if revision == MAIN else revision)
    return Refusal("E-HUB-020", f"{what} is not downloaded", field=field, found=what, hint=f"run: {command}")


def snapshot(cache: HubCache, repo: Repo, commit: str, *, field: str = "", command: str = "") -> dict[str, CachedFile]:
    """Every file of the commit that is there, by path. Nothing is hashed.

    Raises Refusal E-HUB-020 (no such snapshot), E-HUB-021 (a link without its file), E-HUB-023 (no link into the repository's blobs), E-STORE-02x.
    """
    folder = cache.snapshot(repo, commit)
    if not folder.is_dir():
        raise not_downloaded(repo, commit, field, command)
    command = command or repo.prefetch(commit)
    blobs = os.path.realpath(cache.blobs(repo))
    out = {}
    for path in sorted(_paths(folder, "", 0)):
        out[path] = _cached(folder / path, path, blobs, field, command)
    return out


def _paths(folder: Path, prefix: str, depth: int) -> Iterator[str]:
    if depth > MAX_DEPTH:
        raise Refusal("E-HUB-023", "folders are nested too deep", field=str(folder))
    try:
        entries = sorted(os.scandir(folder), key=lambda e: e.name)
    except OSError as exc:
        raise refusal(exc, folder, "list") from exc
    for entry in entries:
        if entry.name.startswith(".") and entry.name.endswith(".tmp"):
            continue  # of a writer that is at work or died
        if entry.is_dir(follow_symlinks=False):
            yield from _paths(folder / entry.name, f"{prefix}{entry.name}/", depth + 1)
        else:
            yield prefix + entry.name


def _cached(place: Path, path: str, blobs: str, field: str, command: str) -> CachedFile:
    blob = os.path.realpath(place)
    digest = digest_of_blob(os.path.basename(blob))
    if not place.is_symlink() or os.path.dirname(blob) != blobs or not digest:
        hint = f"remove {place} and run: {command}"
        raise Refusal("E-HUB-023", f"{path} leads to {visible(blob, 200)}", field=field or str(place), hint=hint)
    try:
        found = os.lstat(blob)
    except FileNotFoundError:
        raise missing(path, field, command) from None
    except OSError as exc:
        raise refusal(exc, blob, "look at") from exc
    if not stat.S_ISREG(found.st_mode):
        raise Refusal("E-HUB-023", f"{path} is no regular file", field=field or blob, hint=f"run: {command}")
    return CachedFile(path, place, Path(blob), digest, found)


def missing(path: str, field: str, command: str) -> Refusal:
    return Refusal("E-HUB-021", f"{path} is missing in the cache", field=field, found=path, hint=f"run: {command}")


def damage(file: CachedFile, digest: Digest | None = None) -> str:
    """What the bytes are instead of what the name states; "" where they agree. `digest` may remember. Raises Refusal E-STORE-02x."""
    try:
        if digest is not None and file.digest.startswith("sha256:"):
            found = digest(str(file.blob), file.status)
        else:
            found = content_digest(file.blob, file.digest)
    except OSError as exc:
        raise refusal(exc, file.blob, "read") from exc
    return "" if blob_name(found) == file.blob.name else found
