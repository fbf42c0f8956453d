"""`tp site check`: the whole root against its plan. Finds all, where the checks at use stop at the first.

Reads only. Faults of admin folders fail; a squatted or open owner folder fails, too, and is named with its owner.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import tuneplane
from tuneplane.contract.layout import StorageRoot
from tuneplane.record.canonical import CanonicalError, parse_json

from hpc.errors.core import Refusal, Refusals
from hpc.site.acl import acl_writers, can_read
from hpc.site.findings import Finding, Status, from_refusal
from hpc.site.plan import FOREIGN_BUT_HARMLESS, ROWS, SHELVES, TOP, Row
from hpc.site.roll import owner_uid, read_member, shelf_uid
from hpc.site.sitefile import Site, load_site, parse_site
from hpc.site.trust import check_above, judge_part, require_admin_owned, require_owner_folder, settle
from hpc.site.users import User, check_name, find_group, find_user, in_group
from hpc.store.faults import refusal
from hpc.store.folders import read_record
from hpc.store.probe import PREFIX

Judge = Callable[[], None]


def check_root(root: StorageRoot, *, version: str = tuneplane.__version__) -> list[Finding]:
    """Everything about the root, the site file first. Never raises for what it finds."""
    out: list[Finding] = []
    site: Site | None = None
    try:
        site = load_site(root, version=version)
        out.append(Finding("site.file", "ok", f"{root.site_file} is valid", found=site.name))
    except Refusals as exc:
        out += [from_refusal("site.file", fault) for fault in exc.items]
    except Refusal as fault:
        out.append(from_refusal("site.file", fault))
    if site is not None:
        out += check_names(site) + check_policy(root, site)
    out += check_folders(root, site)
    out += check_trees(root, site)
    out += check_owners(root, site)
    return out


def check_candidate(path: Path, *, version: str = tuneplane.__version__) -> list[Finding]:
    """A site file that is not in place yet: its content and the names in it, not its owner."""
    try:
        site = parse_site(read_record(path).decode("utf-8"), version=version)
    except Refusals as exc:
        return [from_refusal("site.file", fault) for fault in exc.items]
    except Refusal as fault:
        return [from_refusal("site.file", fault)]
    except UnicodeDecodeError as exc:
        return [Finding("site.file", "fail", f"{path} is not UTF-8: {exc}")]
    return [Finding("site.file", "ok", f"{path} is valid", found=site.name), *check_names(site)]


def check_names(site: Site) -> list[Finding]:
    """Users and groups that the site file names exist on this machine."""
    out: list[Finding] = []
    for field, name, look in (
        ("admin_group", site.admin_group, find_group),
        ("service_user", site.service_user, find_user),
    ):
        if not name:
            continue
        try:
            look(name)
            out.append(Finding(f"site.{field}", "ok", f"{name} exists"))
        except Refusal as fault:
            fault.field = f"site.yaml: {field}"
            out.append(from_refusal(f"site.{field}", fault))
    return out


def _gather(name: str, judges: Iterator[tuple[str, Judge]], right: str) -> list[Finding]:
    """Run each judge; one ok line if all are right, else one failed line a fault."""
    out, count = [], 0
    for place, judge in judges:
        count += 1
        fault = _fault(judge)
        if fault is not None:
            fault.field = fault.field or place
            out.append(from_refusal(name, fault))
    return out or [Finding(name, "ok", right.format(count=count))]


def _fault(judge: Judge) -> Refusal | None:
    try:
        judge()
    except Refusal as fault:
        return fault
    return None


def check_folders(root: StorageRoot, site: Site | None) -> list[Finding]:
    """The folders of the plan: there, real, with their owners and exact modes; nothing strange at the top."""
    admin_gid = -1
    if site is not None and site.admin_group:
        try:
            admin_gid = find_group(site.admin_group)
        except Refusal:
            pass  # check_names has said so

    def judges() -> Iterator[tuple[str, Judge]]:
        yield str(root.path), lambda: check_above(root)
        for row in ROWS:
            yield str(root.path / row.path), lambda row=row: _judge_row(root, row, site, admin_gid)  # type: ignore[misc]
            if row.kind == "admin":
                yield (
                    str(root.path / row.path),
                    lambda row=row: require_admin_owned(root, root.path / row.path, site=site),  # type: ignore[misc]
                )

    out = _gather("layout.folders", judges(), "all folders have their owners and modes")
    try:
        names = sorted(os.listdir(root.path))
    except OSError as exc:
        return [*out, from_refusal("layout.top", refusal(exc, root.path, "list"))]
    strange = [n for n in names if n not in TOP and n not in FOREIGN_BUT_HARMLESS]
    if strange:
        text = ", ".join(strange[:10])
        out.append(
            Finding("layout.top", "warn", "names that are not of a storage root", text, mend="move them elsewhere")
        )
    return out


def _judge_row(root: StorageRoot, row: Row, site: Site | None, admin_gid: int) -> None:
    path = root.path / row.path if row.path else root.path
    try:
        found = os.lstat(path)
    except OSError as exc:
        raise refusal(exc, path, "look at") from exc
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode):
        raise Refusal("E-SITE-013", "is not a real folder", field=str(path))
    allowed = {row.mode, row.mode | 0o020} if row.kind == "admin" and found.st_gid == admin_gid else {row.mode}
    if mode not in allowed:
        raise Refusal(
            "E-SITE-015", f"has mode {mode:04o}", field=str(path), found=f"{mode:04o}", allowed=f"{row.mode:04o}"
        )
    service = find_user(site.service_user).uid if site is not None and site.service_user else None
    uids = {0, os.lstat(root.site).st_uid} if row.kind != "service" or service is None else {service}
    if row.kind != "admin" and found.st_uid not in uids:
        allowed_text = ", ".join(f"uid {u}" for u in sorted(uids))
        raise Refusal("E-SITE-010", f"belongs to uid {found.st_uid}", field=str(path), allowed=allowed_text)
    if added := acl_writers(path):
        raise Refusal("E-SITE-012", f"an ACL lets {added[0]} write", field=str(path), found=str(added[0]))


def check_trees(root: StorageRoot, site: Site | None) -> list[Finding]:
    """Every file below site/, registry/recipes/ and registry/activation/ is the admins', and only theirs to write."""
    try:
        owner = os.lstat(root.site)
    except OSError as exc:
        return [from_refusal("layout.files", refusal(exc, root.site, "look at"))]
    uids = frozenset({0, owner.st_uid})

    def judge(path: str) -> None:
        if _is_neighbour(path, uids):
            return
        doubts = list(judge_part(path, uids, owner.st_gid))
        if doubts and site is None:
            raise doubts[0].fault
        if site is not None:
            settle(doubts, site)

    def judges() -> Iterator[tuple[str, Judge]]:
        for tree in (root.site, root.recipes, root.activation):
            for folder, names, files in os.walk(tree):
                # What the service user keeps in keys/ is nobody's to trust.
                names[:] = sorted(n for n in names if os.path.join(folder, n) != str(root.keys))
                for name in [*names, *sorted(files)]:
                    path = os.path.join(folder, name)
                    yield path, lambda path=path: judge(path)  # type: ignore[misc]

    return _gather("layout.files", judges(), "{count} files and folders are the admins' own")


