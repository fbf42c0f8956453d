"""Removes what `hpc.data.gc_survey` found: renamed out of sight first, looked at once more, then deleted.

A prefetch that finds a file in the cache links it and then looks whether it still is there; a removal renames the file and then looks whether a link
came meanwhile, and puts it back. So whichever is second sees the other. Between nodes that see each other's names late, the second look comes LAG_S
after the renaming. Killed in between, the renamed thing is litter of the next removal.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tuneplane.contract.layout import StorageRoot

from hpc.data.gc_marks import Marks, marks
from hpc.data.gc_survey import Item
from hpc.data.hub_names import HubCache, Repo, digest_of_blob, is_commit
from hpc.errors.core import Refusal
from hpc.registry.shelf import TEMP_SUFFIX
from hpc.registry.storing import drop
from hpc.store.faults import refusal


@dataclass(frozen=True)
class Hidden:
    """What was renamed out of sight for one item: (where it stood, where it is, its bytes); the item itself first."""

    item: Item
    moved: tuple[tuple[Path, Path, int], ...]


def remove(root: StorageRoot, item: Item) -> int:
    """Remove one item; the bytes that came free. Raises as `hide` and `finish`. Where other nodes may be at work, LAG_S belongs between the two."""
    return finish(root, hide(root, item))


def hide(root: StorageRoot, item: Item) -> Hidden:
    """Rename what is to go out of sight. Raises Refusal E-GC-001 (somebody took it up again), E-GC-002 (not yours), E-STORE-02x."""
    cache = HubCache(root)
    if item.kind == "commit":
        return _hide_commit(cache, item)
    if item.kind == "blob" and item.repo is not None and _led_to(cache, item.repo, item.path.name):
        return Hidden(item, ())
    if item.kind in ("run", "admitted") and any(root.runs.glob(f"*/*/{item.path.name}/submissions/*")):
        raise Refusal("E-GC-001", "was submitted meanwhile", field=str(item.path))
    return Hidden(item, ((item.path, _hide(item.path), item.size),))


def _hide_commit(cache: HubCache, item: Item) -> Hidden:
    """The snapshot first, so that nobody finds the commit; then the files that no other snapshot leads to."""
    assert item.repo is not None
    repo = item.repo
    _require_unnamed(marks(cache), item)
    names = {os.path.basename(os.path.realpath(p)) for p in _links(item.path)}
    moved = [(item.path, _hide(item.path), 0)]
    for name in sorted(filter(digest_of_blob, names)):
        path = cache.blobs(repo) / name
        with suppress(Refusal, OSError):
            if not _led_to(cache, repo, name):
                size = os.lstat(path).st_size
                moved.append((path, _hide(path), size))
    return Hidden(item, tuple(moved))


def _require_unnamed(held: Marks, item: Item) -> None:
    if holder := held.holder(item.path.name):
        raise Refusal("E-GC-001", f"{item.repo}@{item.path.name} is named by {holder}", field=str(item.path))


def finish(root: StorageRoot, hidden: Hidden, held: Marks | None = None) -> int:
    """Look once more, and delete what still nobody needs or put it back; the bytes that came free.

    `held`: what holds on to commits by now. Raises Refusal E-GC-001 for what was put back.
    """
    cache, item = HubCache(root), hidden.item
    if item.kind == "commit" and held is not None:
        try:
            _require_unnamed(held, item)
        except Refusal:
            _put_back(hidden.moved)
            raise
    if item.repo is None:
        return sum(_dropped(gone, size) for _, gone, size in hidden.moved)
    freed = 0
    for path, gone, size in hidden.moved:
        if path == item.path and item.kind == "commit":
            _drop(gone)
            _forget(cache, item.repo, path.name)
        elif _led_to(cache, item.repo, path.name):
            _put_back([(path, gone, size)])
            if path == item.path:
                raise Refusal("E-GC-001", "is used again", field=str(path))
        else:
            freed += _dropped(gone, size)
    return freed


def _put_back(moved: Sequence[tuple[Path, Path, int]]) -> None:
    for path, gone, _ in moved:
        with suppress(OSError):
            os.rename(gone, path)


def _dropped(gone: Path, size: int) -> int:
    _drop(gone)
    return 0 if os.path.lexists(gone) else size


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
