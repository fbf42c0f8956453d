"""Importing a package as an archive: look first, then import the same bytes.

`preview` unpacks into a private folder, validates without running anything, and gives a receipt: who looked, when, at which bytes, and which package
came out. `redeem` takes the archive and the receipt and verifies all of it again. A receipt is a HMAC with a key that only its user can read; it says
that the user has seen the preview, and nothing about the publisher.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tuneplane.contract.layout import StorageRoot
from tuneplane.record.canonical import canonical_bytes
from tuneplane.record.files import write_new

from hpc.errors import Refusal, Refusals
from hpc.plugins.manifest import MANIFEST_NAME
from hpc.plugins.validate import Report, validate
from hpc.store.archive import Archive, read_archive, unpacked
from hpc.store.folders import make_private, read_record

TTL_S: Final = 900.0
SKEW_S: Final = 60.0
"""How far a receipt may lie in the future: two login nodes' clocks differ."""
KEY_NAME: Final = "import.key"
SCRATCH: Final = "unpacked"
_KEY_BYTES: Final = 32
_DOMAIN: Final = b"tuneplane-hpc/import-receipt/v1\n"
_RECEIPT: Final = re.compile(
    r"(?P<issued>[0-9]{1,12})-(?P<expires>[0-9]{1,12})-(?P<uid>[0-9]{1,10})-(?P<archive>[0-9a-f]{16})-[0-9a-f]{64}"
)


@dataclass(frozen=True)
class Preview:
    """What a preview shows, and the receipt that lets the same bytes be imported until `expires_at` (seconds since 1970)."""

    report: Report
    archive_digest: str
    archive_bytes: int
    files: int
    size: int
    receipt: str
    expires_at: int

    @property
    def name(self) -> str:
        return self.report.require().name

    @property
    def version(self) -> str:
        return self.report.require().version

    def as_json(self) -> dict[str, Any]:
        manifest = self.report.require()
        return {
            "name": manifest.name,
            "version": manifest.version,
            "capability": manifest.capability,
            "requires": manifest.requires.as_json(),
            "wheel": self.report.facts.get("wheel"),
            "digest": self.report.digest,
            "digest_v2": self.report.digest_v2,
            "archive_sha256": self.archive_digest,
            "archive_bytes": self.archive_bytes,
            "files": self.files,
            "size": self.size,
            "manifest": manifest.as_json(),
            "warnings": self.report.warnings,
            "receipt": self.receipt,
            "expires_at": self.expires_at,
        }


@dataclass(frozen=True)
class Redeemed:
    """An archive that was verified a second time: its unpacked folder, valid inside the context, and what came out."""

    folder: Path
    report: Report
    archive_digest: str


def receipt_key(root: StorageRoot, user: str) -> bytes:
    """The user's key for receipts, made on first use as a 0600 file in `state/<user>/`. Raises Refusal E-PLUGIN-074, E-STORE-0xx."""
    path = root.user_state(user) / KEY_NAME
    try:
        write_new(path, secrets.token_hex(_KEY_BYTES).encode() + b"\n", mode=0o600)
    except FileExistsError:
        pass
    except OSError as exc:
        from hpc.store.faults import refusal

        raise refusal(exc, path, "write") from exc
    text = read_record(path, anchor=root.path, limit=4 * _KEY_BYTES).strip()
    found = os.stat(path)
    try:
        key = bytes.fromhex(text.decode("ascii"))
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES or found.st_mode & 0o077 or found.st_uid != os.geteuid():
        raise Refusal("E-PLUGIN-074", "is no private key of 32 bytes", field=str(path))
    return key


def scratch_folder(root: StorageRoot, user: str) -> Path:
    """The private folder below `state/<user>/` in which archives are unpacked. Raises Refusal E-STORE-0xx."""
    folder = root.user_state(user) / SCRATCH
    make_private(folder, anchor=root.path)
    return folder


