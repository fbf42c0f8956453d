"""What an audit works on: a run's folder, read with suspicion, and the findings so far.

Three things are told apart at every read: the file is not there, it cannot be read by this user now (`incomplete`, never `tampered`), and it is
there but is not what a record can be (`tampered`: records are written whole).
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from tuneplane.contract.layout import RunPaths, StorageRoot
from tuneplane.record.digest import PREFIX, digest_bytes
from tuneplane.record.events import WRITER, Chain, check_chain, parse_lines
from tuneplane.record.files import read_bytes, read_json

from hpc.spec.text import escaped

Level = Literal["tampered", "incomplete", "note"]
_NOT_A_RECORD: Final = frozenset({errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.ENOTDIR})
"""A link, a FIFO or a folder where a record belongs."""
CLOCK_SKEW_S: Final = 60.0
_CHUNK: Final = 1 << 20


class Stopped(Exception):  # noqa: N818 - what became of the audit
    """The time was up after `read` bytes."""

    def __init__(self, read: int) -> None:
        super().__init__(f"stopped after {read} bytes")
        self.read = read


@dataclass(frozen=True)
class Finding:
    """One thing that an audit saw: how bad, which check, the path relative to the run, what. `errno`: why it could not be read, 0 else."""

    level: Level
    check: str
    path: str
    message: str
    errno: int = 0

    def as_json(self) -> dict[str, str]:
        return {"level": self.level, "check": self.check, "path": self.path, "message": self.message}


@dataclass
class Case:
    """One run under audit. Records are read once; every read that fails leaves a finding.

    `deep`: the bytes of package files and artifacts are read; else their sizes are compared, and records, scripts and chains are read all the same.
    `stop` is asked between chunks of bytes. `listed`: bytes of the files and artifacts that are listed and there; `hashed`: bytes that were read.
    """

    run: RunPaths
    now: Callable[[], float] = time.time
    deep: bool = True
    stop: Callable[[], bool] = lambda: False
    listed: int = 0
    hashed: int = 0
    findings: list[Finding] = field(default_factory=list)
    _read: dict[Path, Any] = field(default_factory=dict)
    _unseen: set[Path] = field(default_factory=set)

    @property
    def root(self) -> StorageRoot:
        return StorageRoot(self.run.root.parents[3])

    def shown(self, path: Path) -> str:
        return escaped(os.path.relpath(path, self.run.root))

    def _add(self, level: Level, check: str, path: Path, message: str, number: int = 0) -> None:
        # Names and values are the owner's words, who may not be the reader's friend.
        self.findings.append(Finding(level, check, self.shown(path), escaped(message), number))

    def tampered(self, check: str, path: Path, message: str) -> None:
        self._add("tampered", check, path, message)

    def incomplete(self, check: str, path: Path, message: str) -> None:
        self._add("incomplete", check, path, message)

    def note(self, check: str, path: Path, message: str) -> None:
        self._add("note", check, path, message)

    def failed(self, check: str, path: Path, exc: OSError) -> None:
        """A file that is there and cannot be opened: a right that is missing, or something that is no file."""
        if exc.errno is None or exc.errno in _NOT_A_RECORD:
            self.tampered(check, path, "is not a regular file")
        else:
            self._unseen.add(path)
            self._add("incomplete", check, path, f"cannot be read: {exc.strerror or exc}", exc.errno)

    def blind(self, path: Path) -> bool:
        """Whether this path, a folder above it, or something in it could not be read: then nothing may be said to be gone."""
        return any(u == path or u in path.parents or path in u.parents for u in self._unseen)

    def gone(self, check: str, path: Path, message: str) -> None:
        """A record is missing that another one names: tampered, unless this user may not see it or something was said about it."""
        if not self.blind(path) and not any(f.path == self.shown(path) for f in self.findings):
            self.tampered(check, path, message)

    def json(self, check: str, path: Path) -> dict[str, Any] | None:
        """A record, or None where it is missing or cannot be used; the latter leaves a finding."""
        if path not in self._read:
            self._read[path] = self._json(check, path)
        value: dict[str, Any] | None = self._read[path]
        return value

    def _json(self, check: str, path: Path) -> dict[str, Any] | None:
        try:
            value = read_json(path)
        except FileNotFoundError:
            return None
        except OSError as exc:
            self.failed(check, path, exc)
            return None
        except ValueError as exc:
            self.tampered(check, path, f"is not a record: {exc}")
            return None
        if not isinstance(value, dict):
            self.tampered(check, path, "is not an object")
            return None
        return value

    def digest(self, check: str, path: Path) -> str | None:
        """SHA-256 of a small file, or None where it is missing or cannot be read (with a finding)."""
        try:
            return digest_bytes(read_bytes(path))
        except FileNotFoundError:
            return None
        except OSError as exc:
            self.failed(check, path, exc)
        except ValueError as exc:
            self.tampered(check, path, str(exc))
        return None

    def went_on(self, count: int) -> None:
        """So many more bytes were read. Raises Stopped."""
        self.hashed += count
        if self.stop():
            raise Stopped(self.hashed)

    def file_digest(self, path: Path) -> str:
        """SHA-256 of a file of any size. Raises OSError; Stopped where the time is up."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError("not a regular file")
            sha, buffer = hashlib.sha256(), memoryview(bytearray(_CHUNK))
            while count := os.readv(fd, [buffer]):
                sha.update(buffer[:count])
                self.went_on(count)
            return PREFIX + sha.hexdigest()
        finally:
            os.close(fd)

    def age_s(self, path: Path) -> float:
        """Seconds since a file was written, by this machine's clock; a file from the future is taken for an old one."""
        try:
            age = self.now() - os.lstat(path).st_mtime
        except OSError:
            return float("inf")
        return age if age >= -CLOCK_SKEW_S else float("inf")

    def text(self, check: str, path: Path) -> str | None:
        """A short text file, or None where it is missing or cannot be used (with a finding)."""
        try:
            return read_bytes(path, limit=4096).decode("utf-8")
        except FileNotFoundError:
            return None
        except OSError as exc:
            self.failed(check, path, exc)
        except ValueError as exc:
            self.tampered(check, path, f"is not a record: {exc}")
        return None

    def names(self, check: str, folder: Path) -> list[str]:
        """Names in a folder without hidden ones; a missing folder has none, one that may not be read leaves a finding."""
        try:
            return sorted(n for n in os.listdir(folder) if not n.startswith("."))
        except FileNotFoundError:
            return []
        except OSError as exc:
            self.failed(check, folder, exc)
            return []

    def numbered(self, check: str, folder: Path, suffix: str = "") -> list[int]:
        stems = [n.removesuffix(suffix) for n in self.names(check, folder) if n.endswith(suffix)]
        return sorted(int(s) for s in stems if s.isascii() and s.isdigit() and len(s) < 10 and str(int(s)) == s)

    def chains(self, folder: Path) -> dict[str, Chain]:
        """Every event file of a folder as a judged chain, by writer."""
        out: dict[str, Chain] = {}
        for name in self.names("events", folder):
            path = folder / name
            if not name.endswith(".jsonl"):
                continue
            try:
                events, unreadable = parse_lines(read_bytes(path))
            except OSError as exc:
                self.failed("events", path, exc)
                continue
            except ValueError as exc:
                self.tampered("events", path, str(exc))
                continue
            writer = name.removesuffix(".jsonl")
            if not WRITER.match(writer):
                self.tampered("events", path, "is not the name of a writer")
                continue
            out[writer] = check_chain(writer, events, unreadable)
        return out
