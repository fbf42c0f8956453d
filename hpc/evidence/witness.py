"""A witness: another user or host that keeps the last checkpoint it saw, and lets the next one pass only if it extends that one.

    <state>/checkpoint        the last good checkpoint as the log signed it, with the witness's own signature where it has a key
    <state>/seen.json         first and last visit: size and time of each, by the witness's clock
    <state>/witness.key       optional: its secret key, 0600

What it saw once cannot be rewritten unseen, whoever holds the log's key. Before its first visit it knows nothing; between two visits something can
be logged and taken back: both are the blind interval, which every visit tells.
"""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from tuneplane.contract.layout import StorageRoot
from tuneplane.record.files import read_bytes, read_json, replace, replace_json, write_new
from tuneplane.record.times import utc_text

from hpc.errors import Refusal
from hpc.evidence import merkle
from hpc.evidence.log import CHECKPOINT, Head, tree
from hpc.evidence.note import (
    MAX_NOTE,
    WITNESS,
    Checkpoint,
    NoteError,
    SignerKey,
    VerifierKey,
    check_name,
    cosign,
    open_checkpoint,
    parse_signer,
)
from hpc.evidence.tiles import TileError
from hpc.store.faults import refusal

SEEN: Final = "seen.json"
KEY: Final = "witness.key"
SCHEMA: Final = "tuneplane-hpc/witness/v1"


@dataclass(frozen=True)
class Visit:
    """What a visit found. `faults`: every disagreement, empty when the head was accepted and saved."""

    origin: str
    size: int
    first_size: int
    first_at: str
    before_size: int
    before_at: str
    at: str
    faults: tuple[str, ...]
    cosigned: bool

    @property
    def blind(self) -> tuple[str, ...]:
        """What this witness cannot vouch for, in words."""
        began = (
            f"rewriting of entries 0 to {self.first_size - 1} that was done before {self.first_at}"
            if self.first_size
            else ""
        )
        start = f"records that were changed before they were logged; the first visit was at {self.first_at}"
        between = (
            f"entries that were logged and taken back between {self.before_at} and {self.at}" if self.before_at else ""
        )
        return tuple(t for t in (began, start, between) if t)

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA, "origin": self.origin, "size": self.size, "first_size": self.first_size, "first_at": self.first_at,
            "last_size": self.before_size, "last_at": self.before_at, "at": self.at, "faults": list(self.faults),
            "accepted": not self.faults, "cosigned": self.cosigned, "blind": list(self.blind),
        }  # fmt: skip


def disagreements(root: StorageRoot, head: Head, seen: Checkpoint) -> tuple[str, ...]:
    """Why the log's head does not extend a checkpoint that was seen, by a consistency proof from the log's own tiles. Raises Refusal E-STORE-02x."""
    now = head.checkpoint
    if now.origin != seen.origin:
        return (f"the log calls itself {now.origin!r:.120}, seen was {seen.origin!r:.120}",)
    if now.size < seen.size:
        return (f"the log has {now.size} entries and had {seen.size}: it was cut, or an older checkpoint was put back",)
    if now.size == seen.size:
        same = now.root == seen.root
        return (
            () if same else (f"two different trees of {now.size} entries were signed: the log was forked or rewritten",)
        )
    tiles = tree(root, head)
    try:
        proof = merkle.consistency_proof(tiles.node, seen.size, now.size)
        if merkle.is_consistent(seen.size, seen.root, now.size, now.root, proof):
            return ()
    except TileError as exc:
        return (str(exc),)
    # A damaged tile spoils the proof, too, and is no rewriting.
    if faults := whole_tree(root, head):
        return faults
    return (f"the first {seen.size} entries are not the ones that were seen: history was rewritten",)


@dataclass(frozen=True)
class Seen:
    """What a witness kept: the last checkpoint, and when it visited first and last ("" before the first visit)."""

    checkpoint: Checkpoint
    first_size: int
    first_at: str
    last_at: str


