"""Checkpoints on disk: written whole, listed by digest, verified before use (P32). Standard library only.

    checkpoints/
      step-000000040/    manifest.json  rank-00000.json …  deepspeed/…
      latest.json        written last: {schema, step, path, manifest_sha256, attempt}
      .new-…             being written, or left by an attempt that died in it; never read

A folder counts only with a manifest that lists every file with its size and SHA-256. The pointer is a witness, not the way in: what is resumed
is the newest folder that verifies, and every newer one that does not is reported.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuneplane.contract.schemas import CHECKPOINT
from tuneplane.record.canonical import parse_json, pretty_bytes
from tuneplane.record.digest import FileEntry, TreeError, digest_bytes, digest_file
from tuneplane.record.files import fsync_dir, publish_dir, read_bytes, read_json, replace_json, write_new

MANIFEST = "manifest.json"
POINTER = "latest.json"
_NAME = re.compile(r"^step-(\d{9,})$")
_REQUIRED = ("step", "attempt", "world_size", "zero_stage", "method", "settings", "fingerprint", "state", "files")


class Damaged(ValueError):  # noqa: N818 - what the folder is
    """A checkpoint folder cannot be used; the message says why."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose manifest was read; its files are not verified yet."""

    path: Path
    step: int
    manifest: dict[str, Any]
    manifest_sha256: str
    files: tuple[FileEntry, ...]


def name_of(step: int) -> str:
    return f"step-{step:09d}"


def temp_path(root: Path, step: int, attempt: int) -> Path:
    """Where the checkpoint of `step` is written before it is renamed."""
    return root / f".new-{name_of(step)}-{attempt}"


def steps(root: Path) -> list[int]:
    """Steps that have a folder, newest first; whether they are good is not asked."""
    try:
        names = os.listdir(root)
    except FileNotFoundError:
        return []
    return sorted((int(m[1]) for n in names if (m := _NAME.match(n))), reverse=True)


def clear_leftovers(root: Path) -> list[str]:
    """Remove what attempts before this one left half-written; returns the names. Only while no other attempt runs."""
    try:
        names = sorted(n for n in os.listdir(root) if n.startswith((".new-", ".old-")))
    except FileNotFoundError:
        return []
    for name in names:
        shutil.rmtree(root / name, ignore_errors=True)
    return names


def read(path: Path) -> Checkpoint:
    """Read a folder's manifest. Raises Damaged."""
    try:
        data = read_bytes(path / MANIFEST)
    except FileNotFoundError:
        raise Damaged("it has no manifest.json: its save never ended") from None
    except (OSError, ValueError) as exc:
        raise Damaged(f"its manifest.json cannot be read: {exc}") from exc
    try:
        value = parse_json(data)
    except ValueError as exc:
        raise Damaged(f"its manifest.json is cut or altered: {exc}") from exc
    if not isinstance(value, dict) or value.get("schema") != CHECKPOINT:
        raise Damaged("its manifest.json is not one of this release")
    if missing := [k for k in _REQUIRED if k not in value]:
        raise Damaged(f"its manifest.json lacks {', '.join(missing)}")
    match = _NAME.match(path.name)
    if match is None or value["step"] != int(match[1]):
        raise Damaged(f"its manifest.json is that of step {value['step']}")
    try:
        files = tuple(FileEntry.from_json(e) for e in value["files"])
    except (TreeError, TypeError) as exc:
        raise Damaged(f"its manifest.json lists a wrong file: {exc}") from exc
    if not files:
        raise Damaged("its manifest.json lists no files")
    return Checkpoint(path, int(value["step"]), value, digest_bytes(data), files)


def verify(
    checkpoint: Checkpoint, *, share: int = 0, of: int = 1, digests: bool = True, moved: Callable[[], None] = lambda: None
) -> None:  # fmt: skip
    """Compare files with the manifest: all sizes, and the digests of every `of`-th file from `share` on. Raises Damaged.

    `moved` is called before each file.
    """
    for index, entry in enumerate(sorted(checkpoint.files, key=lambda e: (-e.size, e.path))):
        path = checkpoint.path / entry.path
        moved()
        try:
            size = os.stat(path, follow_symlinks=False).st_size
            if size != entry.size:
                raise Damaged(f"{entry.path} has {size} bytes instead of {entry.size}")
            if digests and index % of == share and digest_file(path) != entry.sha256:
                raise Damaged(f"{entry.path} is not what was written: its SHA-256 differs")
        except FileNotFoundError:
            raise Damaged(f"{entry.path} is missing") from None
        except OSError as exc:
            raise Damaged(f"{entry.path} cannot be read: {exc}") from exc


def pointer_fault(root: Path, checkpoint: Checkpoint) -> str:
    """Why the pointer contradicts this checkpoint; empty when it does not (it may be missing, cut, or name another step)."""
    try:
        value = read_json(root / POINTER)
    except (OSError, ValueError):
        return ""
    if not isinstance(value, dict) or value.get("path") != checkpoint.path.name:
        return ""
    same = value.get("manifest_sha256") == checkpoint.manifest_sha256
    return "" if same else "its manifest.json is not the one that latest.json was written for"


