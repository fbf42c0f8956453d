"""The request file: which inputs, which configuration; and what the inputs were when the provider got them."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuneplane.contract.transforms import API
from tuneplane.record.canonical import parse_json
from tuneplane.record.digest import PREFIX, FileEntry, digest_bytes, digest_json, tree_digest_v2
from tuneplane.record.files import read_bytes
from tuneplane.transforms.limits import CHUNK, MAX_REQUEST_BYTES
from tuneplane.transforms.stop import refused

KEYS = frozenset({"api", "inputs", "config"})


@dataclass(frozen=True)
class Request:
    """A checked request. `inputs` maps names to absolute paths that existed when it was read."""

    inputs: dict[str, Path]
    config: dict[str, Any]
    digest: str

    @property
    def config_digest(self) -> str:
        return digest_json(self.config)


def read_request(path: Path) -> Request:
    """Input paths are relative to the request's folder and may be anywhere. Raises Stop E-JOB-040."""
    try:
        data = read_bytes(path, limit=MAX_REQUEST_BYTES)
        value = parse_json(data)
    except OSError as exc:
        raise refused("E-JOB-040", f"the request {path} cannot be read: {exc.strerror or exc}") from exc
    except ValueError as exc:
        raise refused("E-JOB-040", f"the request {path}: {exc}") from exc
    if not isinstance(value, dict):
        raise refused("E-JOB-040", "the request is not a JSON object")
    if unknown := sorted(set(value) - KEYS):
        allowed = ", ".join(sorted(KEYS))
        raise refused("E-JOB-040", f"the request has unknown keys: {', '.join(unknown)} (allowed: {allowed})")
    if value.get("api") != API:
        raise refused("E-JOB-040", f"api is {value.get('api')!r}, this runner speaks {API!r}")
    config = value.get("config", {})
    if not isinstance(config, dict):
        raise refused("E-JOB-040", f"config is {type(config).__name__}, not an object")
    return Request(_inputs(path, value.get("inputs")), config, digest_bytes(data))


def _inputs(request: Path, named: Any) -> dict[str, Path]:
    if not isinstance(named, dict) or not named:
        raise refused("E-JOB-040", "inputs is not an object that names at least one path")
    out = {}
    for name, text in named.items():
        if not name or not isinstance(text, str) or not text or "\0" in text:
            raise refused("E-JOB-040", f"inputs.{name} is not a path: {text!r}")
        path = Path(os.path.abspath(request.absolute().parent / text))
        try:
            mode = os.stat(path).st_mode
        except OSError as exc:
            raise refused("E-JOB-040", f"inputs.{name}: {path}: {exc.strerror or exc}") from exc
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise refused("E-JOB-040", f"inputs.{name}: {path} is neither a file nor a folder")
        out[name] = path
    return out


def _files(name: str, path: Path) -> Iterator[tuple[str, str]]:
    """(path relative to the input, full path) of every file; "" for an input that is one file."""
    if path.is_file():
        yield "", str(path)
        return
    for folder, subfolders, names in os.walk(path, onerror=_unreadable(name)):
        subfolders.sort()
        for one in sorted([*subfolders, *names]):
            full = os.path.join(folder, one)
            mode = os.stat(full).st_mode
            if stat.S_ISDIR(mode) and not os.path.islink(full):
                continue
            if not stat.S_ISREG(mode):
                what = "a link to a folder" if stat.S_ISDIR(mode) else "neither a file nor a folder"
                raise refused("E-JOB-040", f"inputs.{name}: {full} is {what}")
            yield os.path.relpath(full, path), full


def _unreadable(name: str) -> Callable[[OSError], None]:
    def stop(exc: OSError) -> None:
        raise refused("E-JOB-040", f"inputs.{name}: {exc.filename}: {exc.strerror}") from exc

    return stop


@dataclass(frozen=True)
class Described:
    """An input as the report names it, and what the file system said of its files then."""

    row: dict[str, Any]
    seen: tuple[tuple[str, int, int, int], ...]


def describe(name: str, path: Path, check: Callable[[], None]) -> Described:
    """Hash one input; `check` is called between chunks and may raise. A link to a file counts as its content.

    A folder's digest frames path, exec bit, size and SHA-256 of each file (`tree_digest_v2`). Raises Stop E-JOB-040.
    """
    entries, seen = [], []
    try:
        for relative, full in _files(name, path):
            digest, info = _hash(full, check)
            entries.append(FileEntry(relative, bool(info.st_mode & stat.S_IXUSR), info.st_size, digest))
            seen.append((relative, info.st_ino, info.st_size, info.st_mtime_ns))
    except OSError as exc:
        raise refused("E-JOB-040", f"inputs.{name}: {exc.filename or path}: {exc.strerror or exc}") from exc
    size = sum(e.size for e in entries)
    row: dict[str, Any] = {"path": str(path), "size": size}
    if path.is_dir():
        row |= {"type": "folder", "files": len(entries), "digest_v2": tree_digest_v2(entries)}
    else:
        row |= {"type": "file", "sha256": entries[0].sha256}
    return Described(row, tuple(seen))


def _hash(path: str, check: Callable[[], None]) -> tuple[str, os.stat_result]:
    sha = hashlib.sha256()
    with open(path, "rb", buffering=0) as stream:
        while chunk := stream.read(CHUNK):
            sha.update(chunk)
            check()
        return PREFIX + sha.hexdigest(), os.fstat(stream.fileno())


def unchanged(name: str, path: Path, described: Described) -> bool:
    """True while the input's files have the same names, sizes and times as when they were hashed; does not read them again."""
    try:
        now = []
        for relative, full in _files(name, path):
            info = os.stat(full)
            now.append((relative, info.st_ino, info.st_size, info.st_mtime_ns))
    except OSError:
        return False
    return tuple(now) == described.seen
