"""Packages on a user's own disk: `tuneplane_plugins/<owner>/<name>/`, copied from the registry and checked before they replace anything."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
import time
from contextlib import suppress
from pathlib import Path

from tuneplane.record.digest import directory_digest_v1
from tuneplane.record.files import fsync_dir, write_new

from hpc.errors import Refusal
from hpc.registry.resolve import Version, read_file

FOLDER = "tuneplane_plugins"
LITTER_AGE_S = 86_400


def install(version: Version, project: Path) -> Path:
    """Put one version where local tools find it; returns its folder.

    All bytes are compared with the record in a folder beside it first; then one rename replaces what was installed. Raises Refusal
    E-INSTALL-001 (other bytes), E-INSTALL-007 (something else is in the way, or the disk); then the former installation stands.
    """
    target = project / FOLDER / version.owner / version.name
    for folder in (project / FOLDER, target.parent, target):
        if os.path.lexists(folder) and not stat.S_ISDIR(os.lstat(folder).st_mode):
            raise Refusal("E-INSTALL-007", "is no folder", field=str(folder), allowed="a folder")
    temp = target.with_name(f".{version.name}.{secrets.token_hex(6)}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temp.mkdir(mode=0o755)
        _copy(version, temp)
        if (found := directory_digest_v1(temp)) != version.digest:
            raise Refusal("E-INSTALL-001", "other bytes arrived", field=version.id, found=found, allowed=version.digest)
        _swap(temp, target)
    except OSError as exc:
        raise Refusal("E-INSTALL-007", f"{exc.filename or target}: {exc.strerror}", field=str(target)) from exc
    finally:
        _drop(temp)
    _sweep(target)
    return target


def _copy(version: Version, temp: Path) -> None:
    for entry in version.files:
        place = temp / entry.path
        place.parent.mkdir(parents=True, exist_ok=True)
        write_new(place, read_file(version, entry.path), mode=0o755 if entry.exec else 0o644)


def _swap(temp: Path, target: Path) -> None:
    """Put `temp` in the place of `target`. A folder cannot be renamed over a full one, so the old one steps aside and comes back on an error."""
    aside = target.with_name(f".{target.name}.{secrets.token_hex(6)}.old")
    had = target.exists()
    if had:
        os.rename(target, aside)
    try:
        os.rename(temp, target)
    except BaseException:
        if had:
            with suppress(OSError):
                os.rename(aside, target)
        raise
    fsync_dir(target.parent)
    if had:
        _drop(aside)


def _drop(folder: Path) -> None:
    """Remove a folder of ours as far as it can be; one that its user has shut is opened first."""
    with suppress(OSError):
        os.chmod(folder, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


def _sweep(target: Path) -> None:
    """Remove what killed installations of this package left a day ago or earlier."""
    litter = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{12}}\.(tmp|old)")
    with suppress(OSError):
        for entry in list(os.scandir(target.parent)):
            if litter.fullmatch(entry.name) and time.time() - entry.stat(follow_symlinks=False).st_mtime > LITTER_AGE_S:
                _drop(Path(entry.path))
