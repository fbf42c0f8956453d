"""Rows of data files as a stream: read, parsed, counted. Standard library only, but for Parquet. Memory is bounded by the longest row."""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from tuneplane.record.digest import PREFIX, digest_file

MAX_LINE: Final = 64 << 20
"""Bytes of one row; a longer one is refused instead of filling the memory."""
BATCH: Final = 4096
MAX_COLUMNS: Final = 1000
MAX_NAME: Final = 1000
"""Characters of a column's name."""
MAX_FAULTS: Final = 20
_TYPES: Final = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    list: "list",
    dict: "object",
    type(None): "null",
}


class DataFault(Exception):  # noqa: N818 - the word that users meet is refusal
    """Why a folder is no data set, with a code of the catalogue."""

    def __init__(self, code: str, message: str, *, field: str = "", found: Any = None, allowed: str = "") -> None:
        super().__init__(f"{code} {field}: {message}" if field else f"{code} {message}")
        self.code, self.message, self.field, self.found, self.allowed = code, message, field, found, allowed


class DataFaults(Exception):  # noqa: N818
    """Several of them, in the order of the folder."""

    def __init__(self, items: Sequence[DataFault]) -> None:
        super().__init__("; ".join(map(str, items)))
        self.items = list(items)


@dataclass(frozen=True)
class FileFacts:
    """One data file: rows, columns by name with their JSON types and the number of rows that have them, and its digest."""

    rows: int
    columns: Mapping[str, Mapping[str, Any]]
    size: int
    sha256: str


def read_lines(stream: BinaryIO, name: str) -> Iterator[tuple[int, bytes]]:
    """(number from 1, line) of every line that is not empty. Raises DataFault E-DATA-003 for one longer than MAX_LINE."""
    number = 0
    while line := stream.readline(MAX_LINE + 1):
        number += 1
        if len(line) > MAX_LINE:
            raise DataFault("E-DATA-003", f"is longer than {MAX_LINE} bytes", field=f"{name}:{number}")
        if not line.isspace():
            yield number, line


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


_DECODE: Final = json.JSONDecoder(parse_constant=_no_constant).decode


def parse_row(line: bytes, where: str) -> dict[str, Any]:
    """One row. Raises DataFault E-DATA-003."""
    try:
        value = _DECODE(line.decode("utf-8"))
    except (ValueError, RecursionError) as exc:
        raise DataFault("E-DATA-003", f"is not JSON: {exc}"[:200], field=where) from exc
    if not isinstance(value, dict):
        raise DataFault(
            "E-DATA-003", "is no object", field=where, found=_TYPES.get(type(value), ""), allowed='{"column": value}'
        )
    return value


class _Hashed:
    """A stream that digests what is read from it, so that counting and hashing read the file once."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream, self.sha, self.size = stream, hashlib.sha256(), 0

    def readline(self, limit: int) -> bytes:
        line = self.stream.readline(limit)
        self.sha.update(line)
        self.size += len(line)
        return line


def count_jsonl(name: str, path: Path) -> FileFacts:
    """Stream one JSONL file. Raises DataFaults E-DATA-003, which names up to MAX_FAULTS lines; OSError."""
    rows, columns, faults = 0, {}, []  # type: ignore[var-annotated]
    with open(path, "rb", buffering=1 << 20) as stream:
        hashed = _Hashed(stream)
        try:
            for number, line in read_lines(hashed, name):  # type: ignore[arg-type]
                try:
                    row = parse_row(line, f"{name}:{number}")
                except DataFault as fault:
                    faults.append(fault)
                    if len(faults) >= MAX_FAULTS:
                        break
                    continue
                if odd := _note(columns, row):
                    raise DataFault("E-DATA-003", odd, field=f"{name}:{number}")
                rows += 1
        except DataFault as fault:
            faults.append(fault)
    if faults:
        raise DataFaults(faults)
    shown = {
        name: {"types": sorted(_TYPES[t] for t in types), "rows": seen[0]}
        for name, (types, seen) in sorted(columns.items())
    }
    return FileFacts(rows, shown, hashed.size, PREFIX + hashed.sha.hexdigest())


def pyarrow_parquet(name: str) -> Any:
    """The module that reads Parquet, imported when a file needs it. Raises DataFault E-DATA-004."""
    try:
        return importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise DataFault("E-DATA-004", "is Parquet, and pyarrow is not installed here", field=name) from None


def count_parquet(name: str, path: Path) -> FileFacts:
    """Rows and columns from the file's footer; the values are not read. Raises DataFaults E-DATA-003, E-DATA-004, OSError."""
    try:
        parquet = pyarrow_parquet(name)
        with parquet.ParquetFile(path) as file:
            rows, schema = file.metadata.num_rows, file.schema_arrow
            columns = {
                str(n): {"types": [str(t)], "rows": rows} for n, t in zip(schema.names, schema.types, strict=True)
            }
    except OSError:
        raise
    except DataFault as fault:
        raise DataFaults([fault]) from None
    except Exception as exc:  # pyarrow's own errors share no base but this one
        raise DataFaults([DataFault("E-DATA-003", f"is not Parquet: {exc}"[:200], field=name)]) from exc
    return FileFacts(rows, columns, path.stat().st_size, digest_file(path))


def parquet_batches(name: str, path: Path) -> Iterator[list[dict[str, Any]]]:
    """Rows of a Parquet file, some thousand at a time. Raises DataFault E-DATA-003, E-DATA-004, OSError."""
    parquet = pyarrow_parquet(name)
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=BATCH):
                yield batch.to_pylist()
    except ValueError as exc:  # what pyarrow raises for bytes that are no Parquet
        raise DataFault("E-DATA-003", f"is not Parquet: {exc}"[:200], field=name) from exc


def count_file(name: str, path: Path) -> FileFacts:
    """One data file of either kind. Raises DataFaults, OSError."""
    return count_jsonl(name, path) if name.endswith(".jsonl") else count_parquet(name, path)


def _note(columns: dict[str, tuple[set[type], list[int]]], row: Mapping[str, Any]) -> str:
    """Count the row's columns; why one of them can have no place in a record, or ""."""
    for key, value in row.items():
        known = columns.get(key)
        if known is None:
            if len(key) > MAX_NAME:
                return f"has a column with a name of more than {MAX_NAME} characters"
            if not key.isprintable() and any("\ud800" <= c <= "\udfff" for c in key):
                return "has a column whose name is no text"
            if len(columns) >= MAX_COLUMNS:
                continue
            known = columns[key] = (set(), [0])
        known[0].add(type(value))
        known[1][0] += 1
    return ""


def join_columns(parts: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Columns of several files together. Pure."""
    out: dict[str, dict[str, Any]] = {}
    for columns in parts:
        for name, facts in columns.items():
            if name in out or len(out) < MAX_COLUMNS:
                into = out.setdefault(name, {"types": [], "rows": 0})
                into["types"] = sorted({*into["types"], *facts["types"]})
                into["rows"] += facts["rows"]
    return dict(sorted(out.items()))
