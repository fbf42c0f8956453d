"""A quick look at one version: names, sizes, owners, modes, links, and the record; every file is asked for once and none is read but the record.

Used by resolving and by the audit, so that what an audit finds is what a reference refuses. Does not promise that the bytes are right: that is
`hpc.registry.content`. Written for speed: descriptors instead of paths, one record read a version.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from tuneplane.record.digest import MAX_DEPTH, is_relative

from hpc.registry.problems import TAMPERED, Problem, is_gone, is_stale, of_error
from hpc.registry.records import RecordError, decode_known, decode_record, read_raw
from hpc.registry.shapes import misfit
from hpc.registry.shelf import CONTENT, RECORD
from hpc.registry.trees import FOLDER

SCHEMA: Final = "tuneplane-hpc/registry-record/v1"
KEYS: Final = frozenset(
    ("schema", "kind", "owner", "name", "version", "digest", "digest_v2", "size", "files", "facts", "published", "starts", "record_digest")
)  # fmt: skip
_DIR_MODE: Final = stat.S_IFDIR | 0o555
_PLAIN: Final = stat.S_IFREG | 0o444
_EXEC: Final = stat.S_IFREG | 0o555
_RECORD: Final = stat.S_IFREG | 0o444
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}").fullmatch
_USUAL: Final = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.+-]*/)*[A-Za-z0-9_][A-Za-z0-9_.+-]*").fullmatch
"""Paths that need no closer look; an audit asks for every file of every version."""
_PUBLISHED: Final = {
    "method?": str, "actor?": str, "uid?": int, "at?": str, "archive_sha256?": str, "core_version?": str,
}  # fmt: skip
ENTRY_KEYS: Final = frozenset(("path", "type", "exec", "size", "sha256"))


class Subject(NamedTuple):
    """Which version a folder is meant to hold, whose uid it must have, its path for messages, and the shape of its kind's facts."""

    kind: str
    owner: str
    name: str
    version: str
    uid: int
    where: str
    facts: Any


class Look(NamedTuple):
    """The record, if it can be believed by itself, and everything that is wrong."""

    record: Mapping[str, Any] | None
    problems: list[Problem]


def look(package_fd: int, subject: Subject, sealed: str = "") -> Look:
    """Look at the version below the package's folder. Raises OSError ESTALE only; everything else is a problem.

    `sealed`: the record's digest as a seal has it that is believed; a record that still has it is read in a cheaper way.
    """
    problems: list[Problem] = []
    record = None
    try:
        fd = os.open(subject.version, FOLDER, dir_fd=package_fd)
    except OSError as exc:
        return Look(None, [_unopened(exc, subject.where, "E-REG-012")])
    try:
        _judge_folder(os.fstat(fd), subject.uid, subject.where, problems)
        names = os.listdir(fd)
        if len(names) != 2 or RECORD not in names or CONTENT not in names:
            for name in names:
                if name not in (RECORD, CONTENT):
                    problems.append(_extra(f"{subject.where}/{name}"))
        record = _read_record(fd, subject, sealed, problems)
        _look_at_content(fd, subject, record, problems)
    except OSError as exc:
        if is_stale(exc):
            raise
        problems.append(of_error(exc, subject.where))
    finally:
        os.close(fd)
    return Look(record, problems)


def _unopened(exc: OSError, where: str, code: str) -> Problem:
    if is_stale(exc):
        raise exc
    if exc.errno == errno.ENOENT:
        return Problem(TAMPERED, code, where, "is missing")
    if is_gone(exc):
        return Problem(TAMPERED, code, where, "is no real folder")
    return of_error(exc, where)


def _extra(where: str) -> Problem:
    return Problem(TAMPERED, "E-REG-013", where, "does not belong here")


def _judge_folder(found: os.stat_result, uid: int, where: str, problems: list[Problem]) -> None:
    if found.st_mode != _DIR_MODE or found.st_uid != uid:
        problems.append(_wrong(found, uid, _DIR_MODE, where))


def _wrong(found: os.stat_result, uid: int, mode: int, where: str) -> Problem:
    """Owner or mode. A kind of file that is not the expected one is told apart from a mode."""
    if stat.S_IFMT(found.st_mode) != stat.S_IFMT(mode):
        return Problem(
            TAMPERED, "E-REG-013", where, "is a link" if stat.S_ISLNK(found.st_mode) else "is not a plain file"
        )
    if found.st_uid != uid:
        return Problem(
            TAMPERED, "E-REG-015", where, f"belongs to uid {found.st_uid}", f"uid {found.st_uid}", f"uid {uid}"
        )
    have, want = stat.S_IMODE(found.st_mode), stat.S_IMODE(mode)
    return Problem(TAMPERED, "E-REG-015", where, f"has mode {have:04o}", f"{have:04o}", f"{want:04o}")


def _read_record(fd: int, subject: Subject, sealed: str, problems: list[Problem]) -> Mapping[str, Any] | None:
    where = f"{subject.where}/{RECORD}"
    try:
        raw = read_raw(RECORD, dir_fd=fd)
        if raw.found.st_mode != _RECORD or raw.found.st_uid != subject.uid:
            problems.append(_wrong(raw.found, subject.uid, _RECORD, where))
        record = (decode_known(raw.data, SCHEMA, sealed) if sealed else None) or decode_record(raw.data, SCHEMA)
        check_record(record, subject)
    except FileNotFoundError:
        problems.append(Problem(TAMPERED, "E-REG-012", where, "is missing"))
        return None
    except RecordError as exc:
        problems.append(Problem(TAMPERED, "E-REG-012", where, str(exc)))
        return None
    except OSError as exc:
        if is_stale(exc):
            raise
        problems.append(of_error(exc, where))
        return None
    return record


