"""The folder that a provider wrote against the list it returned: every file regular, listed once, and nothing else there."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tuneplane.record.digest import digest_fd, is_relative
from tuneplane.transforms.limits import MAX_DEPTH, MAX_FILES
from tuneplane.transforms.stop import Stop, failed

_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True)
class Output:
    """One published file: POSIX path relative to the output, bytes, SHA-256."""

    path: str
    size: int
    sha256: str

    def as_json(self) -> dict[str, Any]:
        return {"path": self.path, "size": self.size, "sha256": self.sha256}


def _no(message: str) -> Stop:
    return failed("E-JOB-044", message)


def check_listed(files: Sequence[str]) -> None:
    """The list alone: not empty, normal relative paths, each once. Raises Stop E-JOB-044."""
    if not files:
        raise _no("the provider lists no files")
    if len(files) > MAX_FILES:
        raise _no(f"the provider lists {len(files)} files; at most {MAX_FILES} are published")
    seen: set[str] = set()
    for name in files:
        if not is_relative(name):
            raise _no(f"the provider lists {name!r}, which is no normal path below the output")
        if name in seen:
            raise _no(f"the provider lists {name} twice")
        seen.add(name)


def seal_outputs(stage_fd: int, files: Sequence[str], check: Callable[[], None]) -> list[Output]:
    """Walk the folder, hash and fsync each file and folder, give them the modes of published data; in the order of `files`.

    Nothing may write there any more. Empty folders are kept. Raises Stop E-JOB-044 for anything but listed regular files, OSError.
    """
    check_listed(files)
    found: dict[str, Output] = {}
    _walk(stage_fd, "", frozenset(files), found, check)
    if missing := next((name for name in files if name not in found), ""):
        raise _no(f"the provider lists {missing}, which is not there")
    return [found[name] for name in files]


def _walk(
    folder_fd: int, prefix: str, listed: frozenset[str], found: dict[str, Output], check: Callable[[], None]
) -> None:
    if prefix.count("/") > MAX_DEPTH:
        raise _no(f"{prefix[:80]}: folders are nested deeper than {MAX_DEPTH}")
    for name in sorted(os.listdir(folder_fd)):
        check()
        path = prefix + name
        info = os.lstat(name, dir_fd=folder_fd)
        if stat.S_ISDIR(info.st_mode):
            os.chmod(name, 0o755, dir_fd=folder_fd)
            below = os.open(name, _OPEN_FOLDER, dir_fd=folder_fd)
            try:
                _walk(below, path + "/", listed, found, check)
            finally:
                os.close(below)
        else:
            _refuse(path, info, listed)
            found[path] = _seal(folder_fd, name, path, info)
    os.fsync(folder_fd)


def _refuse(path: str, info: os.stat_result, listed: frozenset[str]) -> None:
    if stat.S_ISLNK(info.st_mode):
        raise _no(f"{path!r} is a link")
    if not stat.S_ISREG(info.st_mode):
        raise _no(f"{path!r} is no regular file")
    if info.st_nlink != 1:
        raise _no(f"{path!r} has {info.st_nlink} hard links: it is a file of somewhere else, too")
    if path not in listed:
        raise _no(f"{path!r} is not listed by the provider")


def _seal(folder_fd: int, name: str, path: str, seen: os.stat_result) -> Output:
    # The provider's umask may have left its own files unreadable even for us.
    os.chmod(name, 0o755 if seen.st_mode & stat.S_IXUSR else 0o644, dir_fd=folder_fd)
    fd = os.open(name, _OPEN_FILE, dir_fd=folder_fd)
    try:
        opened = os.fstat(fd)
        if (opened.st_ino, opened.st_dev, opened.st_nlink) != (seen.st_ino, seen.st_dev, 1):
            raise _no(f"{path!r} changed while it was read")
        digest, size = digest_fd(fd)
        os.fsync(fd)
    finally:
        os.close(fd)
    return Output(path, size, digest)
