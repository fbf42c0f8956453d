"""One file from the hub into the blobs of its repository: resumed where it was cut, hashed while it comes, and only then given its name.

A partial file bears its writer's name (`.<blob>.<boot>-<pid>-<start>-<thread>.part`). What a dead writer left is taken over by the next, whose digest
decides whether it was any good.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import threading
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tuneplane.record.digest import PREFIX

from hpc.data.hub_choice import RemoteFile
from hpc.data.hub_client import Hub
from hpc.data.hub_names import GIT_PREFIX, HubCache, Repo, blob_name
from hpc.data.hub_store import FILE_MODE
from hpc.data.retry import PassingError, patiently
from hpc.errors.core import Refusal
from hpc.store.faults import refusal
from hpc.store.owners import boot_id, pid_namespace, start_ticks

_PART = re.compile(r"\.([0-9a-f]{40,64})\.([0-9a-f]{8})-(\d+)-(\d+)-(\d+)\.part")
_OPEN: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
CHUNK: Final = 1 << 20


class Stopped(Exception):  # noqa: N818 - somebody asked for it
    """The whole prefetch ends; this file stays partial."""


@dataclass(frozen=True)
class Way:
    """How files are fetched: hub, cache, clockwork, and whoever wants to know.

    `came` is told of bytes from the hub, `kept` of bytes that were there before (or, below zero, that are given up).
    """

    hub: Hub
    cache: HubCache
    sleep: Callable[[float], None]
    told: Callable[[str], None]
    came: Callable[[int], None]
    kept: Callable[[int], None]
    stop: threading.Event


def hasher(digest: str, size: int) -> Any:
    """A hash object for the kind of digest that `digest` is."""
    if digest.startswith(PREFIX):
        return hashlib.sha256()
    sha = hashlib.sha1(usedforsecurity=False)
    sha.update(b"blob %d\0" % size)
    return sha


def stated(digest: str, sha: Any) -> str:
    """The digest in the form of `digest`."""
    return (PREFIX if digest.startswith(PREFIX) else GIT_PREFIX) + str(sha.hexdigest())


def content_digest(path: str | os.PathLike[str], digest: str) -> str:
    """The digest of a regular file's bytes, of the kind that `digest` is. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            return "not a regular file"
        sha, buffer = hasher(digest, found.st_size), memoryview(bytearray(CHUNK))
        while count := os.readv(fd, [buffer]):
            sha.update(buffer[:count])
    finally:
        os.close(fd)
    return stated(digest, sha)


def fetch(way: Way, repo: Repo, commit: str, file: RemoteFile) -> None:
    """Bring one file into the blobs, its bytes durable; its name is when the caller makes the folder so.

    Raises Refusal E-HUB-010 … E-HUB-017, E-STORE-02x, Stopped.
    """
    final = way.cache.blobs(repo) / blob_name(file.digest)
    part = _Part(final, file)
    try:
        with closing(part.open()):
            resumed = part.offset
            way.kept(resumed)
            _fill(way, repo, commit, file, part)
            if part.digest() != file.digest and resumed:
                # What the dead writer left was no good: once more, from nothing.
                way.kept(-part.offset)
                part.restart()
                _fill(way, repo, commit, file, part)
            _settle(part, final, file)
    except OSError as exc:
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            part.discard()  # a part that nobody can finish must not keep the disk full
        raise refusal(exc, final, "fetch") from exc


def _fill(way: Way, repo: Repo, commit: str, file: RemoteFile, part: _Part) -> None:
    patiently(
        lambda: _some(way, repo, commit, file, part), sleep=way.sleep, what=f"{repo}/{file.path}",
        moved=lambda: part.offset, told=lambda text, wait: way.told(f"{text}; again in {wait:g} s"),
    )  # fmt: skip


def _some(way: Way, repo: Repo, commit: str, file: RemoteFile, part: _Part) -> None:
    """One request: from where the part ends to the end of the file."""
    if part.offset == file.size:
        return
    with way.hub.body(repo, commit, file.path, part.offset) as body:
        if body.size not in (-1, file.size):
            raise _wrong(file, f"{body.size} bytes", f"{file.size} bytes")
        if body.start != part.offset:
            way.kept(-part.offset)
            part.restart()
        _receive(way, file, part, body)
    if part.offset < file.size:
        raise PassingError(f"{file.path} ended after {part.offset} of {file.size} bytes")


