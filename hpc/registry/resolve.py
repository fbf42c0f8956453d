"""From a reference to one version that may be used, or a refusal that says why not.

An exact pin, else the recommended version if it is enabled, else the newest enabled one (`hpc.registry.order`). What is disabled is refused for
new references only; a lock made earlier still resolves. What it costs depends on the one package, never on how many the registry holds, and
nothing heavy is imported for a pin. Bytes are not hashed here: `require_content` does that where they are about to be used.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuneplane.contract.layout import StorageRoot
from tuneplane.record.digest import FileEntry, digest_bytes

from hpc.errors.core import Refusal, Refusals
from hpc.registry.content import hash_content
from hpc.registry.kinds import Kind
from hpc.registry.look import Subject, look
from hpc.registry.order import newest_first
from hpc.registry.problems import NOTE, TAMPERED, Problem, is_stale, of_error
from hpc.registry.records import RecordError
from hpc.registry.seals import Seal, read_seal
from hpc.registry.shelf import CONTENT, Ref, Shelf, parse_ref
from hpc.registry.tombstones import read_tombstone
from hpc.registry.trees import FILE, FOLDER
from hpc.store.faults import refusal
from hpc.store.folders import read_record

if TYPE_CHECKING:
    from hpc.site.sitefile import Site


@dataclass(frozen=True)
class Version:
    """One version as its record tells it. Shown is what was published; whether the bytes still are that is `verify_content`'s answer."""

    root: StorageRoot
    folder: Path
    record: Mapping[str, Any]
    seal: Seal | None = None

    @property
    def owner(self) -> str:
        return str(self.record["owner"])

    @property
    def name(self) -> str:
        return str(self.record["name"])

    @property
    def version(self) -> str:
        return str(self.record["version"])

    @property
    def id(self) -> str:
        return f"{self.owner}/{self.name}"

    @property
    def digest(self) -> str:
        return str(self.record["digest"])

    @property
    def digest_v2(self) -> str:
        return str(self.record["digest_v2"])

    @property
    def size(self) -> int:
        return int(self.record["size"])

    @property
    def facts(self) -> Mapping[str, Any]:
        facts: Mapping[str, Any] = self.record["facts"]
        return facts

    @property
    def content(self) -> Path:
        return self.folder / CONTENT

    @cached_property
    def files(self) -> tuple[FileEntry, ...]:
        return tuple(FileEntry.from_json(e) for e in self.record["files"])

    def __str__(self) -> str:
        return f"{self.id}@{self.version}"


def resolve(
    root: StorageRoot, kind: Kind, ref: str | Ref, *, site: Site | None = None, for_new: bool, field: str = ""
) -> Version:
    """The version that `ref` means. `for_new`: it is a new reference, so a disabled version is refused.

    Raises Refusal E-REG-002, E-REG-008, E-REG-010 … E-REG-016, E-SITE-01x, E-SITE-02x (folders that are not to be believed), E-STORE-02x.
    """
    from hpc.registry.switches import read_switch

    wanted = parse_ref(ref, field) if isinstance(ref, str) else ref
    shelf = Shelf(root, kind, site=site)
    uid = shelf.require(wanted.owner, wanted.name)
    if wanted.version and not for_new:
        return load(shelf, wanted, uid)
    switch = read_switch(shelf, wanted.owner, wanted.name, uid)
    if wanted.version:
        version = load(shelf, wanted, uid)
        if not switch.enabled(version.version, version.record["starts"]):
            by = switch.decided_by(version.version, version.record["starts"])
            raise Refusal("E-REG-010", f"{wanted} is disabled by {by}", field=field, found=str(wanted))
        return version
    return _choose(shelf, wanted, uid, switch.recommended, switch, field)


def _choose(shelf: Shelf, wanted: Ref, uid: int, recommended: str, switch: Any, field: str) -> Version:
    names = shelf.versions(wanted.owner, wanted.name)
    order = newest_first(names)
    if recommended in names:
        order = [recommended, *(n for n in order if n != recommended)]
    for name in order:
        if switch.could_be_enabled(name):
            version = load(shelf, Ref(wanted.owner, wanted.name, name), uid)
            if switch.enabled(name, version.record["starts"]):
                return version
    what = f"{len(names)} versions, all disabled" if names else "no versions"
    raise Refusal("E-REG-011", f"{wanted.id} has {what}", field=field, found=wanted.id)