def read_seen(state: Path, key: VerifierKey) -> Seen | None:
    """What the witness kept, None before its first visit. Raises Refusal E-EVID-008 for anything between."""
    note_path, seen_path = state / CHECKPOINT, state / SEEN
    if not os.path.lexists(note_path) and not os.path.lexists(seen_path):
        return None
    try:
        checkpoint = open_checkpoint(read_bytes(note_path, limit=MAX_NOTE), key)
        seen = read_json(seen_path)
        if not isinstance(seen, dict) or seen.get("schema") != SCHEMA:
            raise ValueError(f"{SEEN} has another form")
        first, last = seen["first"], seen["last"]
        # A kill between the two files leaves the newer checkpoint beside the older times.
        if not (type(first["size"]) is int and first["size"] <= last["size"] <= checkpoint.size):
            raise ValueError(f"{SEEN} is not of this checkpoint")
        return Seen(checkpoint, first["size"], str(first["at"]), str(last["at"]))
    except FileNotFoundError as exc:
        raise Refusal("E-EVID-008", f"{exc.filename} is gone and the other is there", field=str(state)) from exc
    except (OSError, ValueError, KeyError, TypeError, NoteError) as exc:
        raise Refusal("E-EVID-008", f"what was seen last cannot be read: {exc}", field=str(state)) from exc


def cosigner(state: Path, uid: int) -> SignerKey | None:
    """The witness's own key, None where it has none. Raises Refusal E-EVID-002."""
    path = state / KEY
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    if found.st_uid != uid or found.st_mode & 0o077 or not stat.S_ISREG(found.st_mode):
        mode = f"uid {found.st_uid}, {found.st_mode & 0o7777:04o}"
        raise Refusal("E-EVID-002", "is not this user's alone", field=str(path), found=mode, allowed=f"uid {uid}, 0600")
    try:
        return parse_signer(read_bytes(path, limit=4096).decode("ascii").strip(), kind=WITNESS)
    except (OSError, ValueError) as exc:
        raise Refusal("E-EVID-002", str(exc), field=str(path)) from exc


def new_cosigner(state: Path, name: str, uid: int) -> VerifierKey:
    """Make the witness's key where it is missing; the public one. Raises Refusal E-EVID-002."""
    try:
        check_name(name)
        with suppress(FileExistsError):
            write_new(
                state / KEY, SignerKey(name, secrets.token_bytes(32), WITNESS).text().encode() + b"\n", mode=0o600
            )
    except (OSError, NoteError) as exc:
        raise Refusal("E-EVID-002", str(exc), field=str(state / KEY)) from exc
    key = cosigner(state, uid)
    assert key is not None
    return key.verifier


def require_own(state: Path, uid: int) -> None:
    """The folder is this user's, and nobody else can write what was seen. Raises Refusal E-EVID-008."""
    try:
        os.makedirs(state, mode=0o755, exist_ok=True)
        found = os.lstat(state)
    except OSError as exc:
        raise refusal(exc, state, "make") from exc
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or found.st_mode & 0o022:
        mode = f"uid {found.st_uid}, {found.st_mode & 0o7777:04o}"
        raise Refusal(
            "E-EVID-008", "is not this user's alone to write", field=str(state), found=mode, allowed=f"uid {uid}, 0755"
        )


def visit(root: StorageRoot, head: Head, key: VerifierKey, state: Path, *, uid: int, now: datetime) -> Visit:
    """Compare the log's head with the last one seen, and keep it if it extends that. The caller keeps other visits of this witness out.

    Raises Refusal E-EVID-002, -008, E-STORE-02x. A head that does not extend the last one changes nothing in the state.
    """
    require_own(state, uid)
    mine, kept, at = cosigner(state, uid), read_seen(state, key), utc_text(now.astimezone(timezone.utc))
    size = head.checkpoint.size
    if kept is None:
        seen = Seen(Checkpoint(head.checkpoint.origin, 0, merkle.EMPTY_ROOT), size, at, "")
        faults = whole_tree(root, head)
    else:
        seen, faults = kept, disagreements(root, head, kept.checkpoint)
    if not faults:
        times = {"first": {"size": seen.first_size, "at": seen.first_at}, "last": {"size": size, "at": at}}
        try:
            replace(state / CHECKPOINT, head.note if mine is None else cosign(head.note, mine, int(now.timestamp())))
            replace_json(state / SEEN, {"schema": SCHEMA, **times})
        except OSError as exc:
            raise refusal(exc, state, "write") from exc
    cosigned = mine is not None and not faults
    origin, before = head.checkpoint.origin, seen.checkpoint.size
    return Visit(origin, size, seen.first_size, seen.first_at, before, seen.last_at, at, faults, cosigned)


def whole_tree(root: StorageRoot, head: Head) -> tuple[str, ...]:
    """Every entry and tile up to the signed head: what disagrees, the first one first."""
    tiles, size = tree(root, head), head.checkpoint.size
    if faults := tiles.check():
        return tuple(faults)
    right = merkle.root(tiles.node, size) == head.checkpoint.root
    return () if right else (f"the tiles do not make the signed head of {size} entries",)