def check_record(record: Mapping[str, Any], subject: Subject) -> None:
    """Raise RecordError unless the record is the one of this subject, with every field that a record has."""
    if record.keys() != KEYS:
        raise RecordError(f"lacks or adds {', '.join(sorted(record.keys() ^ KEYS))}"[:200])
    for key in ("kind", "owner", "name", "version"):
        if record[key] != getattr(subject, key):
            raise RecordError(f"is the record of {key} {record[key]!r:.80}, not of {getattr(subject, key)!r}")
    if not _is_digest(record["digest"]) or not _is_digest(record["digest_v2"]):
        raise RecordError("has no digests")
    if record["starts"] not in ("enabled", "disabled"):
        raise RecordError(f"starts as {record['starts']!r:.80}")
    files = record["files"]
    if not isinstance(files, list) or type(record["size"]) is not int:
        raise RecordError("has a field of another shape")
    if bad := misfit(record["facts"], subject.facts, "facts") or misfit(record["published"], _PUBLISHED, "published"):
        raise RecordError(f"has a field of another shape: {bad}")
    total = 0
    for entry in files:
        if not _is_entry(entry):
            raise RecordError(f"lists what is no file: {entry!r:.120}")
        total += entry["size"]
    if total != record["size"]:
        raise RecordError(f"states {record['size']} bytes and lists {total}")


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or entry.keys() != ENTRY_KEYS:
        return False
    path, size = entry["path"], entry["size"]
    named = type(path) is str and entry["type"] == "file" and (_USUAL(path) or is_relative(path))
    return bool(
        named and type(size) is int and size >= 0 and type(entry["exec"]) is bool and _is_digest(entry["sha256"])
    )


def _is_digest(value: Any) -> bool:
    return type(value) is str and _DIGEST(value) is not None


def _look_at_content(fd: int, subject: Subject, record: Mapping[str, Any] | None, problems: list[Problem]) -> None:
    where = f"{subject.where}/{CONTENT}"
    try:
        content = os.open(CONTENT, FOLDER, dir_fd=fd)
    except OSError as exc:
        problems.append(_unopened(exc, where, "E-REG-013"))
        return
    try:
        _judge_folder(os.fstat(content), subject.uid, where, problems)
        if record is None:
            return
        left = {e["path"]: e for e in record["files"]}
        if len(left) != len(record["files"]):
            problems.append(Problem(TAMPERED, "E-REG-012", f"{subject.where}/{RECORD}", "lists one path twice"))
        _Content(subject.uid, where, left, problems).walk(content, "", 0)
        for path in left:
            problems.append(Problem(TAMPERED, "E-REG-013", f"{where}/{path}", "is missing"))
    finally:
        os.close(content)


class _Content:
    """The walk through one version's content; what is found is taken off `left`."""

    def __init__(self, uid: int, where: str, left: dict[str, Any], problems: list[Problem]) -> None:
        self.uid, self.where, self.left, self.problems = uid, where, left, problems
        self.folders: set[str] | None = None

    def walk(self, fd: int, prefix: str, depth: int) -> None:
        uid, left, problems = self.uid, self.left, self.problems
        with os.scandir(fd) as entries:
            for entry in entries:
                name = entry.name
                path = prefix + name
                found = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode):
                    self.enter(fd, name, path, found, depth)
                    continue
                want = left.pop(path, None)
                if want is None:
                    problems.append(_extra(f"{self.where}/{path}"))
                    continue
                mode = _EXEC if want["exec"] else _PLAIN
                if found.st_mode != mode or found.st_uid != uid:
                    problems.append(_wrong(found, uid, mode, f"{self.where}/{path}"))
                elif found.st_size != want["size"]:
                    text = f"has {found.st_size} bytes, not {want['size']}"
                    problems.append(Problem(TAMPERED, "E-REG-013", f"{self.where}/{path}", text))
                if found.st_nlink != 1:
                    text = f"has {found.st_nlink} names"
                    problems.append(Problem(TAMPERED, "E-REG-013", f"{self.where}/{path}", text))

    def enter(self, fd: int, name: str, path: str, found: os.stat_result, depth: int) -> None:
        if self.folders is None:
            self.folders = {p[:i] for p in self.left for i in range(len(p)) if p[i] == "/"}
        if path not in self.folders or depth >= MAX_DEPTH:
            # A folder of which the record knows nothing is named once and not entered: it may be endless.
            self.problems.append(_extra(f"{self.where}/{path}"))
            return
        _judge_folder(found, self.uid, f"{self.where}/{path}", self.problems)
        try:
            below = os.open(name, FOLDER, dir_fd=fd)
        except OSError as exc:
            if is_stale(exc):
                raise
            self.problems.append(of_error(exc, f"{self.where}/{path}"))
            # What nobody could look at is not missing.
            for unseen in [p for p in self.left if p.startswith(path + "/")]:
                del self.left[unseen]
            return
        try:
            self.walk(below, path + "/", depth + 1)
        finally:
            os.close(below)
