"""The whole log, recomputed: signature, every tile, every entry, what a witness saw, and, if asked, the records themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tuneplane.contract.layout import StorageRoot

from hpc.errors import Refusal
from hpc.evidence import merkle
from hpc.evidence.entries import Entry, EntryError, decode_entry
from hpc.evidence.gather import gather
from hpc.evidence.log import Head, read_entries, tree
from hpc.evidence.note import NoteError, VerifierKey, encode_base64, open_checkpoint
from hpc.evidence.proof import encode_proof
from hpc.evidence.tiles import WIDTH, TileError
from hpc.evidence.witness import disagreements, whole_tree


@dataclass(frozen=True)
class LogCheck:
    """What was recomputed. `faults`: every disagreement, the first one first; `notes`: what is worth knowing and accuses nobody."""

    origin: str
    size: int
    root: bytes
    faults: tuple[str, ...]
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "verdict": "tampered" if self.faults else "verified", "origin": self.origin, "size": self.size,
            "root": encode_base64(self.root), "faults": list(self.faults), "notes": list(self.notes),
        }  # fmt: skip


def check_log(root: StorageRoot, head: Head, key: VerifierKey, *, witness: bytes | None, records: bool) -> LogCheck:
    """Judge the log whose signed head is `head`. `witness`: a checkpoint that a witness kept. Raises Refusal E-STORE-02x."""
    tiles = tree(root, head)
    notes: list[str] = []
    faults = list(whole_tree(root, head))
    entries: list[Entry] = []
    try:
        for index, data in tiles.entries():
            entries.append(decode_entry(data, index))
    except (TileError, EntryError) as exc:
        faults.append(str(exc))
    if witness is None:
        notes.append("no witness's checkpoint was compared: whoever has the log's key could have rewritten all of it")
    else:
        faults += _compare_witness(root, head, key, witness)
    if records:
        found = gather(root, entries, everything=True)
        faults += [
            f"entry {c.entry.index}: {c.entry.fact.subject} {c.entry.fact.path} {c.message}" for c in found.conflicts
        ]
        notes += [f"{path} cannot be read: {why}" for path, why in sorted(found.unread.items())[:20]]
        notes += [
            f"{subject} is logged and cannot be seen: it was removed, or you may not list it"
            for subject in found.gone[:20]
        ]
        if found.fresh:
            notes.append(f"{len(found.fresh)} records are not logged yet")
    return LogCheck(key.name, head.checkpoint.size, head.checkpoint.root, tuple(dict.fromkeys(faults)), tuple(notes))


def _compare_witness(root: StorageRoot, head: Head, key: VerifierKey, witness: bytes) -> tuple[str, ...]:
    try:
        seen = open_checkpoint(witness, key)
    except NoteError as exc:
        return (f"the witness's checkpoint {exc}",)
    return tuple(f"witness: {fault}" for fault in disagreements(root, head, seen))


def prove(root: StorageRoot, head: Head, digest: str) -> list[tuple[Entry, bytes]]:
    """(entry, proof) for every entry with this digest, oldest first. Raises Refusal E-EVID-006."""
    return [(e, proof_of(root, head, e.index)) for e in read_entries(root, head) if e.fact.digest == digest]


def proof_of(root: StorageRoot, head: Head, index: int) -> bytes:
    """The proof that entry `index` is in the tree of `head`. Raises Refusal E-EVID-006."""
    tiles, size = tree(root, head), head.checkpoint.size
    try:
        entry = tiles.bundle(index // WIDTH)[index % WIDTH]
        return encode_proof(index, entry, merkle.inclusion_proof(tiles.node, index, size), head.note)
    except TileError as exc:
        raise Refusal("E-EVID-006", str(exc), field=str(root.log)) from exc
