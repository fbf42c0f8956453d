"""Inclusion proofs as text that stands alone (C2SP tlog-proof): the entry, its index, the hashes up to the head, the signed head.

Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hpc.evidence import merkle
from hpc.evidence.entries import Entry, EntryError, decode_entry
from hpc.evidence.note import Checkpoint, NoteError, VerifierKey, decode_base64, encode_base64, open_checkpoint

MAGIC: Final = "c2sp.org/tlog-proof@v1"
SUFFIX: Final = ".tlog-proof"


@dataclass(frozen=True)
class Proven:
    """An entry that is in the tree whose head the log's key signed."""

    entry: Entry
    checkpoint: Checkpoint


def encode_proof(index: int, entry: bytes, hashes: Sequence[bytes], note: bytes) -> bytes:
    lines = [MAGIC, f"extra {encode_base64(entry)}", f"index {index}", *map(encode_base64, hashes), "", ""]
    return "\n".join(lines).encode() + note


def check_proof(data: bytes, key: VerifierKey, *, opened: tuple[bytes, Checkpoint] | None = None) -> Proven:
    """Recompute the way from the entry to the signed head. Raises NoteError for anything that does not lead there.

    `opened`: a head whose signature was verified before, byte for byte; verifying one signature costs more than a whole proof.
    """
    head, blank, note = data.partition(b"\n\n")
    try:
        lines = head.decode("ascii").split("\n")
    except UnicodeDecodeError as exc:
        raise NoteError("is not a proof") from exc
    if not blank or len(lines) < 3 or lines[0] != MAGIC:
        raise NoteError(f"is not a proof: the first line is not {MAGIC}")
    extra, place = lines[1].partition("extra "), re.fullmatch("index (0|[1-9][0-9]{0,18})", lines[2])
    if extra[0] or not extra[1] or place is None:
        raise NoteError("is not a proof with an entry and an index")
    index, entry = int(place[1]), decode_base64(extra[2], "the entry")
    hashes = [decode_base64(line, "a hash") for line in lines[3:]]
    checkpoint = opened[1] if opened is not None and opened[0] == note else open_checkpoint(note, key)
    if any(len(h) != merkle.HASH_BYTES for h in hashes):
        raise NoteError("has a hash that is no SHA-256")
    if merkle.root_of_inclusion(merkle.leaf_hash(entry), index, checkpoint.size, hashes) != checkpoint.root:
        raise NoteError(f"entry {index} is not in the signed tree of {checkpoint.size}")
    try:
        return Proven(decode_entry(entry, index), checkpoint)
    except EntryError as exc:
        raise NoteError(str(exc)) from exc
