"""The files of one input of the job: which they are, in which order, and what tells their content apart. Their rows as a stream."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tuneplane.contract.datarows import DataFault, DataFaults, parquet_batches, read_lines
from tuneplane.contract.datasets import VALIDATION, assign, folder_files
from tuneplane.contract.environments import TASKS, count_tasks, read_tasks
from tuneplane.contract.mapping import Columns, parse_columns
from tuneplane.record.canonical import parse_json
from tuneplane.record.digest import digest_file, digest_json
from tuneplane.training.place import Launch, Place
from tuneplane.training.refusals import Reason, Refused, refuse

_TASKS = {"train": "train", "validation": "eval"}
"""Which tasks of an environment an input reads."""


@dataclass(frozen=True)
class Source:
    """An input: its files in order of name, the digest of their content, and what its columns mean.

    `tasks` names the split of an environment: the one file is its tasks.jsonl, of which only those tasks are rows.
    """

    name: str
    files: tuple[Path, ...]
    digest: str
    columns: Columns | None = None
    tasks: str = ""

    @property
    def label(self) -> str:
        """How messages call it: the file where there is one, else the input."""
        return self.files[0].name if len(self.files) == 1 else self.name


@dataclass(frozen=True)
class Raw:
    """One row as it stands: in which file, on which line from 1 (of Parquet: which row), and its value or why there is none."""

    file: str
    line: int
    value: Any = None
    fault: str = ""


def source_of(launch: Launch, place: Place, name: str) -> Source | None:
    """The input `name` (`train`, `validation`) of the job; None where it has none. Raises Refused E-TRAIN-020, E-DATA-005, E-DATA-060.

    Where the job has an environment, its tasks are the rows: those of `train` to train on, those of `eval` for validation, and neither stands in
    for the other.

    Of a data set the files are those of the split that was resolved. Of a folder they are those whose path names the split, else all data files.
    Content is told apart by the digests that the launcher compared before; only files without one are read for it.
    """
    base, entry = launch.input_path(name, place), launch.inputs.get(name, {})
    if base is None:
        return _tasks_of(launch, place, name)
    known = {str(row.get("path", "")): row for row in entry.get("files") or []}
    try:
        columns = parse_columns(entry["columns"], f"data.{name}.columns") if entry.get("columns") else None
        chosen = entry.get("dataset") or entry.get("source")  # the files are those of the split, found at submission
        inside = sorted(known) if chosen and base.is_dir() else _inside(base, name)
    except (DataFault, DataFaults) as exc:
        raise refused(exc) from exc
    except OSError as exc:
        raise _unreadable(base, exc) from exc
    files = [base / rel if rel else base for rel in inside]
    if not files:
        raise refuse("E-TRAIN-020", "has no .jsonl and no .parquet file", field=os.fspath(base))
    digests = [_digest(path, known.get(rel, {})) for path, rel in zip(files, inside, strict=True)]
    return Source(name, tuple(files), digests[0] if len(digests) == 1 else digest_json(digests), columns)


def _tasks_of(launch: Launch, place: Place, name: str) -> Source | None:
    folder, split = launch.input_path("environment", place), _TASKS.get(name, "")
    if folder is None or not split:
        return None
    try:
        counts = count_tasks(folder)
    except (DataFault, DataFaults) as exc:
        raise refused(exc) from exc
    except OSError as exc:
        raise _unreadable(folder / TASKS, exc) from exc
    if not counts.get(split):
        return None
    files = {str(row.get("path", "")): row for row in launch.inputs["environment"].get("files") or []}
    digest = digest_json([_digest(folder / TASKS, files.get(TASKS, {})), split])
    return Source(name, (folder / TASKS,), digest, tasks=split)


def _inside(base: Path, name: str) -> list[str]:
    """The data files of a path, "" for the path itself."""
    if not base.is_dir():
        return [""]
    splits = assign(list(folder_files(base)), {})
    if name == "validation":
        return next((splits[s] for s in VALIDATION if s in splits), splits.get("train", []))
    return splits.get(name) or []


def _digest(path: Path, row: dict[str, Any]) -> str:
    """The recorded digest; of a file too dear to hash what was recorded in its place; else that of its bytes now."""
    if row.get("sha256"):
        return str(row["sha256"])
    if row.get("mtime_ns"):
        return digest_json(["size+mtime+owner", str(path), row.get("size"), row["mtime_ns"], row.get("uid")])
    try:
        return digest_file(path, follow=True)
    except OSError as exc:
        raise _unreadable(path, exc) from exc


def _unreadable(path: Path, exc: OSError) -> Refused:
    return refuse("E-TRAIN-020", f"cannot be read: {exc.strerror or exc}", field=os.fspath(path))


def refused(fault: DataFault | DataFaults) -> Refused:
    """A fault of the data's own rules as a refusal of this program, under its own code."""
    faults = fault.items if isinstance(fault, DataFaults) else [fault]
    return Refused(
        Reason(f.code, f.message, f.field, "" if f.found is None else str(f.found), f.allowed) for f in faults
    )


def raw_rows(source: Source) -> Iterator[Raw]:
    """Every row of every file, in order; memory is bounded by the longest row. Raises Refused E-TRAIN-020, E-DATA-003, E-DATA-004."""
    for path in source.files:
        try:
            if source.tasks:
                yield from _tasks(path.parent, source.tasks)
                continue
            yield from _parquet(path) if path.suffix == ".parquet" else _jsonl(path)
        except (DataFault, DataFaults) as exc:
            raise refused(exc) from exc
        except OSError as exc:
            raise _unreadable(path, exc) from exc


def _jsonl(path: Path) -> Iterator[Raw]:
    with open(path, "rb", buffering=1 << 20) as stream:
        for number, line in read_lines(stream, path.name):
            try:
                value = parse_json(line)
            except ValueError as exc:
                yield Raw(path.name, number, fault=str(exc))
            else:
                yield Raw(path.name, number, value)


def _parquet(path: Path) -> Iterator[Raw]:
    number = 0
    for batch in parquet_batches(path.name, path):
        for row in batch:
            number += 1
            yield Raw(path.name, number, _without_nulls(row))


def _tasks(folder: Path, split: str) -> Iterator[Raw]:
    for number, task in enumerate(read_tasks(folder), 1):
        if task.split == split:
            yield Raw(TASKS, number, asdict(task))


def _without_nulls(value: Any) -> Any:
    """Columns and fields of structs that hold nothing are left out: in Parquet every row has every column, in JSON it has not."""
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value
