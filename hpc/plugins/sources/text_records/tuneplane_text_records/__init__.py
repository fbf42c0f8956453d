"""UTF-8 text and Markdown to overlapping character chunks, each with a stable id, its source and its place in it.

Deterministic: the same inputs and configuration give the same bytes. Makes no questions and answers of them, and reads no PDF.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, TextIO

from tuneplane.contract.transforms import TransformRequest, TransformResult

from .chunks import BadTextError, Chunk, chunks_of
from .config import Config, ConfigError

__all__ = ["BadTextError", "Config", "ConfigError", "record_id", "transform"]

DATA, STATS = "records.jsonl", "stats.json"
STATS_API = "tuneplane-text-records/stats/v1"


def transform(request: TransformRequest) -> TransformResult:
    """Write records.jsonl (id, source, start, end, text a line) and stats.json.

    Inputs come in the order of their names, a folder's files in the order of their paths. Raises ConfigError for a configuration that is none,
    BadTextError for a folder without text and, unless `on_invalid` is `skip`, for a file that is not UTF-8 (with the byte's offset), OSError.
    """
    config = Config.read(request.config)
    files: list[dict[str, Any]] = []
    skipped: list[dict[str, str]] = []
    records = 0
    with open(request.output_dir / DATA, "w", encoding="utf-8", newline="\n", buffering=1 << 20) as out:
        for source, path in files_of(request, config):
            begin = out.tell()
            try:
                count, characters = _write(source, path, config, out)
            except BadTextError as bad:
                if config.on_invalid == "fail":
                    raise
                out.seek(begin)
                out.truncate()
                skipped.append({"source": source, "reason": str(bad)})
                continue
            files.append({"source": source, "characters": characters, "records": count})
            records += count
    stats = {"api": STATS_API, "config": config.as_json(), "files": files, "records": records, "skipped": skipped}
    (request.output_dir / STATS).write_text(json.dumps(stats, indent=2, sort_keys=True) + "\n", "utf-8")
    return TransformResult(files=(DATA, STATS), records=records)


def files_of(request: TransformRequest, config: Config) -> Iterator[tuple[str, Path]]:
    """(source, path) of every file: the input's name and, below it, the file's own. Hidden files and folders are left out of folders."""
    for name, path in sorted(request.inputs.items()):
        if not path.is_dir():
            yield f"{name}/{_printable(name, path.name)}", path
            continue
        relative = (p.relative_to(path) for p in path.rglob("*") if p.is_file() and p.suffix.lower() in config.suffixes)
        found = sorted(p.as_posix() for p in relative if not any(part.startswith(".") for part in p.parts))
        if not found:
            raise BadTextError(f"{name}: no file below {path} ends in {', '.join(config.suffixes)}")
        for one in found:
            yield f"{name}/{_printable(name, one)}", path / one


def _printable(name: str, path: str) -> str:
    if not path.isprintable():
        raise BadTextError(f"{name}: {path!r} is no name that a record can carry")
    return path


def record_id(source: str, chunk: Chunk) -> str:
    """SHA-256, in hexadecimal, over the source, the offsets and the text: equal ids are equal records."""
    framed = json.dumps([source, chunk.start, chunk.end, chunk.text], ensure_ascii=False, separators=(",", ":"))
    return sha256(framed.encode("utf-8")).hexdigest()


def _write(source: str, path: Path, config: Config, out: TextIO) -> tuple[int, int]:
    """(records, characters) of one file."""
    count = end = 0
    for chunk in chunks_of(source, path, config.chunk_chars, config.overlap_chars):
        row = {
            "id": record_id(source, chunk),
            "source": source,
            "start": chunk.start,
            "end": chunk.end,
            "text": chunk.text,
        }
        out.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n")
        count, end = count + 1, chunk.end
    return count, end
