"""Where a deep audit with a budget went on to: a small file that costs coverage when it is lost, and nothing else.

It lies where the auditing user can write: registry/index/audit/ for the service user, else state/<user>/.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tuneplane.contract.layout import StorageRoot
from tuneplane.record import files

from hpc.registry.problems import INCOMPLETE, Problem
from hpc.registry.records import RecordError, decode_record, encode_record, read_raw
from hpc.registry.tally import Tally
from hpc.site.users import User
from hpc.store.faults import refusal
from hpc.store.folders import make_folder

SCHEMA: Final = "tuneplane-hpc/audit-rotation/v1"
FOLDER_NAME: Final = "audit"
NAME: Final = "rotation.json"
_LIMIT: Final = 1 << 16


@dataclass(frozen=True)
class Rotation:
    """`after`: the last version that was hashed ("" : none in this round). `size`, `versions`: hashed in this round so far."""

    round: int = 1
    after: str = ""
    started_at: str = ""
    size: int = 0
    versions: int = 0

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def own_folder(root: StorageRoot, user: User) -> Path:
    """Where this user's audits keep their lock and their place; made if missing. Raises Refusal E-STORE-02x."""
    if os.path.isdir(root.index) and os.access(root.index, os.W_OK):
        folder = root.index / FOLDER_NAME
        if not folder.is_dir():
            uid = os.lstat(root.index).st_uid
            make_folder(folder, 0o755, uid=uid if os.geteuid() == 0 else -1, anchor=root.path)
        if os.access(folder, os.W_OK):
            return folder
    return root.user_state(user.name)


def read_rotation(folder: Path, name: str = NAME) -> tuple[Rotation, str]:
    """The rotation and, where it could not be read, why it starts over."""
    try:
        value = decode_record(read_raw(folder / name, limit=_LIMIT).data, SCHEMA)
        found = Rotation(value["round"], value["after"], value["started_at"], value["size"], value["versions"])
    except FileNotFoundError:
        return Rotation(), ""
    except (OSError, RecordError, KeyError) as exc:
        return Rotation(), f"{name}: {exc}; the round starts over"
    numbers, texts = (found.round, found.size, found.versions), (found.after, found.started_at)
    if not all(type(n) is int for n in numbers) or not all(isinstance(t, str) for t in texts):
        return Rotation(), f"{name} has another shape; the round starts over"
    return found, ""


def write_rotation(folder: Path, rotation: Rotation, name: str = NAME) -> None:
    """Raises Refusal E-STORE-02x."""
    path = folder / name
    try:
        files.replace(path, encode_record({"schema": SCHEMA, **rotation.as_json()}))
    except OSError as exc:
        raise refusal(exc, path, "write") from exc


def further(rotation: Rotation, after: str, size: int, versions: int, now: str) -> Rotation:
    """The rotation after some more versions were hashed, of which `after` was the last. Pure."""
    return Rotation(
        rotation.round,
        after or rotation.after,
        rotation.started_at or now,
        rotation.size + size,
        rotation.versions + versions,
    )


def past(rotation: Rotation, tally: Tally, done: int, top: str, now: str) -> tuple[Rotation, list[Problem]]:
    """Where the next visit goes on after the time was up, and what to tell. `done`: versions whose bytes this visit has read. Pure.

    One that no visit has the time for would be begun every night, and nothing behind it would ever be read: it is named and passed over.
    """
    found = [Problem(INCOMPLETE, "deadline", top, f"the time was up after the bytes of {done} were read")]
    if done or not tally.at or not tally.hashed:
        return rotation, found
    text = "is too large to be read in the time of one visit; the next one goes on behind it"
    return further(rotation, tally.at, 0, 0, now), [*found, Problem(INCOMPLETE, "too-large", f"{top}/{tally.at}", text)]


def next_round(rotation: Rotation) -> Rotation:
    """A new round from the beginning. Pure."""
    return Rotation(rotation.round + 1)
