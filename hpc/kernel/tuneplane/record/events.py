"""Hash-chained event logs: one writer a file, one JSON object a line.

An event is `{run_id, stage, status, message, occurred_at, details?}` and gets `seq` (0, 1, …), `prev_hash` (null first) and `hash`, the SHA-256
(hex) of the canonical JSON of the event without `hash`. A chain shows edits, deletions inside, swaps and insertions. It does not show that its
end was cut off; for that the batch step joins the heads of all writers into its last event.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuneplane.record.canonical import CanonicalError, canonical_bytes, parse_json

WRITER = re.compile(r"^[a-z0-9][a-z0-9._-]{0,63}$")


def event_hash(event: dict[str, Any]) -> str:
    """The chain hash (64 hex) of an event; its own `hash`, if any, is left out."""
    return hashlib.sha256(canonical_bytes({k: v for k, v in event.items() if k != "hash"})).hexdigest()


@dataclass(frozen=True)
class Chain:
    """One event file as read.

    status: verified | empty | legacy (unhashed events first, then chained or none) | mixed (unhashed after chained) | broken.
    broken_at: index among the readable events; reason: what is wrong there; unreadable: lines that are not JSON objects.
    """

    writer: str
    status: str
    events: list[dict[str, Any]] = field(default_factory=list)
    broken_at: int | None = None
    reason: str = ""
    unreadable: int = 0

    @property
    def head(self) -> str | None:
        """Hash of the last chained event."""
        return next((e["hash"] for e in reversed(self.events) if isinstance(e.get("hash"), str)), None)


def parse_lines(data: bytes) -> tuple[list[dict[str, Any]], int]:
    """Readable events, and how many non-empty lines are not JSON objects."""
    events, unreadable = [], 0
    for line in data.split(b"\n"):
        if not line.strip():
            continue
        try:
            value = parse_json(line)
        except CanonicalError:
            value = None
        if isinstance(value, dict):
            events.append(value)
        else:
            unreadable += 1
    return events, unreadable


def check_chain(writer: str, events: list[dict[str, Any]], unreadable: int = 0) -> Chain:
    """Judge a list of events in file order. Pure."""
    prev, seq, chained, unhashed_first = None, 0, 0, 0
    mixed = False
    for index, event in enumerate(events):
        if not isinstance(event.get("hash"), str):
            if chained:
                mixed = True
            else:
                unhashed_first += 1
            continue
        reason = ""
        if event.get("seq") != seq:
            reason = f"seq is {event.get('seq')!r}, expected {seq}"
        elif event.get("prev_hash") != prev:
            reason = "prev_hash is not the hash of the event before"
        elif event["hash"] != event_hash(event):
            reason = "content does not match its hash"
        if reason:
            return Chain(writer, "broken", events, index, reason, unreadable)
        prev, seq, chained = event["hash"], seq + 1, chained + 1
    if not events:
        status = "empty"
    elif mixed:
        status = "mixed"
    elif unhashed_first:
        status = "legacy"
    else:
        status = "verified"
    return Chain(writer, status, events, None, "", unreadable)


def read_chain(path: str | os.PathLike[str]) -> Chain:
    """Read and judge one event file; its name without `.jsonl` is the writer. A missing file is an empty chain. Raises OSError."""
    writer = Path(path).name.removesuffix(".jsonl")
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return Chain(writer, "empty")
    with os.fdopen(fd, "rb") as stream:
        events, unreadable = parse_lines(stream.read())
    return check_chain(writer, events, unreadable)


def read_all(folder: str | os.PathLike[str]) -> list[Chain]:
    """Every writer's chain in an events folder, by writer name."""
    try:
        names = sorted(n for n in os.listdir(folder) if n.endswith(".jsonl"))
    except FileNotFoundError:
        return []
    return [read_chain(os.path.join(folder, n)) for n in names]


def merged(chains: Iterable[Chain]) -> list[dict[str, Any]]:
    """One view of all writers by time; a writer's own order is kept whatever its clock says. Each event gains `writer`."""
    keyed = []
    for chain in chains:
        latest = ""
        for index, event in enumerate(chain.events):
            latest = max(latest, str(event.get("occurred_at", "")))
            keyed.append((latest, chain.writer, index, {**event, "writer": chain.writer}))
    return [k[3] for k in sorted(keyed, key=lambda k: k[:3])]


class EventWriter:
    """Appends to `<folder>/<writer>.jsonl`. Exactly one process may use a writer name at a time; that is the caller's promise.

    A torn last line (a writer that died in a write) is closed with a newline and the chain goes on from the last readable event.
    """

    def __init__(self, folder: str | os.PathLike[str], writer: str, *, run_id: str, now: Callable[[], str]) -> None:
        if not WRITER.match(writer):
            raise ValueError(f"writer name {writer!r}: lower-case letters, digits, . _ - only")
        self.path = Path(folder) / f"{writer}.jsonl"
        self._run_id, self._now = run_id, now
        self._prev: str | None = None
        self._seq = 0
        self._load()

    @property
    def written(self) -> int:
        """Events in the chain so far."""
        return self._seq

    def _load(self) -> None:
        chained = [e for e in read_chain(self.path).events if isinstance(e.get("hash"), str)]
        self._prev = chained[-1]["hash"] if chained else None
        self._seq = int(chained[-1].get("seq", -1)) + 1 if chained else 0
        self._sure = True

    def append(self, stage: str, status: str, message: str, **details: Any) -> dict[str, Any]:
        """Append one event, synced to disk, and return it.

        Raises OSError; then the event is in the file whole, torn or not at all, and the next append looks which before it goes on.
        """
        if not self._sure:
            self._load()
        event: dict[str, Any] = {
            "run_id": self._run_id,
            "stage": stage,
            "status": status,
            "message": message,
            "occurred_at": self._now(),
            "seq": self._seq,
            "prev_hash": self._prev,
        }
        if details:
            event["details"] = details
        event["hash"] = event_hash(event)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(self.path, flags, 0o644)
        self._sure = False
        try:
            size = os.fstat(fd).st_size
            if size == 0:
                os.fchmod(fd, 0o644)  # whatever the umask: an audit reads it
            torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
            data = (b"\n" if torn else b"") + canonical_bytes(event) + b"\n"
            while data:
                data = data[os.write(fd, data) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        self._prev, self._seq, self._sure = event["hash"], self._seq + 1, True
        return event