def load(shelf: Shelf, ref: Ref, uid: int) -> Version:
    """The pinned version, its record believed, its names, sizes, owners and modes as recorded, in agreement with its seal.

    Raises Refusal E-REG-002, E-REG-012 … E-REG-016, E-STORE-02x; Refusals where several things are wrong.
    """
    folder = shelf.version(ref.owner, ref.name, ref.version)
    if not os.path.lexists(folder):
        have = shelf.versions(ref.owner, ref.name)
        allowed = ", ".join(newest_first(have)[:10]) or "nothing: the package has no versions"
        sealed = read_seal(shelf.root, subject_path(shelf.kind, ref))
        text = "stood on the shelf once and is gone" if sealed else "there is no such version"
        text = _removal(shelf.root, subject_path(shelf.kind, ref)) or text
        raise Refusal("E-REG-002", f"{ref}: {text}", found=str(ref), allowed=allowed)
    seen, problems = look_at(shelf, ref, uid)
    if bad := [p for p in problems if p.level != NOTE]:
        faults = [p.refusal() for p in bad[:20]]
        raise faults[0] if len(faults) == 1 else Refusals(faults)
    assert seen is not None
    seal = read_seal(shelf.root, subject_path(shelf.kind, ref))
    if seal is not None and (fault := against_seal(seen, seal, str(folder))):
        raise fault.refusal()
    return Version(shelf.root, folder, seen, seal)


def _removal(root: StorageRoot, subject: str) -> str:
    """Who removed the version and when, "" where nobody says that they did."""
    try:
        found = read_tombstone(root, subject)
    except (OSError, RecordError):
        return ""
    return f"was removed by {found.by} at {found.at}" if found else ""


def look_at(shelf: Shelf, ref: Ref, uid: int) -> tuple[Mapping[str, Any] | None, list[Problem]]:
    """The record and what a quick look finds wrong, by absolute path. A stale handle is tried again by path, twice."""
    package = shelf.package(ref.owner, ref.name)
    kind, where = shelf.kind, str(package / ref.version)
    subject = Subject(kind.name, ref.owner, ref.name, ref.version, uid, where, kind.facts)
    for attempt in (0, 1, 2):
        try:
            fd = os.open(package, FOLDER)
            try:
                seen = look(fd, subject)
            finally:
                os.close(fd)
            return seen.record, seen.problems
        except OSError as exc:
            if not is_stale(exc) or attempt == 2:
                return None, [of_error(exc, str(package))]
    raise AssertionError("the last attempt returns")


def subject_path(kind: Kind, ref: Ref) -> str:
    """What a seal calls this version."""
    return f"{kind.shelf}/{ref.owner}/{ref.name}/{ref.version}"


def against_seal(record: Mapping[str, Any], seal: Seal, where: str) -> Problem | None:
    """What differs between a record and its seal, or None. Pure."""
    for key, sealed in (("digest", seal.digest), ("digest_v2", seal.digest_v2), ("record_digest", seal.record)):
        if record[key] != sealed:
            text = f"{key} is {record[key]}, and was {sealed} when it was sealed at {seal.sealed_at}"
            return Problem(TAMPERED, "E-REG-014", where, text, str(record[key]), sealed)
    return None


def verify_content(version: Version, *, v1: bool = True) -> list[Problem]:
    """Hash every file again; each difference names the file and both digests. Nothing is wrong where the list is empty."""
    return hash_content(version.content, str(version.content), version.record, v1=v1).problems


def require_content(version: Version) -> None:
    """Return only if every byte is the recorded one. Raises Refusal E-REG-013, E-REG-015, E-STORE-02x, or Refusals."""
    faults = [p.refusal() for p in verify_content(version)[:20]]
    if faults:
        raise faults[0] if len(faults) == 1 else Refusals(faults)


def read_file(version: Version, path: str) -> bytes:
    """The bytes of one file of the version, compared with its record. Raises Refusal E-REG-013, E-REG-032, E-STORE-01x, E-STORE-02x."""
    entry = next((f for f in version.files if f.path == path), None)
    if entry is None:
        raise Refusal("E-REG-032", f"{version} has no file {path!r:.200}", field=path)
    data = read_record(version.content / path, anchor=version.folder.parent, limit=entry.size + 1)
    if (found := digest_bytes(data)) != entry.sha256:
        text = f"has other bytes: recorded {entry.sha256}, found {found}"
        raise Refusal("E-REG-013", text, field=str(version.content / path), found=found, allowed=entry.sha256)
    return data


def open_file(version: Version, entry: FileEntry) -> int:
    """A descriptor of one file, reached through no link below the package. The caller hashes what it reads, and closes it."""
    from hpc.store.folders import folder

    target = version.content / entry.path
    with folder(target.parent, anchor=version.folder.parent) as dir_fd:
        try:
            return os.open(target.name, FILE, dir_fd=dir_fd)
        except OSError as exc:
            raise refusal(exc, target, "read") from exc
