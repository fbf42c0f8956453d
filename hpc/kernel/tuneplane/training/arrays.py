"""Folders of number arrays that are made once, kept by content and mapped into memory: what tokens and packs are stored as.

Nothing of a folder is held in memory while it is made. A folder counts only if it is whole and this user's own: up to FULL_CHECK bytes every byte is
compared with the digests of its meta.json, above that sizes, times and evenly spread samples are, so that a start takes no longer on more data.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import stat
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from tuneplane.record.canonical import pretty_bytes
from tuneplane.record.digest import PREFIX, digest_file, digest_json
from tuneplane.record.files import fsync_dir, publish_dir, read_json, write_new

FULL_CHECK = 256 << 20
META = "meta.json"
_KINDS = {"i": "<i4", "q": "<i8", "b": "<i1", "B": "u1"}
"""Typecodes of `array`, and numpy's names for them."""
_BUFFER = 1 << 16
_SAMPLES, _BLOCK = 64, 64 << 10


class ArrayWriter:
    """New files of numbers, one an array, each hashed while it is written. `kinds`: name to typecode."""

    def __init__(self, folder: Path, kinds: Mapping[str, str]) -> None:
        self._folder, self._held = folder, {name: array(code) for name, code in kinds.items()}
        self._shas = {name: hashlib.sha256() for name in kinds}
        self.streams: dict[str, BinaryIO] = {n: open(folder / f"{n}.bin", "wb") for n in kinds}  # noqa: SIM115 - closed by `writing`

    def extend(self, name: str, values: Iterable[int]) -> None:
        held = self._held[name]
        held.extend(values)
        if len(held) >= _BUFFER:
            self._flush(name)

    def append(self, name: str, value: int) -> None:
        self.extend(name, (value,))

    def _flush(self, name: str) -> None:
        data = self._held[name].tobytes()
        self.streams[name].write(data)
        self._shas[name].update(data)
        del self._held[name][:]

    def finish(self) -> dict[str, dict[str, Any]]:
        """Write out and sync everything; returns what meta.json keeps of each file."""
        out = {}
        for name, stream in self.streams.items():
            self._flush(name)
            stream.flush()
            os.fchmod(stream.fileno(), 0o644)
            os.fsync(stream.fileno())
            path = self._folder / f"{name}.bin"
            info = path.stat()
            out[name] = {
                "kind": self._held[name].typecode, "size": info.st_size, "sha256": PREFIX + self._shas[name].hexdigest(),
                "mtime_ns": info.st_mtime_ns, "samples_sha256": _samples(path, info.st_size),
            }  # fmt: skip
        return out


@contextmanager
def writing(folder: Path, kinds: Mapping[str, str]) -> Iterator[ArrayWriter]:
    """A writer whose files are closed in the end, whatever happens."""
    writer = ArrayWriter(folder, kinds)
    try:
        yield writer
    finally:
        for stream in writer.streams.values():
            stream.close()


def _samples(path: Path, size: int) -> str:
    """Digest of evenly spread blocks: a file that was cut, torn or overwritten in part shows in them, a single flipped bit may not."""
    sha = hashlib.sha256()
    with open(path, "rb") as stream:
        for number in range(_SAMPLES):
            stream.seek((size - _BLOCK) * number // (_SAMPLES - 1) if size > _BLOCK else 0)
            sha.update(stream.read(_BLOCK))
            if size <= _BLOCK:
                break
    return PREFIX + sha.hexdigest()


def open_arrays(folder: Path, schema: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays of a finished folder, mapped read-only, and its meta. Raises OSError or ValueError when it is not whole (by size)."""
    import numpy as np

    meta = read_json(folder / META)
    if not isinstance(meta, dict) or meta.get("schema") != schema:
        raise ValueError(f"{folder}: not a folder of this release ({schema})")
    out: dict[str, Any] = {}
    for name, facts in meta["files"].items():
        path, kind = folder / f"{name}.bin", _KINDS[facts["kind"]]
        if os.path.getsize(path) != facts["size"]:
            raise ValueError(f"{path}: not the size that was written")
        # No file of nothing can be mapped.
        out[name] = np.memmap(path, dtype=kind, mode="r") if facts["size"] else np.zeros(0, kind)
    return out, meta


def is_whole(folder: Path) -> bool:
    """True if the folder is this user's own, and its files are what its meta.json records."""
    try:
        info = os.lstat(folder)
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o022:
            return False
        meta = read_json(folder / META)
        told = meta.pop("digest")
        if told != digest_json(meta):
            return False
        files: Mapping[str, Any] = meta["files"]
        full = sum(facts["size"] for facts in files.values()) <= FULL_CHECK
        return all(_is_file(folder / f"{name}.bin", facts, full) for name, facts in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _is_file(path: Path, facts: Mapping[str, Any], full: bool) -> bool:
    info = os.lstat(path)
    if not stat.S_ISREG(info.st_mode) or info.st_uid != os.getuid() or info.st_size != facts["size"]:
        return False
    if full:
        return bool(digest_file(path) == facts["sha256"])
    return bool(info.st_mtime_ns == facts["mtime_ns"] and _samples(path, info.st_size) == facts["samples_sha256"])


def kept(cache: Path, key: str, make: Callable[[Path], dict[str, Any]], elsewhere: Iterable[Path] = ()) -> Path:
    """The folder below `cache` that `key`, a digest of all it depends on, names; made now if it is not there whole.

    `make` fills an empty folder and returns its meta, `schema` and `files` (of ArrayWriter) among it. A damaged folder is made again; one that stands
    whole in a cache `elsewhere` is copied instead. Others may make the same at the same time: the first whole one stays.
    """
    folder = cache / key.removeprefix(PREFIX)[:32]
    if is_whole(folder):
        return folder
    _clear(folder)
    temp = cache / f".{folder.name}.{secrets.token_hex(6)}.tmp"
    temp.mkdir(parents=True, mode=0o755)
    try:
        temp.chmod(0o755)
        if not any(_copied(other / folder.name, temp) for other in elsewhere):
            meta = make(temp) | {"key": key}
            write_new(temp / META, pretty_bytes(meta | {"digest": digest_json(meta)}))
            fsync_dir(temp)
        try:
            publish_dir(temp, folder)
        except FileExistsError:
            if not is_whole(folder):
                raise
    finally:
        shutil.rmtree(temp, ignore_errors=True)
    return folder


def _copied(found: Path, temp: Path) -> bool:
    """True if `temp` is now a whole copy of the folder `found`; it is empty else. A copy, since another run's folder goes when that run does."""
    if not is_whole(found):
        return False
    try:
        for name in sorted(os.listdir(found), reverse=True):
            shutil.copy2(found / name, temp / name)
            with open(temp / name, "rb") as stream:
                os.fsync(stream.fileno())
        fsync_dir(temp)
    except OSError:
        pass  # it went away, or the disk is full: whoever makes it will say so
    if is_whole(temp):
        return True
    for path in temp.iterdir():
        path.unlink()
    return False


def clear_leftovers(cache: Path) -> None:
    """Take away what makers of earlier attempts left half made when they were killed. Only while nobody makes anything there."""
    for temp in cache.glob(".*.tmp"):
        shutil.rmtree(temp, ignore_errors=True)


def _clear(folder: Path) -> None:
    """Take away a damaged folder: content addressed, so making it again loses nothing."""
    if os.path.lexists(folder):
        if folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder)
        else:
            folder.unlink()
