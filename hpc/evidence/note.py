"""Signed notes and checkpoints (C2SP signed-note, tlog-checkpoint, tlog-cosignature), Ed25519 only.

A verifier key is `<name>+<8 hex digits>+<base64>`, a signer key `PRIVATE+KEY+<name>+<8 hex digits>+<base64>`: the forms of Go's sumdb/note, so that
other tools read them. Verifying needs the standard library alone; signing needs `cryptography`, and only there is it imported.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass
from typing import Final

from tuneplane.record.ed25519 import verify as verify_ed25519

LOG: Final = 1
"""Signature type of a log: Ed25519 over the note's text."""
WITNESS: Final = 4
"""Signature type of a witness: Ed25519 over a header with the time, and the note's text."""
MAX_NOTE: Final = 64 << 10
_NAME = re.compile(r"[^\s+\x00-\x20\x7f]{1,255}")
_SKEY = "PRIVATE+KEY+"
_DASH = "— "


class NoteError(ValueError):
    """The text is no key, no signed note or no checkpoint, or no known key signed it; the message says what."""


@dataclass(frozen=True)
class VerifierKey:
    """Whose signatures count: name, public key (32 bytes), signature type."""

    name: str
    public: bytes
    kind: int = LOG

    @property
    def key_id(self) -> bytes:
        return hashlib.sha256(self.name.encode() + b"\n" + bytes([self.kind]) + self.public).digest()[:4]

    def __str__(self) -> str:
        return f"{self.name}+{self.key_id.hex()}+{encode_base64(bytes([self.kind]) + self.public)}"


@dataclass(frozen=True)
class SignerKey:
    """A secret key (seed of 32 bytes). Its text is a secret; `repr` does not show it."""

    name: str
    seed: bytes
    kind: int = LOG

    @property
    def verifier(self) -> VerifierKey:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return VerifierKey(
            self.name, Ed25519PrivateKey.from_private_bytes(self.seed).public_key().public_bytes_raw(), self.kind
        )

    def sign(self, message: bytes) -> bytes:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self.seed).sign(message)

    def text(self) -> str:
        return f"{_SKEY}{self.name}+{self.verifier.key_id.hex()}+{encode_base64(bytes([self.kind]) + self.seed)}"

    def __repr__(self) -> str:
        return f"SignerKey({self.name!r})"


@dataclass(frozen=True)
class Checkpoint:
    """The head of a log's tree at one size."""

    origin: str
    size: int
    root: bytes

    def body(self) -> str:
        return f"{self.origin}\n{self.size}\n{encode_base64(self.root)}\n"


@dataclass(frozen=True)
class Note:
    """A note as it stands: its text with the final newline, and (name, key id, signature) a line."""

    text: str
    signatures: tuple[tuple[str, bytes, bytes], ...]