@dataclass(frozen=True)
class Choice:
    """What a resume takes, and what it passed over with the reasons. `checkpoint` is None where nothing usable is there."""

    checkpoint: Checkpoint | None
    passed_over: tuple[tuple[str, str], ...]

    @property
    def lost(self) -> bool:
        """There were checkpoints, and none of them can be used."""
        return self.checkpoint is None and bool(self.passed_over)


def examine(
    root: Path, step: int, *, share: int = 0, of: int = 1, moved: Callable[[], None] = lambda: None
) -> tuple[Checkpoint | None, str]:
    """Read and verify one checkpoint (this rank's share of the digests); returns it and the fault, which is empty when it is good."""
    try:
        found = read(root / name_of(step))
        fault = pointer_fault(root, found)
        if not fault:
            verify(found, share=share, of=of, moved=moved)
    except Damaged as exc:
        return None, str(exc)
    return found, fault


Together = Callable[[Callable[[], Any]], list[Any]]
"""A collective that gives what each rank's work returned to all of them."""


def choose(
    root: Path, *, share: int = 0, of: int = 1, together: Together = lambda work: [work()], moved: Callable[[], None] = lambda: None
) -> Choice:  # fmt: skip
    """The newest checkpoint that verifies.

    With several ranks the first one's listing is used, a fault that one rank finds counts for all, and all ranks come to the same choice.
    """
    passed: list[tuple[str, str]] = []
    listing, pointed = together(lambda: [steps(root), _pointed(root)])[0]
    for step in listing:
        seen: list[Checkpoint | None] = []

        def look(step: int = step, seen: list[Checkpoint | None] = seen) -> str:
            found, fault = examine(root, step, share=share, of=of, moved=moved)
            seen.append(found)
            return fault

        fault = next((f for f in together(look) if f), "")
        if not fault:
            return Choice(seen[0], tuple(passed))
        passed.append((name_of(step), fault))
    if pointed and pointed not in [name for name, _ in passed]:
        passed.append((POINTER, f"it points to {pointed}, which is not there"))
    return Choice(None, tuple(passed))


def _pointed(root: Path) -> str:
    """What the pointer names; a pointer that cannot be read names something, too."""
    try:
        return str(read_json(root / POINTER)["path"])
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError):
        return "something unreadable"


def publish(root: Path, temp: Path, manifest: dict[str, Any], files: Sequence[FileEntry], attempt: int) -> Checkpoint:
    """Finish a checkpoint whose files are written and synced: manifest, rename, pointer. One rank does it. Raises OSError.

    A folder of that step that is there already did not verify (else nobody would save again); it makes room.
    """
    step = int(manifest["step"])
    final = root / name_of(step)
    whole = manifest | {"schema": CHECKPOINT, "files": [f.as_json() for f in sorted(files, key=lambda f: f.path)]}
    data = pretty_bytes(whole)
    write_new(temp / MANIFEST, data)
    fsync_dir(temp)
    if os.path.lexists(final):
        old = root / f".old-{name_of(step)}-{attempt}"
        os.rename(final, old)
        shutil.rmtree(old, ignore_errors=True)
    publish_dir(temp, final)
    replace_json(
        root / POINTER,
        {
            "schema": CHECKPOINT,
            "step": step,
            "path": final.name,
            "manifest_sha256": digest_bytes(data),
            "attempt": attempt,
        },
    )
    return read(final)


def prune(
    root: Path,
    keep: int,
    newest: Checkpoint,
    pinned: Collection[int] = (),
    unsound: Collection[int] = (),
    moved: Callable[[], None] = lambda: None,
) -> list[str]:
    """Remove all but the `keep` newest folders up to `newest`, which must verify first; returns what went. Raises Damaged, and then removes nothing.

    Steps that are `pinned` stay beside those: somebody else still reads them. Those that are `unsound`, since a resume passed them over, are not
    counted, and go once they are older than what is kept.
    Where only one would remain its digests are read back; otherwise the one before it is the safety, and sizes will do.
    """
    verify(newest, digests=keep < 2, moved=moved)
    there = [s for s in steps(root) if s <= newest.step]
    kept = [s for s in there if s == newest.step or s not in unsound][: max(1, keep)]
    stay = {*kept, *pinned, *(s for s in unsound if s > kept[-1])}
    return _remove(root, [s for s in there if s not in stay])


def room(root: Path) -> int:
    """Bytes that this user can still write there, as the file system tells; what a quota leaves of them it may not know."""
    found = os.statvfs(root)
    return found.f_bavail * found.f_frsize


def _remove(root: Path, which: Iterable[int]) -> list[str]:
    out = []
    for step in which:
        # Renamed first: a folder that is half removed must not look like a checkpoint.
        old = root / f".old-{name_of(step)}"
        os.rename(root / name_of(step), old)
        shutil.rmtree(old, ignore_errors=True)
        out.append(name_of(step))
    return out
