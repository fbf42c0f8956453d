"""What was taken off a shelf on purpose: who did it, when, and which bytes it had. The owner's word, beside the owner's packages.

    registry/<shelf>/<owner>/.gone/<name>/<version>.json

It is written before the version goes, so a removal that was cut leaves a version that stands and says so to nobody. An audit takes a sealed version
that is missing for removed only if its tombstone is the owner's (or root's) and names the sealed bytes; without one it was deleted by hand. Does not
promise that nothing needed the version: that is looked for when it is removed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tuneplane.contract.layout import StorageRoot
from tuneplane.record import files
from tuneplane.record.times import parse_utc

from hpc.registry.problems import INCOMPLETE, LITTER, NOTE, TAMPERED, Problem, of_error
from hpc.registry.records import DIGEST, FILE_MODE, RecordError, decode_record, encode_record, read_raw
from hpc.registry.seals import Seal
from hpc.registry.shelf import RECORD, Ref, Shelf, is_litter, is_segment
from hpc.site.plan import SHELVES
from hpc.site.trust import GROUP_OR_OTHER_WRITE
from hpc.site.users import User
from hpc.store.faults import refusal
from hpc.store.folders import make_folder

FOLDER: Final = ".gone"
SCHEMA: Final = "tuneplane-hpc/tombstone/v1"
REMOVED: Final = "removed"
LAG_S: Final = 75.0
"""NFS keeps the names of a folder for up to 60 s."""
MAX_BYTES: Final = 1 << 16
_KEYS: Final = frozenset(("schema", "subject", "digest", "digest_v2", "removed_record", "by", "uid", "at", DIGEST))


@dataclass(frozen=True)
class Tombstone:
    """`subject`: the path below registry/; `record`: the record_digest that the version had; `by` removed it at `at`."""

    subject: str
    digest: str
    digest_v2: str
    record: str
    by: str
    at: str


def place(root: StorageRoot, subject: str) -> Path:
    """Where the tombstone of `<shelf>/<owner>/<name>/<version>` lies."""
    shelf, owner, name, version = subject.split("/")
    return root.shelf(shelf) / owner / FOLDER / name / f"{version}.json"


def bury(shelf: Shelf, ref: Ref, *, uid: int, user: User, now: str) -> None:
    """Write that `user` removes the version, as the property of its owner `uid`. Raises Refusal E-STORE-*.

    A version whose record cannot be read has none to name: it is removed without a tombstone, and stays what an audit complains about.
    """
    subject = f"{shelf.kind.shelf}/{ref.owner}/{ref.name}/{ref.version}"
    record = _record(shelf.version(ref.owner, ref.name, ref.version) / RECORD)
    if record is None:
        return
    path = place(shelf.root, subject)
    for folder in (path.parent.parent, path.parent):
        if not os.path.lexists(folder):
            make_folder(folder, 0o755, uid=uid, anchor=shelf.root.path)
    body = {
        "schema": SCHEMA, "subject": subject, "digest": record["digest"], "digest_v2": record["digest_v2"],
        "removed_record": record[DIGEST], "by": user.name, "uid": user.uid, "at": now,
    }  # fmt: skip
    try:
        files.replace(path, encode_record(body), mode=FILE_MODE)
        if uid != os.geteuid():
            os.chown(path, uid, -1, follow_symlinks=False)
    except OSError as exc:
        raise refusal(exc, path, "write") from exc


def _record(path: Path) -> dict[str, Any] | None:
    from hpc.registry.look import SCHEMA as RECORD_SCHEMA

    try:
        value = decode_record(read_raw(path).data, RECORD_SCHEMA)
    except (OSError, RecordError):
        return None
    return value if isinstance(value.get("digest"), str) and isinstance(value.get("digest_v2"), str) else None


def unbury(root: StorageRoot, subject: str) -> None:
    """The version stands again: its tombstone goes. What cannot be removed does no harm while the version stands."""
    try:
        os.unlink(place(root, subject))
    except OSError:
        pass


def read_tombstone(root: StorageRoot, subject: str) -> Tombstone | None:
    """The tombstone of a version, None where there is none. Raises RecordError for one that is not to be believed, OSError."""
    path = place(root, subject)
    try:
        owner = os.lstat(path.parents[2])
        parents = [os.lstat(path.parents[1]), os.lstat(path.parent)]
        raw = read_raw(path, limit=MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    for found in (owner, *parents, raw.found):
        if found.st_uid not in (0, owner.st_uid) or found.st_mode & GROUP_OR_OTHER_WRITE or stat.S_ISLNK(found.st_mode):
            raise RecordError("can be written by others than the owner")
    value = decode_record(raw.data, SCHEMA)
    if value.keys() != _KEYS or value["subject"] != subject:
        raise RecordError(f"is not the tombstone of {subject}")
    texts = [value[key] for key in ("digest", "digest_v2", "removed_record", "by", "at")]
    if not all(isinstance(text, str) for text in texts):
        raise RecordError("has a field of another shape")
    return Tombstone(subject, *texts)


def departed(root: StorageRoot, seal: Seal | None, missing: Problem, now: str = "") -> Problem:
    """What to say of something sealed that is not there: a note for a version that its owner removed, else `missing`.

    What changed within LAG_S of `now` is `incomplete`: another node may have made or removed it, and this one may not see all of that yet.
    """
    said = _departed(root, seal, missing)
    if said.level == TAMPERED and seal is not None and now and _is_moving(root, seal, parse_utc(now).timestamp()):
        text = f"{said.message}, in the last {LAG_S:g} s: other nodes' changes may not be seen here yet; run it again"
        return said._replace(level=INCOMPLETE, code="E-STORE-023", message=text)
    return said


def _is_moving(root: StorageRoot, seal: Seal, now_s: float) -> bool:
    """True if it was sealed, or the nearest folder above it that is there was changed, just now."""
    folder = next(f for f in (root.registry / seal.subject).parents if f.is_dir())
    changed = [os.lstat(folder).st_mtime]
    with suppress(ValueError):
        changed.append(parse_utc(seal.sealed_at).timestamp())
    return any(abs(now_s - moment) < LAG_S for moment in changed)


def _departed(root: StorageRoot, seal: Seal | None, missing: Problem) -> Problem:
    if seal is None or seal.subject.count("/") != 3 or seal.subject.split("/")[0] not in SHELVES:
        return missing
    try:
        found = read_tombstone(root, seal.subject)
    except RecordError as exc:
        return missing._replace(message=f"{missing.message}; its tombstone {exc}")
    except OSError as exc:
        return of_error(exc, str(place(root, seal.subject)))
    if found is None:
        return missing
    if (found.digest, found.digest_v2, found.record) != (seal.digest, seal.digest_v2, seal.record):
        return missing._replace(message=f"{missing.message}; its tombstone is of other content", found=found.digest)
    text = f"was removed by {found.by} at {found.at}; it was {found.digest}, sealed at {seal.sealed_at}"
    return Problem(NOTE, REMOVED, missing.path, text)


def check_tombstones(root: StorageRoot, shelf: str, owner: str) -> Iterator[Problem]:
    """What is wrong below one owner's `.gone`: what is no tombstone does not belong there."""
    base = root.shelf(shelf) / owner / FOLDER
    for folder, folders, names in os.walk(base):
        here = Path(folder)
        deep = here != base
        for name in sorted([*folders, *names]):
            path, where = here / name, f"registry/{shelf}/{owner}/{(here / name).relative_to(base.parent)}"
            if is_litter(name):
                yield Problem(NOTE, LITTER, where, "a writer died here")
            elif not deep and name in folders and is_segment(name) and not path.is_symlink():
                continue
            elif not (deep and name in names and name.endswith(".json") and is_segment(name.removesuffix(".json"))):
                yield Problem(TAMPERED, "E-REG-013", where, "does not belong here")
            elif fault := _fault(root, f"{shelf}/{owner}/{here.name}/{name.removesuffix('.json')}", where):
                yield fault
        folders[:] = [f for f in sorted(folders) if not deep and is_segment(f)]


def _fault(root: StorageRoot, subject: str, where: str) -> Problem | None:
    try:
        read_tombstone(root, subject)
    except RecordError as exc:
        return Problem(TAMPERED, "E-REG-012", where, str(exc))
    except OSError as exc:
        return of_error(exc, where)
    return None
