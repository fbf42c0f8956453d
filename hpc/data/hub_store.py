"""Writes into the shared cache, which many users fill: folders that the group may add to, files that only their owner may replace.

Folders are 3775 (sticky: nobody removes another's file), files 0444, whatever the umask. Only `refs/` is not sticky: a branch's name moves for
everybody, and no job believes it. A file is written beside its place, made durable, and renamed.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from pathlib import Path
from typing import Final

from tuneplane.record import files

from hpc.data.hub_names import HubCache, Repo, blob_name
from hpc.errors.core import Refusal
from hpc.store.faults import refusal

SHARED: Final = 0o3775
MOVING: Final = 0o2775
FILE_MODE: Final = 0o444
NOT_SEEN: Final = "E-STORE-023"
LAG_S: Final = 75.0
"""How long another node may not see a name that was made or moved: NFS keeps the names of a folder for up to 60 s."""


def share_folder(path: Path, mode: int = SHARED) -> None:
    """Make sure that `path` is a real folder with at least this mode, whoever made it. Its parent exists.

    A new one gets its mode before it gets its name, so that no other user meets it closed. Its name is not made durable: a cache whose host
    fails then lacks what is fetched again. Raises Refusal E-STORE-010, E-STORE-023 (made on another node and not seen here), E-STORE-02x.
    """
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        _make(path, mode)
        found = os.lstat(path)
    except OSError as exc:
        raise refusal(exc, path, "look at") from exc
    if not stat.S_ISDIR(found.st_mode):
        raise Refusal("E-STORE-010", "is no folder", field=str(path))


def _make(path: Path, mode: int) -> None:
    temp = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        os.mkdir(temp, 0o700)
        os.chmod(temp, mode)
        try:
            os.rename(temp, path)
        except OSError as exc:
            os.rmdir(temp)
            if not path.is_dir():
                if exc.errno in (errno.EEXIST, errno.ENOTEMPTY):
                    # The server has the name and this node's cache has not: NFS keeps the names of a folder for up to a minute.
                    text = "was made on another node and is not seen on this one yet"
                    raise Refusal(NOT_SEEN, text, field=str(path), hint="run it again in a minute") from exc
                raise
    except OSError as exc:
        raise refusal(exc, path, "create the folder") from exc


def share_folders(anchor: Path, path: Path, mode: int = SHARED) -> None:
    """`share_folder` for every part of `path` below `anchor`."""
    here = anchor
    for part in path.relative_to(anchor).parts:
        here = here / part
        share_folder(here, mode)


def open_cache(cache: HubCache) -> None:
    """Return if the caller may fill the cache. Raises Refusal E-HUB-024."""
    for folder in (cache.hub, cache.assets):
        try:
            share_folder(folder)
        except Refusal as fault:
            raise Refusal("E-HUB-024", fault.message, field=str(folder), found=fault.found) from fault
        if not os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
            raise Refusal("E-HUB-024", "you may not write here", field=str(folder), found=f"uid {os.geteuid()}")
    share_folder(cache.claims, MOVING)


def open_repo(cache: HubCache, repo: Repo, commit: str) -> None:
    """The folders of one commit. Raises Refusal E-STORE-01x, E-STORE-02x."""
    share_folders(cache.hub, cache.blobs(repo))
    share_folders(cache.hub, cache.snapshot(repo, commit))


def link(cache: HubCache, repo: Repo, commit: str, path: str, digest: str) -> None:
    """Let `path` of the snapshot lead to the blob. Raises Refusal E-HUB-023 (something else of another user's stands there), E-STORE-02x."""
    place = cache.snapshot(repo, commit) / path
    share_folders(cache.snapshot(repo, commit), place.parent)
    up = "../" * (2 + path.count("/"))
    target = f"{up}blobs/{blob_name(digest)}"
    if _leads(place, target):
        return
    temp = place.with_name(f".{place.name}.{secrets.token_hex(6)}.tmp")
    try:
        os.symlink(target, temp)
        try:
            os.rename(temp, place)
        except OSError:
            os.unlink(temp)
            if not _leads(place, target):
                raise
    except PermissionError as exc:
        raise Refusal("E-HUB-023", "is another user's and no link to the file", field=str(place)) from exc
    except OSError as exc:
        raise refusal(exc, place, "link") from exc


def _leads(place: Path, target: str) -> bool:
    try:
        return os.readlink(place) == target
    except OSError:
        return False


def set_ref(cache: HubCache, repo: Repo, revision: str, commit: str) -> None:
    """Let the name of a branch or tag mean `commit` for whoever looks offline. Raises Refusal E-STORE-02x."""
    place = cache.ref(repo, revision)
    share_folder(cache.repo(repo) / "refs", MOVING)
    share_folders(cache.repo(repo) / "refs", place.parent, MOVING)
    try:
        if place.read_bytes() == commit.encode():
            return
    except OSError:
        pass
    try:
        files.replace(place, commit.encode(), mode=0o644)
    except OSError as exc:
        raise refusal(exc, place, "write") from exc