def encode_base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def decode_base64(text: str, what: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise NoteError(f"{what} is not base64") from exc
    if encode_base64(data) != text:  # bits after the end would give one value several spellings
        raise NoteError(f"{what} is not base64 in its one form")
    return data


def check_name(name: str) -> str:
    """The name if a key may have it. Raises NoteError."""
    if not _NAME.fullmatch(name):
        raise NoteError(f"{name!r:.80} is no key name: it has a blank or a plus, or is empty")
    return name


def _key_parts(text: str) -> tuple[str, bytes, int, bytes]:
    parts = text.strip().split("+", 2)
    if len(parts) != 3 or not re.fullmatch("[0-9a-f]{8}", parts[1]):
        raise NoteError("is not <name>+<8 hex digits>+<base64>")
    data = decode_base64(parts[2], "the key")
    if len(data) != 33:
        raise NoteError("is not an Ed25519 key")
    return check_name(parts[0]), bytes.fromhex(parts[1]), data[0], data[1:]


def parse_verifier(text: str, *, kind: int = LOG) -> VerifierKey:
    """Read a verifier key of this signature type. Raises NoteError."""
    name, key_id, found, public = _key_parts(text)
    key = VerifierKey(name, public, found)
    if found != kind:
        raise NoteError(f"is a key for signatures of type {found}, not {kind}")
    if key.key_id != key_id:
        raise NoteError("its name, number and key do not belong together")
    return key


def parse_signer(text: str, *, kind: int = LOG) -> SignerKey:
    """Read a signer key of this signature type. Raises NoteError, which never quotes the text."""
    if not text.startswith(_SKEY):
        raise NoteError("is not a signer key")
    name, key_id, found, seed = _key_parts(text[len(_SKEY) :])
    key = SignerKey(name, seed, found)
    if found != kind:
        raise NoteError(f"is a key for signatures of type {found}, not {kind}")
    if key.verifier.key_id != key_id:
        raise NoteError("its name, number and key do not belong together")
    return key


def parse_note(data: bytes) -> Note:
    """Split a signed note. Verifies nothing. Raises NoteError."""
    if len(data) > MAX_NOTE:
        raise NoteError(f"is larger than {MAX_NOTE} bytes")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise NoteError("is not UTF-8") from exc
    if any(c < " " and c != "\n" for c in text):
        raise NoteError("has a control character")
    body, blank, tail = text.rpartition("\n\n")
    if not blank or not tail.endswith("\n"):
        raise NoteError("is not a signed note: a text, an empty line, signatures")
    signatures = []
    for line in tail[:-1].split("\n"):
        name, _, value = line.removeprefix(_DASH).partition(" ")
        if not line.startswith(_DASH) or not value:
            raise NoteError("has a signature line that is none")
        raw = decode_base64(value, "a signature")
        if len(raw) < 5:
            raise NoteError("has a signature that is too short")
        signatures.append((check_name(name), raw[:4], raw[4:]))
    return Note(body + "\n", tuple(signatures))


def parse_checkpoint(text: str) -> Checkpoint:
    """Read a checkpoint's text. Raises NoteError for anything but origin, size and root, without extension lines."""
    lines = text.split("\n")
    if len(lines) != 4 or lines[3] or not lines[0]:
        raise NoteError("is not a checkpoint of three lines")
    if not re.fullmatch("0|[1-9][0-9]{0,18}", lines[1]):
        raise NoteError(f"has the size {lines[1]!r:.40}")
    root = decode_base64(lines[2], "the root")
    if len(root) != 32:
        raise NoteError("has a root that is no SHA-256")
    return Checkpoint(lines[0], int(lines[1]), root)


def sign_checkpoint(checkpoint: Checkpoint, key: SignerKey) -> bytes:
    """The checkpoint as a note that the log's key signed."""
    body = checkpoint.body()
    line = encode_base64(key.verifier.key_id + key.sign(body.encode()))
    return f"{body}\n{_DASH}{key.name} {line}\n".encode()


def open_checkpoint(data: bytes, key: VerifierKey) -> Checkpoint:
    """The checkpoint, if `key` signed it and it is of the log that the key names. Raises NoteError."""
    note = parse_note(data)
    mine = [s for name, key_id, s in note.signatures if name == key.name and key_id == key.key_id]
    if not mine:
        others = ", ".join(sorted({f"{n}+{i.hex()}" for n, i, _ in note.signatures}))[:200]
        raise NoteError(f"is not signed by {key.name}+{key.key_id.hex()}, but by {others}")
    if not all(verify_ed25519(key.public, note.text.encode(), s) for s in mine):
        raise NoteError(f"the signature of {key.name} is wrong")
    checkpoint = parse_checkpoint(note.text)
    if checkpoint.origin != key.name:
        raise NoteError(f"is of the log {checkpoint.origin!r:.120}, the key is for {key.name}")
    return checkpoint


def _cosigned_message(body: str, at_s: int) -> bytes:
    return f"cosignature/v1\ntime {at_s}\n{body}".encode()


def cosign(data: bytes, key: SignerKey, at_s: int) -> bytes:
    """The note with a line more: the witness saw it, consistent, at this time (seconds since 1970)."""
    signature = at_s.to_bytes(8, "big") + key.sign(_cosigned_message(parse_note(data).text, at_s))
    return data + f"{_DASH}{key.name} {encode_base64(key.verifier.key_id + signature)}\n".encode()
