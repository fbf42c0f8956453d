"""Users of a storage root: added, retired, given to somebody else.

An owner is a Unix account; nothing needs to be written down for an ordinary one. A record in site/users/, which only
admins write, says what differs: the uid that a name had, that the user is retired, or who has their folders now.

Retiring is a promise about the toolkit: it refuses new records of a retired user. The user's own processes can still
write their own files, as long as the account lives and the files are theirs; transferring ends that, too.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from tuneplane.contract.layout import StorageRoot
from tuneplane.record.files import replace_json
from tuneplane.record.times import utc_now

from hpc.errors.core import Refusal
from hpc.site.acl import can_read, let_read
from hpc.site.plan import OwnerFolder, owner_folders, user_record
from hpc.site.roll import ACTIVE, RETIRED, Member, owner_uid, read_member, require_active
from hpc.site.sitefile import Site, load_site
from hpc.site.trust import require_owner_folder
from hpc.site.users import User, check_name, find_group, find_user, in_group, is_admin, real_user
from hpc.store.faults import refusal
from hpc.store.folders import folder as folder_fd
from hpc.store.folders import make_folder

__all__ = [
    "ACTIVE",
    "RETIRED",
    "Member",
    "add_user",
    "ensure_owner",
    "let_service_read",
    "list_members",
    "owner_uid",
    "read_member",
    "require_active",
    "retire_user",
    "write_member",
]


def ensure_owner(root: StorageRoot, user: User, *, site: Site | None = None) -> list[Path]:
    """Make the caller's own folders where they are missing and the site lets users enrol; returns the new ones.

    Every folder is checked as `require_owner_folder` does. Raises Refusal E-SITE-020 (squatted), E-SITE-021, E-SITE-022
    (missing, and only an admin can make it), E-SITE-032, E-SITE-035.
    """
    site = site or load_site(root)
    require_active(root, user, site=site)
    return [
        path
        for folder in owner_folders(root, user.name)
        if not _of_a_later_release(folder.path.parent, root)
        for path in _ensure(folder, user, root, site)
    ]


def _of_a_later_release(parent: Path, root: StorageRoot) -> bool:
    """True for a shelf that the root has not got: an earlier release laid it out, and `tp site init` adds what is new."""
    return parent.parent == root.registry and not os.path.lexists(parent)


def _ensure(folder: OwnerFolder, user: User, root: StorageRoot, site: Site) -> list[Path]:
    try:
        require_owner_folder(folder.path, user.uid)
    except Refusal as fault:
        if fault.code != "E-SITE-022" or user.uid != os.geteuid():
            raise
        return _make(folder, user, user.gid, root, site)
    return []


def _make(folder: OwnerFolder, user: User, gid: int, root: StorageRoot, site: Site) -> list[Path]:
    try:
        # The group is set in any case: else the shared parent's setgid would hand its own down.
        new = make_folder(folder.path, folder.mode, uid=user.uid, gid=gid, anchor=root.path)
        if folder.group and site.service_user:
            let_service_read(folder.path, root, user, site)
        return [folder.path] if new else []
    except Refusal as fault:
        path = str(folder.path)
        if fault.code in ("E-STORE-010", "E-STORE-012"):
            raise Refusal(
                "E-SITE-020", fault.message, field=path, found=fault.found, allowed=f"uid {user.uid}"
            ) from fault
        if fault.code == "E-STORE-021":
            raise Refusal("E-SITE-022", "is not there and cannot be made", field=path) from fault
        raise


def let_service_read(path: Path, root: StorageRoot, user: User, site: Site) -> None:
    """Admission and audit run as the service user, who must see the runs of people it shares no group with.

    Where the file system has no access lists nothing is done, and `tp site check` says what to do instead.
    """
    service = find_user(site.service_user)
    if service.uid in (0, user.uid) or can_read(path, service.uid):
        return
    with folder_fd(path, anchor=root.path) as fd:
        let_read(fd, service.uid)


def add_user(root: StorageRoot, name: str, *, group: str = "", now: str = "") -> list[Path]:
    """Make the folders of user `name` and take them back if they were retired; returns the folders that are new.

    Root may add anybody; others only themselves, where the shared parents' group lets them. `group`: the project's
    group for runs/<name> (default: the user's primary group, mode 0750 without setgid). Running it again mends modes.
    Raises Refusal E-SITE-020 (squatted), E-SITE-030, E-SITE-033 (needs root), E-SITE-038 (transferred), E-SITE-043.
    """
    site, caller, user = load_site(root), real_user(), find_user(name)
    if caller.uid not in (0, user.uid):
        raise Refusal(
            "E-SITE-033", f"only root can make folders of {name}", found=caller.name, allowed=f"root or {name}"
        )
    gid = find_group(group) if group else user.gid
    if group and not in_group(user, gid):
        raise Refusal("E-SITE-043", f"{name} is not in group {group}", field="--group", found=group)
    member = read_member(root, name, site=site)
    if member is not None and member.transferred_to:
        raise Refusal("E-SITE-038", f"the folders of {name} belong to {member.transferred_to} now", found=name)
    if caller.uid != 0:
        require_active(root, user, site=site)
    made: list[Path] = []
    for folder in owner_folders(root, name, project_group=bool(group)):
        if _of_a_later_release(folder.path.parent, root):
            continue
        made += _make(folder, user, gid if folder.group else user.gid, root, site)
    if is_admin(caller, site) and (member is None or member.state == RETIRED or member.uid != user.uid):
        write_member(root, Member(name, user.uid, ACTIVE, now or utc_now()))
    return made


def write_member(root: StorageRoot, member: Member) -> None:
    """Write the admins' record of a user, as the property of the owner of site/users. Raises Refusal E-STORE-02x."""
    path = user_record(root, member.name)
    try:
        replace_json(path, member.as_json())
        around = os.stat(path.parent)
        if around.st_uid != os.geteuid():
            os.chown(path, around.st_uid, around.st_gid)
    except OSError as exc:
        raise refusal(exc, path, "write") from exc


def retire_user(root: StorageRoot, name: str, *, now: str = "") -> Member:
    """Refuse new records of user `name` from now on; what is there stays readable, by whoever could read it.

    The account need not exist any more if it was added before. As root the write permission of the user's top folders
    is taken away as well, against accidents. Raises Refusal E-SITE-036 (needs an admin), E-SITE-030.
    """
    site, caller = load_site(root), real_user()
    if not is_admin(caller, site):
        raise Refusal("E-SITE-036", f"{caller.name} is no admin here", found=caller.name)
    before = read_member(root, name, site=site)
    uid = before.uid if before is not None else _uid_of(root, name)
    kept = before.transferred_to if before is not None else ""
    member = Member(name, uid, RETIRED, now or utc_now(), kept)
    write_member(root, member)
    if caller.uid == 0:
        for folder in owner_folders(root, name):
            _drop_write(folder.path, uid)
    return member


def _uid_of(root: StorageRoot, name: str) -> int:
    """The account's uid, or, where the account is gone, the owner of the user's runs."""
    try:
        return find_user(name).uid
    except Refusal:
        try:
            return os.lstat(root.owner_runs(name)).st_uid
        except OSError:
            raise Refusal("E-SITE-030", f"there is no user {name} and no folder of theirs", found=name) from None


def _drop_write(path: Path, uid: int) -> None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return  # missing or squatted: nothing of this user's to close
    try:
        found = os.fstat(fd)
        if found.st_uid == uid:
            os.fchmod(fd, stat.S_IMODE(found.st_mode) & ~0o222)
    finally:
        os.close(fd)


def list_members(root: StorageRoot) -> list[Member]:
    """Everybody who has a folder under runs/ or a record of the admins, by name.

    Folders without an account are left out.
    """
    site = load_site(root)
    names = {p.name for p in root.runs.iterdir()} | {
        p.name.removesuffix(".json") for p in (root.site / "users").iterdir()
    }
    out = []
    for name in sorted(names):
        try:
            check_name(name)
        except Refusal:
            continue  # under runs/ anybody can make a folder of any name; `tp site check` tells of it
        member = read_member(root, name, site=site)
        uid = member.uid if member is not None else _account(name)
        if uid is not None:
            out.append(member or Member(name, uid, ACTIVE, ""))
    return out


def _account(name: str) -> int | None:
    try:
        return find_user(name).uid
    except Refusal:
        return None
