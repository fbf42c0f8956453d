"""JSONL in, the valid and distinct records out, byte for byte, with a count of everything that was left out and why.

Does not judge what a record says: no quality, no language, no personal data.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from tuneplane.contract.transforms import TransformRequest, TransformResult

from .config import Config, ConfigError
from .dedup import Deduplicator, compact
from .records import Checker, InvalidRecordError
from .stats import Stats

__all__ = ["Config", "ConfigError", "InvalidRecordError", "transform"]

DATA, STATS = "data.jsonl", "stats.json"
SUFFIX = ".jsonl"


def transform(request: TransformRequest) -> TransformResult:
    """Write data.jsonl and stats.json. Inputs are read in the order of their names, a folder's `*.jsonl` files in the order of their paths.

    Raises ConfigError for a configuration that is none, InvalidRecordError (place and reason) for the first invalid record unless
    `on_invalid` is `skip`, OSError. The first of equal records is the one that is kept.
    """
    config = Config.read(request.config)
    stats = Stats(config)
    output = request.output_dir / DATA
    # Plain files in the job's own scratch: shared storage never sees them.
    with tempfile.TemporaryDirectory(prefix="jsonl-filter-") as scratch:
        dedup = Deduplicator(Path(scratch)) if config.deduplicate != "off" else None
        with open(output, "wb", buffering=1 << 20) as out:
            for name, path in files_of(request):
                with open(path, "rb", buffering=1 << 20) as source:
                    _filter(name, source, out, Checker(config), dedup, stats)
        if dedup is not None:
            stats.duplicates(compact(output, dedup.duplicates()))
    (request.output_dir / STATS).write_text(json.dumps(stats.as_json(), indent=2, sort_keys=True) + "\n", "utf-8")
    return TransformResult(files=(DATA, STATS), records=stats.accepted)


def files_of(request: TransformRequest) -> Iterator[tuple[str, Path]]:
    """(place, path) of every input file; the place is the input's name and, in a folder, the path below it."""
    for name, path in sorted(request.inputs.items()):
        if not path.is_dir():
            yield name, path
            continue
        found = sorted(p.relative_to(path).as_posix() for p in path.rglob("*" + SUFFIX) if p.is_file())
        if not found:
            raise InvalidRecordError(f"{name}: no file below {path} ends in {SUFFIX}")
        for one in found:
            yield f"{name}/{one}", path / one


def _filter(
    name: str, source: BinaryIO, out: BinaryIO, checker: Checker, dedup: Deduplicator | None, stats: Stats
) -> None:
    limit, number = checker.config.max_record_bytes, 0
    accepted = 0
    while line := source.readline(limit + 1):
        number += 1
        record = line[:-1] if line.endswith(b"\n") else line
        if len(record) > limit:
            verdict: str | bytes = "record_too_long"
            _skip_line(source, line)
        else:
            verdict = checker.check(record)
        if isinstance(verdict, str):
            stats.leave_out(verdict, name, number, checker.detail)
            continue
        if dedup is not None:
            dedup.add(verdict)
        out.write(record)
        out.write(b"\n")
        accepted += 1
    stats.file(name, number, accepted)


def _skip_line(source: BinaryIO, line: bytes) -> None:
    """Read on to the line's end, holding a piece of it at a time."""
    while line and not line.endswith(b"\n"):
        line = source.readline(1 << 20)
