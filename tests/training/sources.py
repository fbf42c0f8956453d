"""One file by itself as a source of rows."""

from __future__ import annotations

from pathlib import Path

from tuneplane.record.digest import digest_file
from tuneplane.training.source import Source


def file_source(path: Path) -> Source:
    return Source("rows", (path,), digest_file(path))
