"""The log on disk: `registry/log/`, owned by the service user, who alone appends; read by everybody, believed for its signature alone.

Order of an append: lock; check that the tiles make the head that was signed last; write the new bundles and tiles; read the new head back from
them; sign; replace `checkpoint` last. A crash at any step leaves the old checkpoint over the old tiles, which no append touches; what it left
beyond them is overwritten by the next one. `checkpoint` is there from the first moment on (of size 0), so that a missing one is damage.

Does not promise that the log was never rewritten by whoever has the service user's key: that is what witnesses are for (`hpc.evidence.witness`).
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tuneplane.contract.layout import StorageRoot
from tuneplane.record.files import read_bytes, replace, write_new

from hpc.errors import Refusal
from hpc.evidence import merkle
from hpc.evidence.entries import Entry, EntryError, decode_entry
from hpc.evidence.note import (
    MAX_NOTE,
    Checkpoint,
    NoteError,
    SignerKey,
    VerifierKey,
    open_checkpoint,
    parse_signer,
    parse_verifier,
    sign_checkpoint,
)
from hpc.evidence.tiles import HEIGHT, WIDTH, TileError, Tiles, grown, levels, tile_path
from hpc.store.faults import refusal

if TYPE_CHECKING:
    from hpc.site.sitefile import Site

KEY: Final = "log.key"
VKEY: Final = "log.vkey"
CHECKPOINT: Final = "checkpoint"
PREVIOUS: Final = "checkpoint.previous"
LOCK: Final = "append.lock"


@dataclass(frozen=True)
class Head:
    """A checkpoint that the log's key signed, and its bytes."""

    checkpoint: Checkpoint
    note: bytes


def service_uid(root: StorageRoot) -> int:
    """Who may append: the owner of the log's folder. Raises Refusal E-EVID-001."""
    try:
        found = os.lstat(root.log)
    except FileNotFoundError as exc:
        raise Refusal("E-EVID-001", f"{root.log} is not there", field="registry/log") from exc
    except OSError as exc:
        raise refusal(exc, root.log, "look at") from exc
    if not stat.S_ISDIR(found.st_mode):
        raise Refusal("E-EVID-001", f"{root.log} is not a real folder", field="registry/log")
    return found.st_uid


def trusted_key(root: StorageRoot, site: Site, text: str = "") -> VerifierKey:
    """The log's public key: `text` if it is given, else site/log.vkey, which only admins can write. Raises Refusal E-EVID-004, E-SITE-01x."""
    where = "--key"
    if not text:
        from hpc.site.trust import require_admin_owned

        path = root.site / VKEY
        where = str(path)
        if not os.path.lexists(path):
            raise Refusal("E-EVID-004", "the site names no key of the log", field=where)
        require_admin_owned(root, path, site=site)
        try:
            text = read_bytes(path, limit=4096).decode("utf-8")
        except (OSError, ValueError) as exc:
            raise Refusal("E-EVID-004", f"cannot be read: {exc}", field=where) from exc
    try:
        return parse_verifier(text)
    except NoteError as exc:
        raise Refusal("E-EVID-004", str(exc), field=where) from exc


def signer_key(root: StorageRoot, uid: int) -> SignerKey:
    """The log's secret key. Raises Refusal E-EVID-002 unless it is `uid`'s alone."""
    path = root.keys / KEY
    try:
        found = os.lstat(path)
        text = read_bytes(path, limit=4096).decode("ascii").strip()
        if found.st_uid != uid or found.st_mode & 0o077 or not stat.S_ISREG(found.st_mode):
            mode = f"uid {found.st_uid}, {found.st_mode & 0o7777:04o}"
            raise Refusal(
                "E-EVID-002", "is not this user's alone", field=str(path), found=mode, allowed=f"uid {uid}, 0600"
            )
        return parse_signer(text)
    except NoteError as exc:
        raise Refusal("E-EVID-002", str(exc), field=str(path)) from exc
    except (OSError, ValueError) as exc:
        raise Refusal("E-EVID-002", f"cannot be read: {exc}", field=str(path)) from exc


def require_service(root: StorageRoot, uid: int) -> None:
    """Raises Refusal E-EVID-001, E-EVID-003."""
    owner = service_uid(root)
    if uid != owner:
        raise Refusal(
            "E-EVID-003", f"the log belongs to uid {owner}", field=str(root.log), found=uid, allowed=str(owner)
        )


def init_log(root: StorageRoot, origin: str, *, uid: int) -> VerifierKey:
    """Make the key and the empty, signed log where they are missing. Again is safe.

    Raises Refusal E-EVID-001 … -003, E-EVID-006 where a log lost its checkpoint, E-STORE-02x.
    """
    require_service(root, uid)
    path, checkpoint = root.keys / KEY, root.log / CHECKPOINT
    if not os.path.lexists(checkpoint) and os.path.lexists(root.log / "tile"):
        raise Refusal("E-EVID-006", "the checkpoint is gone", field=str(checkpoint))
    if not os.path.lexists(path):
        if os.path.lexists(checkpoint):
            raise Refusal("E-EVID-002", "the log was signed with a key that is gone", field=str(path))
        _begin(path, SignerKey(origin, secrets.token_bytes(32)).text().encode() + b"\n", mode=0o600)
    key = signer_key(root, uid)
    _begin(checkpoint, sign_checkpoint(Checkpoint(key.name, 0, merkle.EMPTY_ROOT), key), mode=0o644)
    return key.verifier


