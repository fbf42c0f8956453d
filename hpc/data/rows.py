"""Rows of files that are named by path, folder or reference, for whoever judges them. Streams; memory is bounded by the longest row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tuneplane.contract.datarows import DataFault, DataFaults, parquet_batches, parse_row, read_lines
from tuneplane.contract.datasets import CARD, MANIFEST, assign, folder_files, is_data
from tuneplane.contract.layout import StorageRoot

from hpc.data.kinds import raise_faults, read_manifest, to_refusal
from hpc.data.references import choose_files, version_of
from hpc.errors.core import Refusal
from hpc.registry.trees import skipped
from hpc.store.faults import refusal

if TYPE_CHECKING:
    from hpc.site.sitefile import Site

CHUNK: Final = 4 << 20
_ODD: Final = (b"\r", b" \n", b"\t\n", b"\n ", b"\n\t", b"\v", b"\f")


@dataclass(frozen=True)
class Source:
    """One data file: how it is shown, where it lies, how large it is, and its digest where a record has it."""

    name: str
    path: Path
    size: int
    sha256: str = ""


def find_sources(
    target: str, split: str = "", *, root: StorageRoot | None, site: Site | None = None, field: str = ""
) -> list[Source]:
    """The data files of a file, a folder, or a data set on the shelf; of one split where it is named.

    Without a split: the split `train` of a data set that has one, else all data files. Raises Refusal E-DATA-00x, E-DATA-010, E-REG-*, E-STORE-02x.
    """
    path = Path(target)
    if path.is_file():
        return [Source(target, path, path.stat().st_size)]
    if path.is_dir():
        return _folder(path, split, field)
    if root is None:
        raise Refusal("E-DATA-006", "is neither a file nor a folder", field=field, found=target)
    version = version_of(root, site, target, field)
    name = split or ("train" if "train" in version.facts["splits"] else "")
    chosen = choose_files(version, name, "", validation=False, field=field)[1] if name else version.files
    return [
        Source(f"{version}:{f.path}", version.content / f.path, f.size, f.sha256) for f in chosen if is_data(f.path)
    ]


def evaluation_files(
    target: str, split: str = "", *, root: StorageRoot | None, site: Site | None = None, field: str = ""
) -> list[Source]:
    """The data files of a set that models are measured on: of one split, else of all splits but train, else all. Raises as `find_sources`."""
    if split or Path(target).exists() or root is None:
        return find_sources(target, split, root=root, site=site, field=field)
    version = version_of(root, site, target, field)
    learned = set(version.facts["splits"].get("train", {}).get("files", ()))
    data = [f for f in version.files if is_data(f.path)]
    chosen = [f for f in data if f.path not in learned] or data
    return [Source(f"{version}:{f.path}", version.content / f.path, f.size, f.sha256) for f in chosen]


def _folder(folder: Path, split: str, field: str) -> list[Source]:
    try:
        paths = folder_files(folder, skipped)
        splits = assign([p for p in paths if p not in (CARD, MANIFEST)], read_manifest(folder))
    except DataFaults as faults:
        raise_faults(faults)
        raise
    except OSError as exc:
        raise refusal(exc, folder, "read") from exc
    if split and split not in splits:
        raise Refusal(
            "E-DATA-010",
            f"{folder} has no split {split!r}",
            field=field,
            found=split,
            allowed=", ".join(splits) or "none",
        )
    members = splits[split] if split else splits.get("train") or [p for p in paths if is_data(p)]
    return [Source(f"{folder}/{p}", folder / p, paths[p]) for p in members if is_data(p)]


def chunks(source: Source) -> Iterator[list[bytes]]:
    """The rows as the bytes that stand in the file, white space around them cut off, some thousand at a time; empty lines are left out.

    Rows of Parquet are their JSON with sorted keys. Raises Refusal E-DATA-004, E-STORE-02x.
    """
    try:
        if source.path.suffix == ".parquet":
            for batch in _batches(source):
                yield [json.dumps(row, sort_keys=True, ensure_ascii=False, default=str).encode() for row in batch]
            return
        with open(source.path, "rb", buffering=0) as raw:
            rest = b""
            while block := raw.read(CHUNK):
                held = rest + block
                lines = held.split(b"\n")
                rest = lines.pop()
                yield _stripped(lines, held)
            if rest.strip():
                yield [rest.strip()]
    except OSError as exc:
        raise refusal(exc, source.path, "read") from exc


def _stripped(lines: list[bytes], block: bytes) -> list[bytes]:
    """The lines without white space around them, and without empty ones. Most files have none, and a look at the block is cheaper."""
    if any(odd in block for odd in _ODD) or b"" in lines or (lines and lines[0][:1].isspace()):
        return [line for line in map(bytes.strip, lines) if line]
    return lines


def numbered(source: Source) -> Iterator[tuple[int, bytes]]:
    """(line from 1, row as `chunks` gives it). Raises Refusal E-DATA-003 (a row that is too long), E-DATA-004, E-STORE-02x."""
    try:
        if source.path.suffix == ".parquet":
            yield from enumerate((row for chunk in chunks(source) for row in chunk), 1)
            return
        with open(source.path, "rb", buffering=1 << 20) as stream:
            for number, line in read_lines(stream, source.name):
                yield number, line.strip()
    except DataFault as fault:
        raise to_refusal(fault) from fault
    except OSError as exc:
        raise refusal(exc, source.path, "read") from exc


def rows(source: Source) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line from 1, row). Raises Refusal E-DATA-003, E-DATA-004, E-STORE-02x."""
    try:
        if source.path.suffix == ".parquet":
            number = 0
            for batch in _batches(source):
                for row in batch:
                    number += 1
                    yield number, row
            return
        with open(source.path, "rb", buffering=1 << 20) as stream:
            for number, line in read_lines(stream, source.name):
                yield number, parse_row(line, f"{source.name}:{number}")
    except DataFault as fault:
        raise to_refusal(fault) from fault
    except OSError as exc:
        raise refusal(exc, source.path, "read") from exc


def _batches(source: Source) -> Iterator[list[dict[str, Any]]]:
    try:
        yield from parquet_batches(source.name, source.path)
    except DataFault as fault:
        raise to_refusal(fault) from fault
