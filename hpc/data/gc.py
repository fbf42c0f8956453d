"""Removes what `hpc.data.gc_survey` found: renamed out of sight first, looked at once more, then deleted.

A prefetch that finds a file in the cache links it and then looks whether it still is there; a removal renames the file and then looks whether a link
came meanwhile, and puts it back. So whichever is second sees the other. Killed in between, the renamed thing is litter of the next removal.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tuneplane.contract.layout import StorageRoot

from hpc.data.gc_marks import marks
from hpc.data.gc_survey import Item
from hpc.data.hub_names import HubCache, Repo, digest_of_blob, is_commit
from hpc.errors.core import Refusal
from hpc.registry.shelf import TEMP_SUFFIX
from hpc.registry.storing import drop
from hpc.store.faults import refusal


def remove(root: StorageRoot, item: Item) -> int:
    """Remove one item; the bytes that came free. Raises Refusal E-GC-001 (somebody took it up again), E-GC-002 (not yours), E-STORE-02x."""
    cache = HubCache(root)
    if item.kind == "commit":
        return _commit(cache, item)
    if item.kind == "blob" and item.repo is not None:
        return _blob(cache, item.repo, item.path)
    if item.kind == "run" and (os.path.lexists(item.path / "submissions") and os.listdir(item.path / "submissions")):
        raise Refusal("E-GC-001", "was submitted meanwhile", field=str(item.path))
    gone = _hide(item.path)
    _drop(gone)
    return 0 if os.path.lexists(gone) else item.size


def _commit(cache: HubCache, item: Item) -> int:
    """The snapshot first, so that nobody finds the commit; then the files that no other snapshot leads to, its refs and its records."""
    assert item.repo is not None
    repo, commit = item.repo, item.path.name
    if holder := marks(cache).holder(commit):
        raise Refusal("E-GC-001", f"{repo}@{commit} is named by {holder}", field=str(item.path))
    names = {os.path.basename(os.path.realpath(p)) for p in _links(item.path)}
    gone = _hide(item.path)
    freed = 0
    for name in sorted(names):
        if digest_of_blob(name):
            with suppress(Refusal):
                freed += _blob(cache, repo, cache.blobs(repo) / name)
    _drop(gone)
    _forget(cache, repo, commit)
    return freed


def _blob(cache: HubCache, repo: Repo, path: Path) -> int:
    if _led_to(cache, repo, path.name):
        return 0
    found = os.lstat(path) if os.path.lexists(path) else None
    if found is None:
        return 0
    gone = _hide(path)
    if _led_to(cache, repo, path.name):
        with suppress(OSError):
            os.rename(gone, path)
        raise Refusal("E-GC-001", "is used again", field=str(path))
    _drop(gone)
    return found.st_size


def _led_to(cache: HubCache, repo: Repo, name: str) -> bool:
    """True while a snapshot that can be seen has a link to the blob."""
    snapshots = cache.repo(repo) / "snapshots"
    try:
        commits = [c for c in os.listdir(snapshots) if is_commit(c)]
    except OSError:
        return False
    return any(os.path.basename(os.readlink(p)) == name for c in commits for p in _links(snapshots / c))


def _links(folder: Path) -> Iterator[Path]:
    for base, folders, names in os.walk(folder):
        for name in [*folders, *names]:
            path = Path(base) / name
            if path.is_symlink():
                yield path


def _forget(cache: HubCache, repo: Repo, commit: str) -> None:
    for base, _, names in os.walk(cache.repo(repo) / "refs"):
        for name in names:
            path = Path(base) / name
            with suppress(OSError):
                if path.read_bytes() == commit.encode():
                    path.unlink()
    with suppress(OSError):
        for name in os.listdir(cache.assets / repo.folder):
            if name.startswith(f"{commit}."):
                with suppress(OSError):
                    os.unlink(cache.assets / repo.folder / name)


def _hide(path: Path) -> Path:
    """One rename in the same folder, to a name that no reader takes for anything."""
    gone = path.with_name(f".{path.name}.{secrets.token_hex(6)}{TEMP_SUFFIX}")
    try:
        os.rename(path, gone)
    except PermissionError as exc:
        raise Refusal("E-GC-002", "is another user's", field=str(path), found=f"uid {os.geteuid()}") from exc
    except OSError as exc:
        raise refusal(exc, path, "remove") from exc
    return gone


def _drop(gone: Path) -> None:
    if gone.is_dir() and not gone.is_symlink():
        drop(gone)
    else:
        with suppress(OSError):
            os.unlink(gone)