def _is_neighbour(path: str, uids: frozenset[int]) -> bool:
    """True for a link that an admin made to something in the same folder or below it: how a new version is published."""
    if not os.path.islink(path) or os.lstat(path).st_uid not in uids:
        return False
    target = os.readlink(path)
    return not os.path.isabs(target) and ".." not in target.split("/")


def check_policy(root: StorageRoot, site: Site) -> list[Finding]:
    """site/policy.json, which jobs read in place of the site file, says the same."""
    path, mend = root.site / "policy.json", "`tp site sync`, by an admin, after each edit of site.yaml"
    try:
        value = parse_json(read_record(path, anchor=root.path))
    except (Refusal, CanonicalError) as exc:
        # Without it jobs take any admission, so it is missed only where admissions are enforced.
        status: Status = "fail" if site.admission.mode == "enforced" else "warn"
        return [Finding("site.policy", status, f"jobs cannot read the site's policy: {exc}", mend=mend)]
    wanted = {
        "admission": {"mode": site.admission.mode, "public_key": site.admission.public_key},
        "runtimes": {"verify": site.runtimes.verify},
    }
    if isinstance(value, dict) and {k: value.get(k) for k in wanted} == wanted:
        return [Finding("site.policy", "ok", "jobs read the policy that the site file states")]
    return [Finding("site.policy", "fail", f"{path} and site.yaml differ", mend=mend)]


