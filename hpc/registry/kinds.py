"""What the shelf engine must be told about a kind of record: its shelf, its limits, and how a folder of bytes is checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Checked:
    """What a kind's check found in a folder: who the bytes say they are, and the facts that the record keeps (JSON)."""

    name: str
    version: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    admin_only: bool = False
    """True where only the site's admins may publish it (policy)."""


@dataclass(frozen=True)
class Kind:
    """One kind of record. `check` reads a folder, runs none of it, and raises Refusal(s) for content that has no place on the shelf.

    `facts` is the shape (`hpc.registry.shapes`) that readers of a record's facts rely on.
    """

    name: str
    shelf: str
    check: Callable[[Path], Checked]
    max_bytes: int
    max_files: int
    facts: Any = field(default_factory=dict)
    reader_codes: frozenset[str] = frozenset()
    """Refusals of `check` that may be the reader's fault, such as an older Python: of stored bytes they are a note."""
