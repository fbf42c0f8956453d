"""What the log's entries say: the digest of one record, or the head of one event chain, of a run or of the registry. Pure, standard library only.

An entry names a run by its owner, its id and a digest of owner, experiment and id, never by the experiment, whose name is not everybody's business
(whoever knows owner and id can still guess the name and check the guess). `digest` is the SHA-256 of a file's bytes, or the head of a chain.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from tuneplane.record.canonical import CanonicalError, canonical_bytes, parse_json
from tuneplane.record.digest import is_digest, is_relative

SCHEMA: Final = "tuneplane-hpc/log-entry/v1"
REGISTRY: Final = "registry"
Kind = Literal["record", "chain"]
_KEYS: Final = frozenset(("schema", "kind", "subject", "path", "digest", "count", "logged_at"))


class EntryError(ValueError):
    """The bytes are not an entry of this schema; the message says why."""


@dataclass(frozen=True)
class Fact:
    """One thing that is so: a record's digest, or a chain's head after `count` events. `path` is relative to the subject."""

    kind: Kind
    subject: str
    path: str
    digest: str
    count: int = 0

    @property
    def place(self) -> tuple[str, str]:
        return self.subject, self.path


@dataclass(frozen=True)
class Entry:
    """A fact as it was logged: at which index, and when by the service user's clock."""

    fact: Fact
    index: int
    logged_at: str


def subject_of(owner: str, exp: str, run_id: str) -> str:
    """The name of a run in the log."""
    return f"runs/{owner}/{run_id}/{hashlib.sha256(f'{owner}/{exp}/{run_id}'.encode()).hexdigest()[:16]}"


def encode_entry(fact: Fact, logged_at: str) -> bytes:
    value: dict[str, Any] = {
        "schema": SCHEMA, "kind": fact.kind, "subject": fact.subject, "path": fact.path, "digest": fact.digest,
        "count": fact.count, "logged_at": logged_at,
    }  # fmt: skip
    return canonical_bytes(value)


def decode_entry(data: bytes, index: int) -> Entry:
    """Raises EntryError."""
    try:
        value = parse_json(data)
        whole = isinstance(value, dict) and canonical_bytes(value) == data
    except CanonicalError as exc:
        raise EntryError(f"entry {index} {exc}"[:200]) from exc
    if not whole or value.keys() != _KEYS or value["schema"] != SCHEMA:
        raise EntryError(f"entry {index} is not of {SCHEMA}")
    texts = (value["subject"], value["path"])
    good = all(isinstance(t, str) and is_relative(t) for t in texts) and isinstance(value["logged_at"], str)
    if not good or value["kind"] not in ("record", "chain") or not is_digest(value["digest"]):
        raise EntryError(f"entry {index} has a field of another shape")
    if type(value["count"]) is not int or value["count"] < 0:
        raise EntryError(f"entry {index} has a count that is none")
    fact = Fact(value["kind"], value["subject"], value["path"], value["digest"], value["count"])
    return Entry(fact, index, value["logged_at"])


Known = Mapping[tuple[str, str], list[Entry]]


def by_place(entries: Iterable[Entry]) -> dict[tuple[str, str], list[Entry]]:
    """Entries by (subject, path), in the order of the log."""
    out: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        out.setdefault(entry.fact.place, []).append(entry)
    return out
