"""The job package: written once into a temporary folder beside its place, listed file by file, then renamed.

A full disk, a kill or Ctrl-C leaves no run: only a temporary folder whose name starts with a dot, which is removed where the process lives on.
The files are not synced one by one: what a storage server loses in a crash is missed by the job, which recomputes every digest before it starts.
What must survive (intent, admission, submission) is synced where it is written.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tuneplane.contract import schemas
from tuneplane.contract.layout import RunPaths
from tuneplane.record.canonical import pretty_bytes
from tuneplane.record.digest import FileEntry, digest_bytes, directory_digest_v1, tree_digest_v2
from tuneplane.record.files import publish_dir

from hpc.errors import Refusal

LF_SUFFIXES = (".sh", ".conf")
FROM_SHELVES = ("tuneplane_plugins/", "tuneplane_recipes/")
"""What comes from a shelf under a digest of its own: these bytes are never mended."""


class TravellingFile(Protocol):
    """One file that travels: where it is, and its path in the package."""

    @property
    def source(self) -> Path: ...
    @property
    def path(self) -> str: ...


@dataclass(frozen=True)
class Packed:
    """A finished package."""

    run: RunPaths
    digest: str
    files: int
    size: int


def _put(work: Path, path: str, data: bytes, *, executable: bool) -> FileEntry:
    target = f"{work}/{path}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(target, flags, 0o600)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(target))
        fd = os.open(target, flags, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fchmod(fd, 0o555 if executable else 0o444)
    finally:
        os.close(fd)
    return FileEntry(path, executable, len(data), digest_bytes(data))


def _read(source: Path, path: str, limit: int) -> tuple[bytes, bool]:
    """Bytes of a file, at most one more than `limit`, and whether its owner may execute it."""
    fd = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as stream:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", os.fspath(source))
        executable = bool(found.st_mode & 0o100)
        data = stream.read(min(found.st_size, limit) + 1)
        if len(data) > found.st_size:  # it grew meanwhile
            data += stream.read(max(limit + 1 - len(data), 0))
    if path.endswith(LF_SUFFIXES) and not path.startswith(FROM_SHELVES):
        data = data.replace(b"\r\n", b"\n")
    return data, executable


def _fill(work: Path, files: Iterable[TravellingFile], records: Mapping[str, Any], max_bytes: int) -> list[FileEntry]:
    entries, total = [], 0
    for item in files:
        data, executable = _read(item.source, item.path, max_bytes - total)
        total += len(data)
        if total > max_bytes:
            raise Refusal(
                "E-SUBMIT-041",
                "the package is too large",
                field=item.path,
                found=f"over {max_bytes >> 20} MB",
                allowed=f"{max_bytes >> 20} MB",
            )
        entries.append(_put(work, item.path, data, executable=executable))
    for name, value in records.items():
        entries.append(_put(work, f".tuneplane/{name}", pretty_bytes(value), executable=False))
    return entries


def _seal(work: Path) -> None:
    """Make every folder read-only for its owner, too: from here on a package is only read."""
    for folder, _, _ in os.walk(work, topdown=False):
        os.chmod(folder, 0o555)


def discard(folder: Path) -> None:
    """Remove an unfinished folder, read-only sub-folders included."""
    for parent, _, _ in os.walk(folder):
        os.chmod(parent, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


def write_package(
    run: RunPaths, files: Iterable[TravellingFile], records: Mapping[str, Any], *, max_bytes: int, created_at: str
) -> Packed:
    """Create the run folder with its package. Raises Refusal E-SUBMIT-040 (disk), -041 (size), -042 (exists), -043 (a file vanished)."""
    temp = run.root.with_name(f".{run.root.name}.tmp")
    try:
        os.mkdir(temp, 0o700)
        work = temp / "work"
        entries = _fill(work, files, records, max_bytes)
        digest = tree_digest_v2(entries)
        listing = {
            "schema": schemas.PACKAGE,
            "run_id": run.run_id,
            "created_at": created_at,
            "digest_v2": digest,
            "digest_v1": directory_digest_v1(work),
            "files": [e.as_json() for e in sorted(entries, key=lambda e: e.path)],
        }
        _put(work, ".tuneplane/package.json", pretty_bytes(listing), executable=False)
        _seal(work)
        for name in ("batch", "submissions", "attempts", "checkpoints", "events"):
            os.mkdir(temp / name)
            os.chmod(temp / name, 0o755)
        os.chmod(temp, 0o755)
        publish_dir(temp, run.root)
    except FileExistsError as exc:
        discard(temp)
        raise Refusal("E-SUBMIT-042", f"{run.root} exists already", found=run.run_id) from exc
    except OSError as exc:
        discard(temp)
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Refusal(
                "E-SUBMIT-040", f"no room left while packing: {exc.strerror}", field=str(run.root.parent)
            ) from exc
        raise Refusal(
            "E-SUBMIT-043", f"{exc.filename or run.root}: {exc.strerror}", field=str(exc.filename or "")
        ) from exc
    except BaseException:
        discard(temp)
        raise
    return Packed(run, digest, len(entries), sum(e.size for e in entries))
