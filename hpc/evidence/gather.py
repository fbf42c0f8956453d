"""What there is to log in a storage root: every run that may be read, and the registry's records; compared with what is logged already.

A quick round looks only at runs whose submissions and chains are not all logged; a full one reads every record again, and so finds what changed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from tuneplane.contract.layout import RunPaths, StorageRoot
from tuneplane.record.digest import digest_bytes, is_relative
from tuneplane.record.files import read_bytes

from hpc.evidence.entries import REGISTRY, Entry, Fact, Known, by_place, subject_of
from hpc.evidence.facts import Conflict, Reader, changes
from hpc.runs.find import all_runs, owners
from hpc.site.plan import SHELVES

TREES: Final = ("seals", "activation")
"""Folders of the registry whose records are never removed."""
OWNED: Final = (*SHELVES, "recipes", "channels")
"""Folders where owners remove versions of their own."""
_NUMBERED: Final = re.compile(r"[1-9][0-9]*\.json")


@dataclass
class Gathered:
    """What a round found. `unread`: path -> why; `gone`: subjects that are logged and are not there any more."""

    fresh: list[Fact] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)
    unread: dict[str, str] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)
    runs: int = 0
    looked_at: int = 0


def gather(root: StorageRoot, logged: Iterable[Entry], *, everything: bool) -> Gathered:
    """Look at all runs that can be seen and at the registry. Never raises for what one of them holds."""
    known, out = by_place(logged), Gathered()
    mine: dict[str, dict[tuple[str, str], list[Entry]]] = {}
    for place, entries in known.items():
        mine.setdefault(place[0], {})[place] = entries
    seen = set()
    for run in (r for owner in owners(root) for r in all_runs(root, owner)):
        subject = subject_of(run.owner, run.exp, run.run_id)
        seen.add(subject)
        out.runs += 1
        logged_here = mine.get(subject, {})
        if everything or not _settled(run, subject, logged_here):
            _run(root, run, logged_here, out)
    out.gone = sorted(s for s in mine if s != REGISTRY and s not in seen)
    _registry(root, mine.get(REGISTRY, {}), out)
    return out


def _settled(run: RunPaths, subject: str, logged: Known) -> bool:
    """Whether every submission and every event file of the run is logged: then nothing new is expected of it."""
    if not logged or os.path.isdir(run.array):
        return False
    try:
        chains = {f"events/{n}" for n in os.listdir(run.events) if n.endswith(".jsonl")}
        submitted = {f"submissions/{n}" for n in os.listdir(run.submissions) if n.endswith(".json")}
    except OSError:
        return False
    return all((subject, path) in logged for path in chains | submitted)


def _run(root: StorageRoot, run: RunPaths, logged: Known, out: Gathered) -> None:
    look = Reader(root, run).read()
    out.looked_at += 1
    fresh, conflicts = changes(look, logged)
    out.fresh += fresh
    out.conflicts += conflicts
    out.unread |= {os.path.relpath(run.root / path, root.path): why for path, why in look.unread.items()}


def _registry(root: StorageRoot, logged: Known, out: Gathered) -> None:
    found: dict[str, str] = {}
    for path in _registry_paths(root, out):
        try:
            found[path] = digest_bytes(read_bytes(root.registry / path))
        except FileNotFoundError:
            continue  # its owner removed it in this moment
        except (OSError, ValueError) as exc:
            out.unread[f"{REGISTRY}/{path}"] = getattr(exc, "strerror", None) or str(exc)
    for (_, path), entries in logged.items():
        entry, digest = entries[-1], found.get(path)
        if digest is not None and digest != entry.fact.digest:
            out.conflicts.append(Conflict(entry, f"was changed: logged {entry.fact.digest}, found {digest}"))
        elif digest is None and not _hidden(path, out) and _kept(root, path):
            out.conflicts.append(Conflict(entry, "is gone"))
        elif digest is None and not _hidden(path, out):
            out.gone.append(f"{REGISTRY}/{path}")
    out.fresh += [Fact("record", REGISTRY, p, d) for p, d in found.items() if (REGISTRY, p) not in logged]


def _kept(root: StorageRoot, path: str) -> bool:
    """Whether this record is never removed alone: seals, the admins' words, and a generation of a pointer whose other ones stand."""
    folder, _, name = path.rpartition("/")
    pointer = _NUMBERED.fullmatch(name) is not None and os.path.isdir(root.registry / folder)
    return path.split("/")[0] in TREES or pointer


def _hidden(path: str, out: Gathered) -> bool:
    """Whether the record, or a folder above it, could not be read."""
    whole = f"{REGISTRY}/{path}"
    return any(whole == u or whole.startswith(f"{u}/") for u in out.unread)


def _registry_paths(root: StorageRoot, out: Gathered) -> Iterator[str]:
    """Paths of records below registry/: versions, generations of pointers, seals. Contents are what records cover, and are not entered."""

    def failed(exc: OSError) -> None:
        if exc.filename:
            out.unread[os.path.relpath(exc.filename, root.path)] = exc.strerror or str(exc)

    for top in (*OWNED, *TREES):
        base = root.registry / top
        if not base.is_dir():
            continue
        for folder, names, files in os.walk(base, onerror=failed):
            names[:] = sorted(n for n in names if n != "content" and not n.endswith(".tmp"))
            if top not in TREES and len(os.path.relpath(folder, base).split("/")) >= 4:
                names.clear()
            for name in sorted(files):
                path = os.path.relpath(os.path.join(folder, name), root.registry)
                wanted = (
                    name == "record.json" or _NUMBERED.fullmatch(name) or (top == "seals" and name.endswith(".json"))
                )
                if wanted and not name.startswith(".") and is_relative(path):
                    yield path
