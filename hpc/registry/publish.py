"""Puts one version on its shelf, whole or not at all, and for good.

    check and measure what the publisher has → copy it into .<version>.<random>.tmp, every file fsynced → read the stored bytes back, check and
    measure them as if nobody had before → write the record → one rename

No lock is taken: of two publishers of one version the rename lets one through. A publisher that dies leaves a temporary folder, which no reader
takes for a version. Does not promise that another host sees the new name at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tuneplane.contract.layout import StorageRoot

from hpc.errors.core import Refusal
from hpc.registry.kinds import Checked, Kind
from hpc.registry.look import SCHEMA
from hpc.registry.records import decode_record, encode_record
from hpc.registry.seals import Seal, read_seal
from hpc.registry.shelf import SHIPPED_OWNER, Ref, Shelf, is_segment
from hpc.registry.storing import store, sweep
from hpc.registry.tombstones import unbury
from hpc.registry.trees import Tick, Tree, measure, quiet, survey
from hpc.site.roll import require_active
from hpc.site.trust import require_owner_folder
from hpc.site.users import User, is_admin
from hpc.spec.text import visible
from hpc.store.faults import refusal
from hpc.store.folders import make_folder

if TYPE_CHECKING:
    from hpc.site.sitefile import Site

Method = Literal["publish", "import", "shipped"]


@dataclass(frozen=True)
class Published:
    """What now stands on the shelf. `restored`: it was sealed once, was lost, and is the same again."""

    id: str
    version: str
    digest: str
    digest_v2: str
    size: int
    files: int
    folder: Path
    restored: bool = False

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "version": self.version,
            "digest": self.digest,
            "digest_v2": self.digest_v2,
            "size": self.size,
            "files": self.files,
            "path": str(self.folder),
            "restored": self.restored,
        }


def publish(
    root: StorageRoot,
    kind: Kind,
    source: Path,
    *,
    user: User,
    owner: str,
    site: Site,
    method: Method,
    archive_sha256: str = "",
    starts: str = "enabled",
    core_version: str,
    now: str,
    tick: Tick = quiet,
) -> Published:
    """Publish the folder `source` as `owner`'s. `tick` is told of bytes that went by: each is hashed, copied and hashed again.

    Raises the refusals of `kind.check`, and Refusal E-REG-001 (409: the version exists), 003 (403: not your namespace), 004 (cannot be stored),
    005 (stored otherwise), 006 (cannot be given to the owner), 007 (policy needs an admin), E-SITE-02x (the owner's folder is not to be
    believed), E-SITE-032 (retired), E-STORE-02x. After any of them nothing new stands on the shelf, but where the
    device failed after the last step (E-STORE-026): then the version is there, whole.
    """
    require_active(root, user, site=site)
    _require_namespace(user, owner, site, method)
    checked, tree = _check_source(kind, source, tick)
    if checked.admin_only and not is_admin(user, site):
        raise Refusal(
            "E-REG-007", f"{user.name} may not publish policy", found=user.name, allowed="an admin of the site"
        )
    shelf = Shelf(root, kind, site=site)
    ref = Ref(owner, checked.name, checked.version)
    final = shelf.version(owner, ref.name, ref.version)
    seal = read_seal(root, f"{kind.shelf}/{owner}/{ref.name}/{ref.version}")
    published = {
        "method": method,
        "actor": user.name,
        "uid": user.uid,
        "at": now,
        "archive_sha256": archive_sha256,
        "core_version": core_version,
    }
    if seal is not None:
        published, starts = dict(seal.published), seal.starts
    data = encode_record(_record(kind, ref, checked, tree, published, starts))
    _refuse_existing(ref, final, tree, data, seal)
    uid = shelf.uid(owner)
    with _giving(user, uid, ref):
        _ready(shelf, ref, user, uid, site, now)
        store(kind, source, final, data, tree, checked, uid, tick)
    unbury(root, f"{kind.shelf}/{owner}/{ref.name}/{ref.version}")
    return Published(
        ref.id, ref.version, tree.v1, tree.v2, tree.size, len(tree.files), final, restored=seal is not None
    )


def _require_namespace(user: User, owner: str, site: Site, method: Method) -> None:
    admin = is_admin(user, site)
    if not is_segment(owner):
        raise Refusal("E-REG-003", f"{visible(owner)!r} cannot be a namespace", field="owner", found=visible(owner))
    if owner == SHIPPED_OWNER:
        if method != "shipped" or not admin:
            text = f"{owner} is kept for what ships with the toolkit"
            raise Refusal("E-REG-003", text, field="owner", found=user.name, allowed=user.name)
    elif owner != user.name and not admin:
        text = f"{owner} is not the namespace of {user.name}"
        raise Refusal("E-REG-003", text, field="owner", found=owner, allowed=user.name)


def _check_source(kind: Kind, source: Path, tick: Tick) -> tuple[Checked, Tree]:
    """What the publisher has: the size of it, then what it is, then both digests. Raises the refusals of the kind, E-REG-004."""
    try:
        fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as exc:
        raise refusal(exc, source, "read the folder") from exc
    try:
        survey(fd, max_bytes=kind.max_bytes, max_files=kind.max_files)
        checked = kind.check(source)
        tree = measure(fd, lenient=True, tick=tick)
    except OSError as exc:
        raise refusal(exc, source, "read") from exc
    finally:
        os.close(fd)
    for key, text in (("name", checked.name), ("version", checked.version)):
        if not is_segment(text):
            raise Refusal("E-REG-004", "is no name for a shelf", field=key, found=visible(text))
    return checked, tree


def _record(
    kind: Kind, ref: Ref, checked: Checked, tree: Tree, published: Mapping[str, Any], starts: str
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "kind": kind.name,
        "owner": ref.owner,
        "name": ref.name,
        "version": ref.version,
        "digest": tree.v1,
        "digest_v2": tree.v2,
        "size": tree.size,
        "files": [f.as_json() for f in tree.files],
        "facts": dict(checked.facts),
        "published": dict(published),
        "starts": starts,
    }


def _refuse_existing(ref: Ref, final: Path, tree: Tree, data: bytes, seal: Seal | None) -> None:
    if os.path.lexists(final):
        raise Refusal("E-REG-001", f"{ref} is published already", field=str(final), found=str(ref))
    if seal is None:
        return
    if (tree.v1, tree.v2) != (seal.digest, seal.digest_v2):
        text = f"{ref} was sealed at {seal.sealed_at} with other content"
        raise Refusal("E-REG-001", text, field=str(final), found=tree.v1, allowed=seal.digest)
    if decode_record(data, SCHEMA)["record_digest"] != seal.record:
        # The bytes are the sealed ones, but this release reads other facts from them; what was locked would change its meaning.
        text = f"{ref} was sealed at {seal.sealed_at}; this release cannot restore the record that it had"
        raise Refusal("E-REG-001", text, field=str(final), found=tree.v1, allowed=seal.record)


@contextmanager
def _giving(user: User, uid: int, ref: Ref) -> Iterator[None]:
    """Whatever stops root from writing for another owner has a code of its own."""
    try:
        yield
    except Refusal as fault:
        if uid == user.uid or fault.code not in ("E-STORE-013", "E-STORE-021", "E-STORE-024", "E-REG-006"):
            raise
        text = f"{ref} cannot be given to uid {uid}: {fault.message}"
        raise Refusal(
            "E-REG-006", text, field=fault.field, found=user.name, allowed="root, on a mount that lets it"
        ) from fault


def _ready(shelf: Shelf, ref: Ref, user: User, uid: int, site: Site, now: str) -> None:
    """The owner's folder and the package's, made where they are missing; litter of the package's dead publishers goes."""
    owner_folder = shelf.path / ref.owner
    if not os.path.lexists(owner_folder):
        _make_owner(shelf, ref, owner_folder, user, uid, site)
    require_owner_folder(owner_folder, uid)
    package = owner_folder / ref.name
    if not os.path.lexists(package):
        _make(package, uid, shelf.root.path)
    require_owner_folder(package, uid)
    sweep(package, now)


def _make_owner(shelf: Shelf, ref: Ref, folder: Path, user: User, uid: int, site: Site) -> None:
    from hpc.site.members import ensure_owner

    if (ref.owner, uid) == (user.name, user.uid):
        ensure_owner(shelf.root, user, site=site)
    elif user.uid in (0, uid):
        _make(folder, uid, shelf.root.path)
    else:
        raise Refusal("E-REG-006", f"there is no folder of {ref.owner}", field=str(folder), found=user.name)


def _make(folder: Path, uid: int, anchor: Path) -> None:
    """A new folder of `uid`; nothing is left of one that cannot be given away."""
    try:
        make_folder(folder, 0o755, uid=uid, anchor=anchor)
    except Refusal:
        try:
            os.rmdir(folder)
        except OSError:
            pass  # another publisher uses it already, or it was never made
        raise
