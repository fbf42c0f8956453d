"""Finished evaluations by what they rest on, so that a baseline is measured once. Standard library only.

An entry is the folder of its report under the digest of its basis: model, adapter, data, settings and releases by digest, so that nothing that
matters can differ. It is used only if it belongs to this user and every file has the digest that the report states. The newest `MAX_ENTRIES` stay.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuneplane.contract.evaluation import INPUTS, PREDICTIONS, REPORT, SCORES
from tuneplane.record.canonical import pretty_bytes
from tuneplane.record.digest import digest_bytes, digest_json
from tuneplane.record.files import MAX_RECORD_BYTES, publish_dir, read_bytes, read_json, replace
from tuneplane.training.refusals import refuse

MAX_ENTRIES = 100
_FILES = (INPUTS, PREDICTIONS, SCORES)
_LARGEST = 16 * MAX_RECORD_BYTES


@dataclass(frozen=True)
class Shelf:
    """A folder of entries, and the user whose entries count."""

    root: Path
    uid: int

    @classmethod
    def at(cls, folder: str, uid: int) -> Shelf | None:
        """The shelf that a setting names; None for the word `none`. Raises Refused E-EVAL-036 for a folder that cannot be used."""
        if folder == "none":
            return None
        root = Path(os.path.expanduser(folder))
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as exc:
            raise refuse("E-EVAL-036", f"cannot be used: {exc.strerror}", field="cache", found=folder) from exc
        return cls(root, uid)

    def entry(self, basis: Mapping[str, Any]) -> Path:
        return self.root / digest_json(dict(basis))[7:]

    def keep(self, basis: Mapping[str, Any], out: Path) -> None:
        """Put a finished evaluation on the shelf, in the place of a damaged one. A shelf that cannot be written is no fault of the report's."""
        entry = self.entry(basis)
        temp = self.root / f".new-{secrets.token_hex(6)}"
        try:
            temp.mkdir(mode=0o700)
            for name in (*_FILES, REPORT):
                shutil.copyfile(out / name, temp / name)
            shutil.rmtree(entry, ignore_errors=True)
            publish_dir(temp, entry)
            self._forget()
        except OSError:
            shutil.rmtree(temp, ignore_errors=True)

    def _forget(self) -> None:
        """Let the oldest entries go."""
        mine = [
            e for e in os.scandir(self.root) if len(e.name) == 64 and e.stat(follow_symlinks=False).st_uid == self.uid
        ]
        mine.sort(key=lambda e: e.stat(follow_symlinks=False).st_mtime_ns, reverse=True)
        for old in mine[MAX_ENTRIES:]:
            shutil.rmtree(old.path, ignore_errors=True)


def take(entry: Path, basis: Mapping[str, Any], out: Path, uid: int) -> dict[str, Any] | None:
    """Copy the finished evaluation in `entry` into `out` and return its report, marked as cached; None where there is no sound one of `uid`."""
    try:
        if os.stat(entry, follow_symlinks=False).st_uid != uid:
            return None
        report = read_json(entry / REPORT)
        files = {name: read_bytes(entry / name, limit=_LARGEST) for name in _FILES}
        sound = report["basis"] == basis and {n: digest_bytes(data) for n, data in files.items()} == report["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not sound:
        return None
    for name, data in files.items():
        replace(out / name, data)
    marked = {**report, "cached": {"key": digest_json(dict(basis))[7:], "from": os.fspath(entry)}}
    replace(out / REPORT, pretty_bytes(marked))
    return marked