def _begin(path: Path, data: bytes, *, mode: int) -> None:
    """Write what is not there yet."""
    try:
        write_new(path, data, mode=mode)
    except FileExistsError:
        return
    except OSError as exc:
        raise refusal(exc, path, "write") from exc


def read_head(root: StorageRoot, key: VerifierKey) -> Head:
    """The newest checkpoint. Raises Refusal E-EVID-001 (no log), E-EVID-006 (damaged, or another key's), E-STORE-02x."""
    service_uid(root)
    path = root.log / CHECKPOINT
    try:
        note = read_bytes(path, limit=MAX_NOTE)
    except FileNotFoundError as exc:
        begun = (root.log / "tile").exists()
        code, text = ("E-EVID-006", "the checkpoint is gone") if begun else ("E-EVID-001", "the log was never begun")
        raise Refusal(code, text, field=str(path)) from exc
    except OSError as exc:
        raise refusal(exc, path, "read") from exc
    except ValueError as exc:
        raise Refusal("E-EVID-006", str(exc), field=str(path)) from exc
    try:
        return Head(open_checkpoint(note, key), note)
    except NoteError as exc:
        raise Refusal("E-EVID-006", str(exc), field=str(path)) from exc


def tree(root: StorageRoot, head: Head) -> Tiles:
    return Tiles(root.log, head.checkpoint.size)


def require_root(tiles: Tiles, head: Head) -> None:
    """The tiles make the signed head. Reads only the tiles at the right edge. Raises Refusal E-EVID-006."""
    try:
        found = merkle.root(tiles.node, head.checkpoint.size)
    except TileError as exc:
        raise Refusal("E-EVID-006", str(exc), field=str(tiles.folder)) from exc
    if found != head.checkpoint.root:
        size = head.checkpoint.size
        raise Refusal("E-EVID-006", f"the tiles do not make the signed head of {size} entries", field=str(tiles.folder))


def read_entries(root: StorageRoot, head: Head) -> list[Entry]:
    """Every entry of the tree. Checks no hash. Raises Refusal E-EVID-006."""
    try:
        return [decode_entry(data, index) for index, data in tree(root, head).entries()]
    except (TileError, EntryError) as exc:
        raise Refusal("E-EVID-006", str(exc), field=str(root.log)) from exc


def append(root: StorageRoot, entries: Sequence[bytes], key: SignerKey, before: Head) -> Head:
    """Append to the log whose head is `before`. The caller holds the lock.

    Raises Refusal E-EVID-006 where the log is not what was signed or is not at `before` any more, E-STORE-02x where it cannot be written.
    """
    if not entries:
        return before
    if read_head(root, key.verifier).note != before.note:
        raise Refusal("E-EVID-006", "the checkpoint changed while the log was locked", field=str(root.log / CHECKPOINT))
    old = tree(root, before)
    require_root(old, before)
    try:
        written = {root.log / name: data for name, data in grown(old, entries)}
        for path, data in written.items():
            _folders(root.log, path.parent)
            replace(path, data, mode=0o444)
        size = before.checkpoint.size + len(entries)
        after = Checkpoint(before.checkpoint.origin, size, merkle.root(Tiles(root.log, size).node, size))
        note = sign_checkpoint(after, key)
        replace(root.log / PREVIOUS, before.note)
        replace(root.log / CHECKPOINT, note)
    except TileError as exc:
        raise Refusal("E-EVID-006", str(exc), field=str(root.log)) from exc
    except OSError as exc:
        raise refusal(exc, exc.filename or root.log, "write") from exc
    _prune(root.log, before.checkpoint.size, size)
    _sweep({root.log, *(path.parent for path in written)})
    return Head(after, note)


def _folders(top: Path, folder: Path) -> None:
    """Make what is missing, readable for everybody whatever the umask."""
    for part in [*reversed([p for p in folder.parents if top in p.parents]), folder]:
        with suppress(FileExistsError):
            os.mkdir(part)
            os.chmod(part, 0o755)


def _prune(folder: Path, old: int, new: int) -> None:
    """Remove partial tiles that became full. Litter is no fault, so nothing is raised."""
    for level in ("entries", *range(levels(new))):
        shift = 0 if level == "entries" else HEIGHT * int(level)
        index = (old >> shift) // WIDTH
        if (old >> shift) % WIDTH and (new >> shift) // WIDTH > index:
            shutil.rmtree(folder / f"{tile_path(level, index)}.p", ignore_errors=True)


def _sweep(folders: set[Path]) -> None:
    """Remove what killed writers left; under the lock nobody else is writing here."""
    for folder in folders:
        for temp in folder.glob(".*.tmp"):
            with suppress(OSError):
                temp.unlink()
