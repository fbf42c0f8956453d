"""Takes a version off its shelf: only if nothing names it, by one rename to a name that no reader takes for a version, then file by file.

Before that a tombstone is written, by which an audit tells a removal from a deletion by hand. Killed in between, the renamed folder is litter, which
the next push of that name sweeps. A version that was sealed stays known as gone: its number cannot be given to other bytes.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from tuneplane.record.files import fsync_dir

from hpc.data.uses import Uses, uses_of
from hpc.data.visibility import PRIVATE, visibility_of
from hpc.errors.core import Refusal
from hpc.registry.shelf import TEMP_SUFFIX, Ref, Shelf
from hpc.registry.storing import drop
from hpc.registry.tombstones import bury
from hpc.site.users import User
from hpc.store.faults import refusal

SHOWN = 5


def remove_version(shelf: Shelf, ref: Ref, *, user: User, now: str, unseen: bool = False) -> Uses:
    """Remove one version; what could not be looked at comes back. `unseen`: accept that some records could not be read.

    Raises Refusal E-REG-002 (no such version), E-REG-003 (another's), E-DATA-020 (still named, or nobody can say), E-STORE-02x. A damaged
    version can be removed as well: its bytes are not looked at.
    """
    uid = shelf.require(ref.owner, ref.name)
    require_owner(ref, uid, user)
    folder = shelf.version(ref.owner, ref.name, ref.version)
    if not os.path.lexists(folder):
        raise Refusal(
            "E-REG-002",
            f"there is no {ref}",
            found=str(ref),
            allowed=", ".join(shelf.versions(ref.owner, ref.name)[:10]),
        )
    found = uses_of(shelf.root, str(ref))
    if found.named:
        raise Refusal(
            "E-DATA-020",
            f"{ref} is named by {len(found.named)} records",
            found=", ".join(found.named[:SHOWN]),
            field=str(ref),
        )
    private = visibility_of(folder.parent).word == PRIVATE
    if found.closed and not private and not unseen:
        raise Refusal(
            "E-DATA-020", f"{len(found.closed)} folders of others cannot be read and may name {ref}", field=str(ref),
            found=", ".join(found.closed[:SHOWN]), hint="let root or the service user run it, or accept that with --unseen",
        )  # fmt: skip
    bury(shelf, ref, uid=uid, user=user, now=now)
    trash(folder)
    return found


def require_owner(ref: Ref, uid: int, user: User) -> None:
    """Return only for the owner and root. Raises Refusal E-REG-003."""
    if user.uid not in (0, uid):
        raise Refusal("E-REG-003", f"{ref} is not {user.name}'s", field=str(ref), found=user.name, allowed=ref.owner)


def trash(folder: Path) -> None:
    """One rename, made durable, then the removal. Raises Refusal E-STORE-02x; then nothing changed."""
    gone = folder.with_name(f".{folder.name}.{secrets.token_hex(6)}{TEMP_SUFFIX}")
    try:
        os.rename(folder, gone)
        fsync_dir(folder.parent)
    except OSError as exc:
        raise refusal(exc, folder, "remove") from exc
    drop(gone)
