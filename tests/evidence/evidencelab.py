"""A storage root with a log that is mine, `tp` as it is typed there, and a naive Merkle tree."""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace

import pytest
from tuneplane.contract.layout import StorageRoot
from tuneplane.record.ed25519 import verify

sys.path.append(str(Path(__file__).parents[1] / "runs"))

from builder import RunMaker

from hpc.cli import main as cli
from hpc.evidence.log import Head, append, init_log, read_head, signer_key
from hpc.evidence.note import SignerKey, VerifierKey, parse_note
from hpc.evidence.witness import Visit, visit
from hpc.site.layout import init_root

ME = pwd.getpwuid(os.getuid()).pw_name
NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


class Lab:
    """A storage root whose log I own, and `tp` as it is typed there."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root: StorageRoot = init_root(folder / "root", name="lab", fleet="local").root
        self.vkey = init_log(self.root, "lab/tp-log", uid=os.getuid())
        (self.root.site / "log.vkey").write_text(f"{self.vkey}\n")
        self._capsys = capsys

    def tp(self, *argv: str) -> SimpleNamespace:
        with pytest.raises(SystemExit) as ended:
            cli.main(list(argv))
        said = self._capsys.readouterr()
        return SimpleNamespace(out=said.out, err=said.err, code=ended.value.code, json=lambda: json.loads(said.out))

    @property
    def key(self) -> SignerKey:
        return signer_key(self.root, os.getuid())

    def head(self) -> Head:
        return read_head(self.root, self.vkey)

    def append(self, entries: Sequence[bytes]) -> Head:
        return append(self.root, entries, self.key, self.head())

    def make(self, run_id: str = "run-0a1b2c3d", exp: str = "sft", **kwargs: object) -> RunMaker:
        return RunMaker(self.root, owner=ME, exp=exp, run_id=run_id, **kwargs)  # type: ignore[arg-type]

    def visit(self, state: Path, *, at: datetime = NOON) -> Visit:
        return visit(self.root, self.head(), self.vkey, state, uid=os.getuid(), now=at)


def naive_root(entries: list[bytes]) -> bytes:
    """MTH as the RFC words it."""
    if not entries:
        return hashlib.sha256().digest()
    if len(entries) == 1:
        return hashlib.sha256(b"\x00" + entries[0]).digest()
    half = 1
    while half * 2 < len(entries):
        half *= 2
    return hashlib.sha256(b"\x01" + naive_root(entries[:half]) + naive_root(entries[half:])).digest()


def cosigned_at(data: bytes, key: VerifierKey) -> int:
    """When the witness cosigned, in seconds since 1970, by the words of cosignature/v1. ValueError where it did not, or its signature is wrong."""
    note = parse_note(data)
    (raw,) = (s for name, key_id, s in note.signatures if (name, key_id) == (key.name, key.key_id))
    at_s = int.from_bytes(raw[:8], "big")
    if not verify(key.public, f"cosignature/v1\ntime {at_s}\n{note.text}".encode(), raw[8:]):
        raise ValueError("the signature is wrong")
    return at_s