def preview(
    archive_path: str | os.PathLike[str], *, secret: bytes, scratch: Path, uid: int, now: float, ttl_s: float = TTL_S
) -> Preview:
    """Look into an archive. Raises Refusal E-ARCHIVE-0xx, E-STORE-0xx, or Refusals E-PLUGIN-0xx where the package could not be published."""
    archive = read_archive(archive_path)
    with _validated(archive, scratch) as (_, report):
        issued = int(now)
        expires = issued + int(ttl_s)
        receipt = _seal(_claim(archive, report, uid, issued, expires), secret)
        return Preview(
            report,
            archive.digest,
            len(archive.data),
            len(archive.files),
            sum(e.size for e in archive.files),
            receipt,
            expires,
        )


@contextmanager
def redeem(
    archive_path: str | os.PathLike[str], receipt: str, *, secret: bytes, scratch: Path, uid: int, now: float
) -> Iterator[Redeemed]:
    """The unpacked, validated package of an archive that this user has previewed; its folder is gone when the context ends.

    Raises Refusal E-PLUGIN-070 … E-PLUGIN-073, and whatever `preview` raises.
    """
    said = _RECEIPT.fullmatch(receipt.strip())
    if said is None:
        raise Refusal(
            "E-PLUGIN-070", "is no receipt of a preview", field="receipt", allowed="the text that a preview printed"
        )
    if int(said["uid"]) != uid:
        raise Refusal("E-PLUGIN-072", "was made for another user", field="receipt", found=uid)
    issued, expires = int(said["issued"]), int(said["expires"])
    if not issued - SKEW_S <= now <= expires:
        age, allowed = round(now - issued), f"{expires - issued} seconds"
        raise Refusal("E-PLUGIN-071", f"was made {age} seconds ago", field="receipt", found=age, allowed=allowed)
    archive = read_archive(archive_path)
    if _short(archive.digest) != said["archive"]:
        raise Refusal("E-PLUGIN-073", "has other bytes", field="archive", found=archive.digest)
    with _validated(archive, scratch) as (folder, report):
        if not hmac.compare_digest(_seal(_claim(archive, report, uid, issued, expires), secret), receipt.strip()):
            raise Refusal("E-PLUGIN-070", "was not made by a preview of yours of this package", field="receipt")
        yield Redeemed(folder, report, archive.digest)


@contextmanager
def _validated(archive: Archive, scratch: Path) -> Iterator[tuple[Path, Report]]:
    if not any(entry.path == MANIFEST_NAME for entry in archive.files):
        inner = sorted(e.path for e in archive.files if e.path.endswith(f"/{MANIFEST_NAME}"))
        hint = f"it is at {inner[0]}: tar czf PACKAGE.tgz -C {inner[0].rpartition('/')[0]} ." if inner else ""
        raise Refusals([Refusal("E-PLUGIN-001", "is not at the root of the archive", field=MANIFEST_NAME, hint=hint)])
    with unpacked(archive, scratch) as folder:
        report = validate(folder)
        report.require()
        yield folder, report


def _claim(archive: Archive, report: Report, uid: int, issued: int, expires: int) -> dict[str, Any]:
    manifest = report.require()
    return {
        "archive": archive.digest,
        "digest": report.digest,
        "digest_v2": report.digest_v2,
        "name": manifest.name,
        "version": manifest.version,
        "uid": uid,
        "issued_at": issued,
        "expires_at": expires,
    }


def _short(digest: str) -> str:
    return digest[7:23]


def _seal(claim: dict[str, Any], secret: bytes) -> str:
    """The receipt: what tells an honest mistake apart in the open, and a HMAC over the whole claim."""
    mac = hmac.new(secret, _DOMAIN + canonical_bytes(claim), hashlib.sha256).hexdigest()
    return f"{claim['issued_at']}-{claim['expires_at']}-{claim['uid']}-{_short(claim['archive'])}-{mac}"
