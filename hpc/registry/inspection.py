"""What is in a version, for people: its files, the text of one, and what changed between two. Every byte is verified before anything is shown.

A damaged record or content is a refusal, never an empty list. Nothing is executed and no archive inside is opened. Texts are bounded, and what was
cut is said to be cut.
"""

from __future__ import annotations

import codecs
import difflib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from tuneplane.record.digest import FileEntry

from hpc.errors.core import Refusal
from hpc.registry.resolve import Version, open_file, require_content

PREVIEW_BYTES: Final = 128 << 10
PREVIEW_LINES: Final = 4000
DIFF_BYTES: Final = 256 << 10
DIFF_LINES: Final = 2000
COMPARED_LINES: Final = 20_000
"""Lines that one comparison looks at in all; finding differences costs more than their number."""


@dataclass(frozen=True)
class Preview:
    """One file. `text` None: it is not UTF-8 text, and only size and digest are told. `cut`: there is more than is shown."""

    path: str
    size: int
    sha256: str
    text: str | None
    cut: bool = False

    def as_json(self) -> dict[str, Any]:
        return {"path": self.path, "size": self.size, "sha256": self.sha256, "text": self.text, "cut": self.cut}


@dataclass(frozen=True)
class Change:
    """One modified file. `diff` None: not text, or larger than what is compared; `cut`: the diff goes on, or was not made."""

    path: str
    before: FileEntry
    after: FileEntry
    diff: tuple[str, ...] | None
    cut: bool = False

    def as_json(self) -> dict[str, Any]:
        sides = {"before": self.before.as_json(), "after": self.after.as_json()}
        return {"path": self.path, **sides, "diff": None if self.diff is None else list(self.diff), "cut": self.cut}


@dataclass(frozen=True)
class Comparison:
    """From `base` to `other`. `cut`: at least one text difference is not shown whole."""

    base: str
    other: str
    added: tuple[FileEntry, ...] = ()
    removed: tuple[FileEntry, ...] = ()
    modified: tuple[Change, ...] = field(default=())
    cut: bool = False

    def as_json(self) -> dict[str, Any]:
        return {
            "base": self.base,
            "other": self.other,
            "added": [f.as_json() for f in self.added],
            "removed": [f.as_json() for f in self.removed],
            "modified": [c.as_json() for c in self.modified],
            "cut": self.cut,
        }


def list_files(version: Version) -> list[FileEntry]:
    """Every file with size and SHA-256. Raises as `require_content` unless every byte is the recorded one."""
    require_content(version)
    return list(version.files)


def preview(version: Version, path: str) -> Preview:
    """The beginning of one file. Raises Refusal E-REG-032 (no such file), and as `require_content`."""
    require_content(version)
    entry = next((f for f in version.files if f.path == path), None)
    if entry is None:
        raise Refusal("E-REG-032", f"{version} has no file {path!r:.200}", field=path)
    text = _text(_head(version, entry, PREVIEW_BYTES), whole=entry.size <= PREVIEW_BYTES)
    if text is None:
        return Preview(path, entry.size, entry.sha256, None)
    lines = text.splitlines(keepends=True)
    shown = "".join(lines[:PREVIEW_LINES])
    return Preview(path, entry.size, entry.sha256, shown, entry.size > PREVIEW_BYTES or len(lines) > PREVIEW_LINES)


def compare(base: Version, other: Version) -> Comparison:
    """What is added, removed and modified from `base` to `other`. Raises as `require_content` for either."""
    for version in (base, other):
        require_content(version)
    old, new = ({f.path: f for f in v.files} for v in (base, other))
    budget = _Budget()
    modified = tuple(
        _change(base, other, old[path], new[path], budget)
        for path in sorted(old.keys() & new.keys())
        if (old[path].sha256, old[path].exec) != (new[path].sha256, new[path].exec)
    )
    return Comparison(
        str(base),
        str(other),
        tuple(new[p] for p in sorted(new.keys() - old.keys())),
        tuple(old[p] for p in sorted(old.keys() - new.keys())),
        modified,
        any(c.cut for c in modified),
    )


@dataclass
class _Budget:
    """What one comparison may still show and look at."""

    lines: int = DIFF_LINES
    size: int = DIFF_BYTES
    compared: int = COMPARED_LINES


def _change(base: Version, other: Version, old: FileEntry, new: FileEntry, budget: _Budget) -> Change:
    if max(old.size, new.size) > DIFF_BYTES:
        whole = _text(_head(other, new, PREVIEW_BYTES), whole=False)
        return Change(new.path, old, new, None, cut=whole is not None)
    texts = [_text(_head(v, e, DIFF_BYTES), whole=True) for v, e in ((base, old), (other, new))]
    before, after = ([] if t is None else t.splitlines() for t in texts)
    if None in texts:
        return Change(new.path, old, new, None)
    looked = len(before) + len(after)
    if budget.compared < looked or max(len(before), len(after)) > PREVIEW_LINES:
        return Change(new.path, old, new, None, cut=True)
    budget.compared -= looked
    shown: list[str] = []
    for line in difflib.unified_diff(before, after, f"{base}/{old.path}", f"{other}/{new.path}", lineterm=""):
        cost = len(line.encode("utf-8")) + 1
        if not budget.lines or budget.size < cost:
            return Change(new.path, old, new, tuple(shown), cut=True)
        budget.lines, budget.size = budget.lines - 1, budget.size - cost
        shown.append(line)
    return Change(new.path, old, new, tuple(shown))


def _head(version: Version, entry: FileEntry, limit: int) -> bytes:
    fd = open_file(version, entry)
    with os.fdopen(fd, "rb") as stream:
        return stream.read(limit)


def _text(data: bytes, *, whole: bool) -> str | None:
    """`data` as UTF-8 text, None where it is none. A character that the limit cut in two is left out."""
    if b"\0" in data:
        return None
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(data, final=whole)
    except UnicodeDecodeError:
        return None


def plain_lines(comparison: Comparison) -> Iterator[str]:
    """The comparison for a terminal or a pager, one line each. Control characters are the caller's to escape."""
    for mark, entries in (("A", comparison.added), ("D", comparison.removed)):
        for entry in entries:
            yield f"{mark} {entry.path}  {entry.size} bytes  {entry.sha256}"
    for change in comparison.modified:
        sizes = f"{change.before.size} → {change.after.size} bytes"
        yield f"M {change.path}  {sizes}  {change.before.sha256} → {change.after.sha256}"
        yield from change.diff or ()
        if change.cut:
            yield f"… {change.path}: the difference is not shown whole"
