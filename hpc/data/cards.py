"""What a person sees of data sets and volumes: one card a name. What cannot be believed is a fault beside the list and spoils nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

from tuneplane.contract.datarows import BATCH, DataFault, parquet_batches, parse_row, read_lines
from tuneplane.contract.datasets import CARD, is_data
from tuneplane.contract.layout import StorageRoot

from hpc.data.kinds import DATASET, to_refusal
from hpc.data.rows import Source, rows
from hpc.data.visibility import Visibility, visibility_of
from hpc.errors import Refusal, Refusals
from hpc.registry.kinds import Kind
from hpc.registry.order import newest_first
from hpc.registry.resolve import Version, load, read_file, resolve
from hpc.registry.shelf import Ref, Shelf, parse_ref
from hpc.store.faults import refusal

CARD_LIMIT: Final = 64 << 10


@dataclass(frozen=True)
class Card:
    """One name. `versions`: newest first; `newest` None where nothing is published or nothing can be read."""

    owner: str
    name: str
    visibility: Visibility
    versions: tuple[str, ...]
    newest: Version | None = None
    faults: list[Refusal] = field(default_factory=list)

    @property
    def id(self) -> str:
        return f"{self.owner}/{self.name}"

    def as_json(self) -> dict[str, Any]:
        newest = self.newest
        return {
            "id": self.id, "visibility": self.visibility.word, "group": self.visibility.group, "versions": list(self.versions),
            "newest": version_json(newest) if newest else None, "errors": [f.as_json() for f in self.faults],
        }  # fmt: skip


@dataclass(frozen=True)
class Listing:
    cards: list[Card]
    faults: list[Refusal]
    closed: list[str]
    """Names that exist and that the caller may not read."""


def version_json(version: Version) -> dict[str, Any]:
    """One version without its list of files."""
    return {
        "ref": str(version), "digest": version.digest, "digest_v2": version.digest_v2, "size": version.size, "files": len(version.files),
        "facts": dict(version.facts), "published": dict(version.record["published"]), "path": str(version.content),
        "sealed_at": version.seal.sealed_at if version.seal else "",
    }  # fmt: skip


def listing(root: StorageRoot, kind: Kind, *, owner: str = "") -> Listing:
    """Every name of a shelf, or of one owner. Raises Refusal E-STORE-02x where the shelf itself cannot be listed."""
    shelf, out = Shelf(root, kind), Listing([], [], [])
    for who in [owner] if owner else shelf.owners():
        for name in shelf.packages(who):
            try:
                card = _card(shelf, Ref(who, name))
            except Refusal as fault:
                if fault.code == "E-STORE-021":
                    out.closed.append(f"{who}/{name}")
                else:
                    out.faults.append(fault)
                continue
            out.cards.append(card)
            out.faults.extend(card.faults)
    return out


def _card(shelf: Shelf, ref: Ref) -> Card:
    uid = shelf.require(ref.owner, ref.name)
    package = shelf.package(ref.owner, ref.name)
    names = newest_first(shelf.versions(ref.owner, ref.name))
    faults: list[Refusal] = []
    newest = None
    for version in names[:1]:
        try:
            newest = load(shelf, Ref(ref.owner, ref.name, version), uid)
        except Refusal as fault:
            faults.append(fault)
        except Refusals as several:
            faults += several.items
    return Card(ref.owner, ref.name, visibility_of(package), tuple(names), newest, faults)


def find(root: StorageRoot, text: str, *, kind: Kind = DATASET, field: str = "REF") -> Version:
    """The version that a person means; without one the newest enabled. Raises Refusal E-REG-*, E-SITE-*, E-STORE-*."""
    return resolve(root, kind, parse_ref(text, field), for_new=False, field=field)


def card_text(version: Version) -> str:
    """The card: the first 64 KB of README.md, "" where there is none. Raises Refusal E-REG-013."""
    if not any(f.path == CARD for f in version.files):
        return ""
    return read_file(version, CARD)[:CARD_LIMIT].decode("utf-8", "replace")


def sample(version: Version, count: int, split: str = "") -> list[dict[str, Any]]:
    """The first rows of a split, in file order. Raises Refusal E-DATA-003, E-DATA-004, E-DATA-010, E-STORE-02x."""
    out: list[dict[str, Any]] = []
    for path in _files_of(version, which_split(version, split)):
        if len(out) < count:
            out += _first_rows(version.content / path, path, count - len(out))
    return out


def which_split(version: Version, split: str) -> str:
    """The split that is looked at: the named one, else train, else the first. Raises Refusal E-DATA-010."""
    splits = version.facts["splits"]
    chosen = split or next((s for s in ("train", *splits) if s in splits), "")
    if chosen not in splits:
        allowed = ", ".join(splits) or "none"
        raise Refusal(
            "E-DATA-010", f"{version} has no split {chosen!r}", field="--split", found=chosen, allowed=allowed
        )
    return chosen


def _files_of(version: Version, split: str) -> list[str]:
    have = {f.path for f in version.files}
    return [
        path for path in version.facts["splits"][split]["files"] if path in have
    ]  # the owner's record may name any file


def split_rows(version: Version, split: str) -> Iterator[dict[str, Any]]:
    """Every row of a split, in file order, as a stream. Raises Refusal E-DATA-003, E-DATA-004, E-STORE-02x."""
    sizes = {f.path: f.size for f in version.files}
    for path in filter(is_data, _files_of(version, split)):
        for _, row in rows(Source(path, version.content / path, sizes[path])):
            yield row


def _first_rows(path: Path, name: str, count: int) -> list[dict[str, Any]]:
    try:
        if name.endswith(".parquet"):
            first = [row for batch in islice(parquet_batches(name, path), 1 + count // BATCH) for row in batch][:count]
            plain: list[dict[str, Any]] = json.loads(json.dumps(first, default=str))
            return plain
        if not name.endswith(".jsonl"):
            return []
        with open(path, "rb") as stream:
            return [parse_row(line, f"{name}:{number}") for number, line in islice(read_lines(stream, name), count)]
    except DataFault as fault:
        raise to_refusal(fault) from fault
    except OSError as exc:
        raise refusal(exc, path, "read") from exc