def _receive(way: Way, file: RemoteFile, part: _Part, body: Iterable[bytes]) -> None:
    """Write what comes, in pieces that make hashing and writing cheap; what came before a cut is kept."""
    waiting: list[bytes] = []
    held = 0
    try:
        for chunk in body:
            if way.stop.is_set():
                raise Stopped
            waiting.append(chunk)
            held += len(chunk)
            if part.offset + held > file.size:
                waiting.clear()
                part.discard()
                raise _wrong(file, "more bytes than announced", f"{file.size} bytes")
            if held >= CHUNK:
                part.write(b"".join(waiting))
                way.came(held)
                waiting.clear()
                held = 0
    finally:
        if waiting:
            part.write(b"".join(waiting))
            way.came(held)


def _settle(part: _Part, final: Path, file: RemoteFile) -> None:
    if (found := part.digest()) != file.digest:
        part.discard()
        raise _wrong(file, found, file.digest)
    os.fchmod(part.fd, FILE_MODE)
    os.fsync(part.fd)
    try:
        os.rename(part.path, final)
    except PermissionError:
        # In a sticky folder another user's file stays: theirs is the same bytes, or the caller says that it is not.
        part.discard()


def _wrong(file: RemoteFile, found: str, allowed: str) -> Refusal:
    text = "is not what the hub announced for the commit"
    return Refusal("E-HUB-015", text, field=file.path, found=found, allowed=allowed)


class _Part:
    """The growing file and the hash of what it holds."""

    def __init__(self, final: Path, file: RemoteFile) -> None:
        self.final, self.file = final, file
        me = f"{_here()}-{os.getpid()}-{start_ticks(os.getpid()) or 0}-{threading.get_ident()}"
        self.path = final.with_name(f".{final.name}.{me}.part")
        self.fd, self.offset = -1, 0

    def open(self) -> _Part:
        self._take_over()
        self.fd = os.open(self.path, _OPEN | os.O_CREAT, 0o600)
        self.sha = hasher(self.file.digest, self.file.size)
        buffer = memoryview(bytearray(CHUNK))
        while count := os.readv(self.fd, [buffer]):
            self.sha.update(buffer[:count])
            self.offset += count
        if self.offset > self.file.size:
            self.restart()
        return self

    def close(self) -> None:
        if self.fd >= 0:
            if not self.offset:
                self.discard()  # nothing that the next writer could go on with
            os.close(self.fd)
            self.fd = -1

    def _take_over(self) -> None:
        """The longest part that a dead process of ours left becomes this one's; its other parts go."""
        left = []
        for name in os.listdir(self.final.parent):
            path = self.final.with_name(name)
            if name.startswith(f".{self.final.name}.") and part_is_dead(name):
                with suppress(OSError):
                    found = os.lstat(path)
                    if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
                        left.append((found.st_size, path))
        for _, path in sorted(left, reverse=True)[:1]:
            with suppress(OSError):
                os.rename(path, self.path)
        for _, path in sorted(left, reverse=True)[1:]:
            path.unlink(missing_ok=True)

    def write(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        while view:
            view = view[os.write(self.fd, view) :]
        self.sha.update(chunk)
        self.offset += len(chunk)

    def restart(self) -> None:
        os.ftruncate(self.fd, 0)
        os.lseek(self.fd, 0, os.SEEK_SET)
        self.sha, self.offset = hasher(self.file.digest, self.file.size), 0

    def digest(self) -> str:
        return stated(self.file.digest, self.sha)

    def discard(self) -> None:
        with suppress(OSError):
            os.unlink(self.path)


def _here() -> str:
    """Names this boot and this process namespace: only there can a process number say that its process is gone."""
    return hashlib.sha256(f"{boot_id()} {pid_namespace()}".encode()).hexdigest()[:8]


def part_is_dead(name: str) -> bool:
    """True for a partial file whose writer is proved gone: of this boot and namespace, and no process of that number and start."""
    match = _PART.fullmatch(name)
    if not match or match[2] != _here():
        return False
    found = start_ticks(int(match[3]))
    return not os.path.exists(f"/proc/{match[3]}") or (found is not None and found != int(match[4]))
