"""The bytes of a version against its record: every file read once, each difference named with both digests.

Does not say whether the record is the right one: `hpc.registry.look` and the seal do.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from typing import Any

from tuneplane.record.digest import PREFIX, FileEntry, tree_digest_v2

from hpc.errors.core import Refusal
from hpc.registry.problems import INCOMPLETE, TAMPERED, Problem, is_stale, of_error, of_refusal
from hpc.registry.trees import CHUNK, FILE, FOLDER, Found, walk

Stop = Callable[[], bool]


class Hasher:
    """Hashes files of one version. `v1` adds the documented digest, which costs a second pass of SHA-256 over each chunk in memory."""

    def __init__(self, where: str, record: Mapping[str, Any], *, v1: bool, stop: Stop = lambda: False) -> None:
        self.where, self.record, self.stop = where, record, stop
        self.v1 = hashlib.sha256() if v1 else None
        self.read = 0
        self.problems: list[Problem] = []
        self.stopped = False
        self._buffer = memoryview(bytearray(CHUNK))

    def run(self, content_fd: int) -> None:
        """Compare all. Raises OSError ESTALE only."""
        left = {e["path"]: e for e in self.record["files"]}
        try:
            for found in walk(content_fd, lenient=False):
                if self.stop():
                    self.stopped = True
                    return
                self._one(found, left.pop(found.path, None))
        except Refusal as fault:
            path = f"{self.where}/{fault.field}"
            self.problems.append(of_refusal(Refusal("E-REG-013", fault.message, field=path), path))
            return
        except OSError as exc:
            if is_stale(exc):
                raise
            self.problems.append(of_error(exc, self.where))
            return
        for path in left:
            self.problems.append(Problem(TAMPERED, "E-REG-013", f"{self.where}/{path}", "is missing"))
        if not self.problems:
            self._whole()

    def _one(self, found: Found, want: Mapping[str, Any] | None) -> None:
        path = f"{self.where}/{found.path}"
        try:
            digest = self._digest(found)
        except OSError as exc:
            if is_stale(exc):
                raise
            self.problems.append(of_error(exc, path))
            return
        if want is None:
            self.problems.append(Problem(TAMPERED, "E-REG-013", path, "does not belong here", digest))
        elif digest != want["sha256"]:
            text = f"has other bytes: recorded {want['sha256']}, found {digest}"
            self.problems.append(Problem(TAMPERED, "E-REG-013", path, text, digest, want["sha256"]))
        elif found.exec != want["exec"]:
            text = f"is {'' if found.exec else 'not '}executable"
            self.problems.append(Problem(TAMPERED, "E-REG-015", path, text))

    def _digest(self, found: Found) -> str:
        sha, buffer, v1 = hashlib.sha256(), self._buffer, self.v1
        if v1 is not None:
            v1.update(found.path.encode("utf-8") + b"\0")
        fd = os.open(found.name, FILE, dir_fd=found.dir_fd)
        try:
            while count := os.readv(fd, [buffer]):
                sha.update(buffer[:count])
                if v1 is not None:
                    v1.update(buffer[:count])
                self.read += count
        finally:
            os.close(fd)
        if v1 is not None:
            v1.update(b"\0")
        return PREFIX + sha.hexdigest()

    def _whole(self) -> None:
        """Every file is as listed; now the digests over all of them."""
        record = self.record
        v2 = tree_digest_v2(FileEntry.from_json(e) for e in record["files"])
        found = {"digest_v2": v2} | ({"digest": PREFIX + self.v1.hexdigest()} if self.v1 is not None else {})
        for key, digest in found.items():
            if digest != record[key]:
                text = f"{key} is recorded as {record[key]}, the content gives {digest}"
                self.problems.append(Problem(TAMPERED, "E-REG-013", self.where, text, digest, record[key]))


def hash_content(
    content: str | os.PathLike[str], where: str, record: Mapping[str, Any], *, v1: bool, stop: Stop = lambda: False
) -> Hasher:
    """Hash one content folder by path; a stale handle is tried again from there, twice. Never raises for what it finds."""
    for attempt in (0, 1, 2):
        hasher = Hasher(where, record, v1=v1, stop=stop)
        try:
            fd = os.open(content, FOLDER)
            try:
                hasher.run(fd)
            finally:
                os.close(fd)
            break
        except FileNotFoundError:
            hasher.problems.append(Problem(TAMPERED, "E-REG-013", where, "is missing"))
            break
        except OSError as exc:
            if not is_stale(exc) or attempt == 2:
                hasher.problems.append(of_error(exc, where))
                break
    if hasher.stopped:
        hasher.problems.append(Problem(INCOMPLETE, "deadline", where, "was not read to its end"))
    return hasher
