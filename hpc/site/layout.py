"""Lays out a storage root: every folder of `hpc.site.plan` with its writers and modes, the site file, the first user.

Works for root with an admin group, a service user and many users, and for one ordinary user who is then the admin of
their own root. Running it again mends what is missing or has the wrong mode and never touches content.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

import tuneplane
from tuneplane.contract.layout import StorageRoot
from tuneplane.record.files import write_new

from hpc.errors.core import Refusal
from hpc.site.members import add_user, retire_user
from hpc.site.plan import FOREIGN_BUT_HARMLESS, ROWS, TOP, Row
from hpc.site.sitefile import load_site, parse_site
from hpc.site.starter import starter
from hpc.site.transfer import transfer_user
from hpc.site.trust import check_above
from hpc.site.users import User, find_group, find_user, real_user, user_of
from hpc.site.words import folder as plain_folder
from hpc.store.faults import refusal
from hpc.store.folders import make_folder

__all__ = ["Laid", "add_user", "init_root", "retire_user", "transfer_user"]


@dataclass(frozen=True)
class Laid:
    """What `init_root` did: the folders that are new, whether the site file is, and the admin that owns the root."""

    root: StorageRoot
    new_folders: tuple[str, ...]
    new_site_file: bool
    admin: str


@dataclass(frozen=True)
class _Owners:
    admin: User
    admin_gid: int
    shared_gid: int
    service_uid: int

    def of(self, row: Row) -> tuple[int, int]:
        """(uid, gid) of a row."""
        if row.kind == "service":
            return self.service_uid, self.admin_gid
        return self.admin.uid, self.shared_gid if row.kind == "shared" else self.admin_gid


def init_root(
    path: str | os.PathLike[str],
    *,
    name: str = "",
    admin_user: str = "",
    admin_group: str = "",
    users_group: str = "",
    service_user: str = "",
    fleet: str = "local",
    bin_dir: str = "/usr/bin",
    conf: str = "",
    version: str = tuneplane.__version__,
) -> Laid:
    """Lay out the storage root at `path` (absolute; its parent exists), or mend one that was laid out before.

    `admin_user` owns what admins write (default: the caller). `admin_group` is the group of admin folders and goes
    into the site file. `users_group` is the group of the shared parents, whose members may make their own folders
    (default: the admins' group, so that only `tp site user add` makes them). `service_user` owns seals, index, cache,
    admitted. Without an admin group the caller becomes the first user. An existing site file is never changed.

    Raises Refusal E-SITE-041 (path), E-SITE-040 (not empty and not ours), E-SITE-042 (another owner), E-SITE-033
    (others' folders without root), E-SITE-030, E-SITE-043 (unknown user, group), E-SITE-014, E-STORE-01x, E-STORE-02x.
    """
    root = StorageRoot(_checked_path(path))
    caller = real_user()
    owners = _owners(root, caller, admin_user, admin_group, users_group, service_user)
    text = starter(
        name=name or root.path.name,
        admin_group=admin_group,
        service_user=service_user,
        fleet=fleet,
        bin_dir=bin_dir,
        conf=conf,
        version=version,
    )
    parse_site(text, version=version)  # refuse a bad name or path before anything is made
    check_above(root)
    _refuse_foreign(root, owners, caller)
    made = [row.path for row in ROWS if _make_row(root, row, owners, caller)]
    new_file = not os.path.lexists(root.site_file) and _write_site_file(root, text, owners, caller)
    if caller.uid == owners.admin.uid and not load_site(root, version=version).admin_group:
        add_user(root, caller.name)
    return Laid(root, tuple(made), new_file, owners.admin.name)


def _checked_path(path: str | os.PathLike[str]) -> Path:
    text = os.fspath(path)
    try:
        plain_folder(text)
    except Refusal as fault:
        raise Refusal("E-SITE-041", fault.message, field="ROOT", found=fault.found, allowed=fault.allowed) from None
    target = Path(text)
    if text == "/" or not target.parent.is_dir():
        raise Refusal("E-SITE-041", f"{target.parent} is not a folder", field="ROOT", found=text)
    if target.is_symlink():
        raise Refusal("E-SITE-041", f"{text} is a link", field="ROOT", found=os.readlink(text))
    return target


def _owners(
    root: StorageRoot, caller: User, admin_user: str, admin_group: str, users_group: str, service_user: str
) -> _Owners:
    """Whom the folders belong to: what was asked for, else what an earlier run left, else the caller."""

    def earlier(path: Path) -> os.stat_result | None:
        return path.lstat() if root.site_file.exists() and path.exists() else None

    site, seals, runs = earlier(root.site), earlier(root.seals), earlier(root.runs)
    admin = find_user(admin_user) if admin_user else user_of(site.st_uid) if site else caller
    service = find_user(service_user) if service_user else user_of(seals.st_uid) if seals else admin
    admin_gid = find_group(admin_group, "--admin-group") if admin_group else site.st_gid if site else admin.gid
    shared_gid = find_group(users_group, "--users-group") if users_group else runs.st_gid if runs else admin_gid
    if caller.uid != 0 and {admin.uid, service.uid} != {caller.uid}:
        others = ", ".join(sorted({admin.name, service.name} - {caller.name}))
        raise Refusal("E-SITE-033", f"only root can make folders of {others}", found=caller.name, allowed="root")
    return _Owners(admin, admin_gid, shared_gid, service.uid)


def _refuse_foreign(root: StorageRoot, owners: _Owners, caller: User) -> None:
    """A new or empty folder, or one that holds nothing but our own top folders, of the right owner."""
    try:
        found = os.lstat(root.path)
        names = sorted(os.listdir(root.path))
    except FileNotFoundError:
        return
    except OSError as exc:
        raise refusal(exc, root.path, "look into") from exc
    if strange := [n for n in names if n not in TOP and n not in FOREIGN_BUT_HARMLESS]:
        raise Refusal(
            "E-SITE-040",
            f"{root.path} holds {strange[0]!r}, which is not of a storage root",
            field="ROOT",
            found=", ".join(strange[:5]),
            allowed="a new folder, an empty one, or an earlier storage root",
        )
    # Root may give away a folder that was made for it: an empty one of its own.
    fresh = not set(names) & TOP and found.st_uid == caller.uid
    if found.st_uid != owners.admin.uid and not (fresh and caller.uid == 0):
        who = user_of(found.st_uid).name
        raise Refusal("E-SITE-042", f"{root.path} belongs to {who}", field="ROOT", found=who, allowed=owners.admin.name)


def _make_row(root: StorageRoot, row: Row, owners: _Owners, caller: User) -> bool:
    uid, gid = owners.of(row)
    path = root.path / row.path if row.path else root.path
    anchor = root.path if row.path else root.path.parent
    if not row.path and path.exists() and path.stat().st_uid != uid and caller.uid == 0:
        os.chown(path, uid, gid)
    mode = row.mode
    if row.path and path.is_dir() and stat.S_IMODE(path.lstat().st_mode) == mode | 0o020 and row.kind == "admin":
        mode |= 0o020  # admins who let their group write keep that
    return make_folder(path, mode, uid=uid, gid=gid, anchor=anchor)


def _write_site_file(root: StorageRoot, text: str, owners: _Owners, caller: User) -> bool:
    """True if it was written; False if another admin was first."""
    try:
        write_new(root.site_file, text.encode("utf-8"))
        if owners.admin.uid != caller.uid:
            os.chown(root.site_file, owners.admin.uid, owners.admin_gid)
    except FileExistsError:
        return False
    except OSError as exc:
        raise refusal(exc, root.site_file, "write") from exc
    return True