def check_owners(root: StorageRoot, site: Site | None) -> list[Finding]:
    """Every folder that bears a user's name belongs to that user and only they can write it."""
    parents = [*(root.shelf(shelf) for shelf in SHELVES), root.runs, root.state]

    def judges() -> Iterator[tuple[str, Judge]]:
        for parent in parents:
            for name in (n for n in _names(parent) if not n.startswith(PREFIX)):
                yield str(parent / name), lambda at=parent, name=name: _judge_owner(root, at, name, site)  # type: ignore[misc]

    out = _gather("layout.owners", judges(), "{count} owner folders belong to their owners")
    return out + check_service(root, site) + check_retired(root, site)


def _names(parent: Path) -> list[str]:
    try:
        return sorted(os.listdir(parent))
    except OSError:
        return []  # check_folders has said so


def _judge_owner(root: StorageRoot, parent: Path, name: str, site: Site | None) -> None:
    if parent.parent == root.registry:
        uid = shelf_uid(root, check_name(name), site=site)
    else:
        uid = find_user(check_name(name)).uid if site is None else owner_uid(root, name, site=site)
    # A heir does not take state/, see `hpc.site.transfer`.
    if parent == root.state and site is not None and (member := read_member(root, name, site=site)) is not None:
        uid = member.uid
    require_owner_folder(parent / name, uid)


def check_service(root: StorageRoot, site: Site | None) -> list[Finding]:
    """The service user, who admits and audits, can read every owner's runs: by ACL, by group, or since all can."""
    if site is None or not site.service_user:
        return []
    try:
        service = find_user(site.service_user)
    except Refusal:
        return []  # check_names has said so
    closed = [name for name in _names(root.runs) if not _readable(root.runs / name, service)]
    if not closed:
        return [Finding("layout.service", "ok", f"{service.name} can read every owner's runs")]
    mend = f"setfacl -m u:{service.name}:rx runs/NAME, or put {service.name} into the folders' groups"
    expect = "enforced admission refuses these users, and audits of their runs are incomplete"
    text = f"{service.name} cannot read the runs of {len(closed)} owners"
    return [Finding("layout.service", "warn", text, ", ".join(closed[:10]), expect, mend)]


def _readable(path: Path, user: User) -> bool:
    try:
        found = os.lstat(path)
        by_list = can_read(path, user.uid)
    except OSError:
        return False
    # With a list, the group bits of the mode are its mask; they say nothing about the owning group alone.
    by_group = found.st_mode & 0o050 == 0o050 and in_group(user, found.st_gid)
    return user.uid in (0, found.st_uid) or by_list or by_group or found.st_mode & 0o005 == 0o005


def check_retired(root: StorageRoot, site: Site | None) -> list[Finding]:
    """One line about retired users, if there are any."""
    if site is None:
        return []
    retired = []
    for entry in _names(root.site / "users"):
        name = entry.removesuffix(".json")
        try:
            member = read_member(root, name, site=site)
        except Refusal as fault:
            return [from_refusal("layout.users", fault)]
        if member is not None and member.state == "retired":
            retired.append(name + (f" (folders: {member.transferred_to})" if member.transferred_to else ""))
    return [Finding("layout.users", "info", f"{len(retired)} retired users", ", ".join(retired))] if retired else []
