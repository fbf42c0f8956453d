"""What a run's files say that is worth logging, and whether it still is what was logged. Reads only; nothing but the standard library below it.

A record is logged as soon as it is there, since it is written once. A chain is logged when its run, or its element of an array, has ended: until
then it grows. Logged chains may grow on; what was logged must stay in them at its place.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tuneplane.contract.layout import RunPaths, StorageRoot
from tuneplane.record.canonical import CanonicalError, parse_json
from tuneplane.record.digest import digest_bytes
from tuneplane.record.events import WRITER, Chain, check_chain, parse_lines
from tuneplane.record.files import read_bytes

from hpc.evidence.entries import Entry, Fact, Known, subject_of

ADMITTED: Final = "admitted/admission.json"
"""The service user's admission, which lies outside the run's folder."""
MAX_FACTS: Final = 200_000
"""Facts of one run; more are made to fill the log. That there are more is told, and nobody is accused of what lies beyond them."""
_ATTEMPT: Final = ("claim", "late.json", "start.json", "end.json", "requeue.json")


@dataclass
class Look:
    """One run as it was read. `unread`: paths that are there and cannot be read now. `chains`: whole chains by path."""

    subject: str
    records: dict[str, str] = field(default_factory=dict)
    chains: dict[str, Chain] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    """Chains of what has ended."""
    unread: dict[str, str] = field(default_factory=dict)
    full: bool = False

    def facts(self) -> Iterator[Fact]:
        """What may be logged."""
        for path, digest in self.records.items():
            yield Fact("record", self.subject, path, digest)
        for path in sorted(self.closed):
            chain = self.chains[path]
            if chain.status == "verified" and chain.head:
                yield Fact("chain", self.subject, path, f"sha256:{chain.head}", len(chain.events))

    def blind(self, path: str) -> bool:
        """Whether this path, or a folder above it, could not be read."""
        return any(path == u or path.startswith(f"{u}/") or u == "." for u in self.unread)


@dataclass(frozen=True)
class Conflict:
    """Something that was logged is not what is there now."""

    entry: Entry
    message: str

    def as_json(self) -> dict[str, Any]:
        fact = self.entry.fact
        return {"entry": self.entry.index, "subject": fact.subject, "path": fact.path, "message": self.message}


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10 and str(int(text)) == text


class Reader:
    """Reads one run's folder into a Look."""

    def __init__(self, root: StorageRoot, run: RunPaths) -> None:
        self.root, self.run = root, run
        self.look = Look(subject_of(run.owner, run.exp, run.run_id))

    def place(self, path: str) -> Path:
        if path == ADMITTED:
            return self.root.admitted / self.run.run_id / "admission.json"
        return self.run.root / path

    def _bytes(self, path: str) -> bytes | None:
        try:
            return read_bytes(self.place(path))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as exc:
            self.look.unread[path] = getattr(exc, "strerror", None) or str(exc)
            return None

    def _names(self, path: str) -> list[str]:
        try:
            names = sorted(os.listdir(self.place(path)))
            self.look.full |= len(names) > MAX_FACTS
            return names[:MAX_FACTS]
        except FileNotFoundError:
            return []
        except OSError as exc:
            if exc.errno != errno.ENOTDIR:
                self.look.unread[path] = exc.strerror or str(exc)
            return []

    def _numbers(self, path: str, suffix: str = "") -> list[int]:
        stems = [n.removesuffix(suffix) for n in self._names(path) if n.endswith(suffix)]
        return sorted(int(s) for s in stems if _is_number(s))

    def _record(self, path: str) -> bytes | None:
        data = self._bytes(path)
        if data is None:
            return None
        if len(self.look.records) < MAX_FACTS:
            self.look.records[path] = digest_bytes(data)
        else:
            self.look.full = True
            self.look.unread.setdefault("further records", f"a run has at most {MAX_FACTS} that are logged")
        return data

    def read(self) -> Look:
        """Read all. Never raises for what the files hold."""
        for path in ("admission.json", ADMITTED, "work/.tuneplane/package.json"):
            self._record(path)
        firsts = self._numbers("submissions", ".json")
        for number in firsts:
            self._record(f"submissions/{number}.json")
            self._record(f"batch/{number}.sh")
        elements = self._numbers("array")
        ended = [self._part(f"array/{i}/", firsts) for i in elements] if elements else [self._part("", firsts)]
        self._chains("events", close=bool(ended) and all(ended))
        return self.look

    def _part(self, prefix: str, firsts: list[int]) -> bool:
        """A run's own life, or an element's; whether it has ended for good."""
        numbers = self._numbers(f"{prefix}attempts")
        end: Any = None
        for number in numbers:
            for name in _ATTEMPT:
                data = self._record(f"{prefix}attempts/{number}/{name}")
                if name == "end.json":
                    end = _object(data)
        done = self._record(f"{prefix}report.json") is not None
        last = bool(numbers) and numbers[-1] >= max(firsts, default=0) and end is not None and not end.get("requeue")
        if prefix:
            self._chains(f"{prefix}events", close=done or last)
        return done or last

    def _chains(self, folder: str, *, close: bool) -> None:
        for name in self._names(folder):
            writer = name.removesuffix(".jsonl")
            path = f"{folder}/{name}"
            if writer == name or not WRITER.match(writer) or len(self.look.chains) >= MAX_FACTS:
                continue
            data = self._bytes(path)
            if data is not None:
                self.look.chains[path] = check_chain(writer, *parse_lines(data))
                if close:
                    self.look.closed.add(path)


def _object(data: bytes | None) -> dict[str, Any] | None:
    try:
        value = parse_json(data) if data is not None else None
    except CanonicalError:
        return None
    return value if isinstance(value, dict) else None


def changes(look: Look, known: Known) -> tuple[list[Fact], list[Conflict]]:
    """What is not logged yet, and what contradicts the log. Pure."""
    fresh = [f for f in look.facts() if not any(e.fact.digest == f.digest for e in known.get(f.place, ()))]
    clashes = [
        Conflict(entry, message)
        for (subject, _), entries in known.items()
        if subject == look.subject
        for entry in entries
        if (message := _contradiction(look, entry.fact))
    ]
    beaten = {c.entry.fact.place for c in clashes}
    return [f for f in fresh if f.place not in beaten], clashes


def _contradiction(look: Look, fact: Fact) -> str:
    if look.blind(fact.path):
        return ""
    if fact.kind == "record":
        found = look.records.get(fact.path)
        if found is None:
            return "" if look.full else "is gone"
        return "" if found == fact.digest else f"was changed: logged {fact.digest}, found {found}"
    chain = look.chains.get(fact.path)
    if chain is None:
        return "is gone"
    if chain.status == "broken":
        return f"event {chain.broken_at}: {chain.reason}"
    if len(chain.events) < fact.count:
        return f"was cut: logged with {fact.count} events, {len(chain.events)} are there"
    if chain.events[fact.count - 1].get("hash") != fact.digest.removeprefix("sha256:"):
        return f"was rewritten: event {fact.count - 1} is not the one that was logged"
    return ""
