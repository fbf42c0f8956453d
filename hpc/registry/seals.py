"""Seals: what the service user saw first of each version and of each generation of a pointer, where no owner can write.

    registry/seals/<shelf>/<owner>/<name>/<version>.json          a version
    registry/seals/<shelf>/<owner>/<name>/.switch/<n>.json        a generation of its owner's switch
    registry/seals/activation/…/<n>.json                          a generation of an admins' pointer
    registry/seals/recipes/<framework>/<pack>.json                a recipe pack
    …/.log/<n>.json                                               every seal of the folder around, by digest

A seal alone could be removed unseen; the log beside it could not without leaving the seals that it lists. Somebody who can write as the service
user can remove both: that is where this promise ends.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tuneplane.contract.layout import StorageRoot

from hpc.errors.core import Refusal
from hpc.registry.records import DIGEST, RecordError, decode_known, decode_record, encode_record, read_raw
from hpc.site.trust import GROUP_OR_OTHER_WRITE
from hpc.store.faults import refusal

_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}").fullmatch
SCHEMA: Final = "tuneplane-hpc/seal/v1"
LOG: Final = ".log"
MAX_SEAL: Final = 1 << 16
KEYS: Final = frozenset(
    ("schema", "subject", "digest", "digest_v2", "sealed_record", "published", "starts", "uid", "sealed_at", DIGEST)
)


@dataclass(frozen=True)
class Seal:
    """What was seen first. `subject`: the path below registry/; `record`: the record_digest of what was sealed.

    `published` and `starts` are kept so that a version which was lost can be restored to the same record, and to no other.
    """

    subject: str
    digest: str
    digest_v2: str
    record: str
    uid: int
    sealed_at: str
    published: Mapping[str, Any] = field(default_factory=dict)
    starts: str = ""
    own_digest: str = ""

    def encode(self) -> bytes:
        return encode_record(
            {
                "schema": SCHEMA,
                "subject": self.subject,
                "digest": self.digest,
                "digest_v2": self.digest_v2,
                "sealed_record": self.record,
                "published": dict(self.published),
                "starts": self.starts,
                "uid": self.uid,
                "sealed_at": self.sealed_at,
            }
        )


def decode_seal(data: bytes, subject: str, entered: str = "") -> Seal:
    """Raises RecordError for anything but the seal of this subject. `entered`: its digest in the log, if one is known."""
    value = (decode_known(data, SCHEMA, entered) if entered else None) or decode_record(data, SCHEMA)
    if value.keys() != KEYS:
        raise RecordError("lacks or adds a field")
    if value["subject"] != subject:
        raise RecordError(f"is the seal of {value['subject']!r:.120}")
    texts = (value["digest"], value["digest_v2"], value["starts"], value["sealed_at"])
    shapes = isinstance(value["published"], dict) and type(value["uid"]) is int and _is_digest(value["sealed_record"])
    if not all(isinstance(t, str) for t in texts) or not shapes:
        raise RecordError("has a field of another shape")
    return Seal(
        subject, value["digest"], value["digest_v2"], value["sealed_record"], value["uid"], value["sealed_at"],
        value["published"], value["starts"], value[DIGEST],
    )  # fmt: skip


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and _DIGEST(value) is not None


def seal_path(root: StorageRoot, subject: str) -> Path:
    return root.seals / f"{subject}.json"


def sealers(root: StorageRoot) -> frozenset[int]:
    """Who may have written a seal: root and whoever owns registry/seals. Raises Refusal E-STORE-02x, E-SITE-013."""
    try:
        found = os.lstat(root.seals)
    except OSError as exc:
        raise refusal(exc, root.seals, "look at") from exc
    if not stat.S_ISDIR(found.st_mode):
        raise Refusal("E-SITE-013", "is not a real folder", field=str(root.seals))
    return frozenset({0, found.st_uid})


def judge_sealer(found: os.stat_result, uids: frozenset[int]) -> str:
    """Why a file or folder below registry/seals is not to be believed, or "". Pure."""
    if found.st_uid not in uids:
        return f"belongs to uid {found.st_uid}, who is not the service user"
    if found.st_mode & GROUP_OR_OTHER_WRITE:
        return f"has mode {stat.S_IMODE(found.st_mode):04o}, so others can write it"
    return ""


def read_seal(root: StorageRoot, subject: str, *, uids: frozenset[int] | None = None) -> Seal | None:
    """The seal of `subject`, None where there is none. Raises Refusal E-REG-016 (not to be believed), E-STORE-02x."""
    path = seal_path(root, subject)
    uids = sealers(root) if uids is None else uids
    try:
        raw = read_raw(path, limit=MAX_SEAL, names=2)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except RecordError as exc:
        raise Refusal("E-REG-016", str(exc), field=str(path)) from exc
    except OSError as exc:
        raise refusal(exc, path, "read the seal") from exc
    parents = [os.lstat(folder) for folder in path.parents if folder.is_relative_to(root.seals)]
    for found in (raw.found, *parents):
        if doubt := judge_sealer(found, uids):
            raise Refusal("E-REG-016", doubt, field=str(path))
    try:
        return decode_seal(raw.data, subject)
    except RecordError as exc:
        raise Refusal("E-REG-016", str(exc), field=str(path)) from exc
