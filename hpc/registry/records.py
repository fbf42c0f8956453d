"""Records of the registry: canonical JSON that carries its own digest, so that a flipped bit shows before any seal exists.

A record is read only as a regular file with one name, never through a link. What is not exactly the bytes that this module writes is no record:
white space, another key order and a key that stands twice are refused with the rest.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tuneplane.record.canonical import canonical_bytes
from tuneplane.record.digest import PREFIX, digest_json

DIGEST: Final = "record_digest"
MAX_BYTES: Final = 64 << 20
FILE_MODE: Final = 0o444
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode
_decode = json.JSONDecoder().decode
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class RecordError(ValueError):
    """The bytes, or the file, are not the record that they should be; the message says why."""


@dataclass(frozen=True)
class Raw:
    """The bytes of a record's file and what the kernel says about that file."""

    data: bytes
    found: os.stat_result


def encode_record(body: Mapping[str, Any]) -> bytes:
    """The bytes of a record: canonical JSON of `body` and of its digest. Raises CanonicalError."""
    value = dict(body)
    value[DIGEST] = digest_json(value)
    return canonical_bytes(value)


def decode_record(data: bytes, schema: str) -> dict[str, Any]:
    """The record, its digest included, if `data` is exactly what `encode_record` writes under that schema. Raises RecordError.

    Encoding the parsed value again must give the same bytes: that refuses every second spelling, and stays at the speed of the C encoder.
    """
    try:
        text = data.decode("utf-8")
        value = _decode(text)
        again = _encode(value)
    except (ValueError, RecursionError) as exc:
        raise RecordError(f"is not JSON: {exc}"[:200]) from exc
    if not isinstance(value, dict):
        raise RecordError("is no object")
    if again != text:
        raise RecordError("is not in canonical form")
    stated = value.get(DIGEST)
    if not isinstance(stated, str) or _digest_of_rest(text, value, stated) != stated:
        raise RecordError("does not have the digest that it states")
    if value.get("schema") != schema:
        raise RecordError(f"has schema {value.get('schema')!r:.80}, not {schema}")
    return value


def decode_known(data: bytes, schema: str, digest: str) -> dict[str, Any] | None:
    """The record if its bytes are exactly those of a record that was found good before and had this digest, else None.

    Cheaper than `decode_record`, which encodes again: the digest of the rest says that the rest is the known one, and its own place is checked.
    None says nothing against the record.
    """
    token = f',"{DIGEST}":"{digest}"'.encode()
    at = data.find(token)
    if at < 0 or not data.startswith(f',"schema":"{schema}"'.encode(), at + len(token)) or data.count(token) != 1:
        return None
    if PREFIX + hashlib.sha256(data[:at] + data[at + len(token) :]).hexdigest() != digest:
        return None
    try:
        value = _decode(data.decode("utf-8"))
    except ValueError:
        return None
    return value if isinstance(value, dict) and value.get(DIGEST) == digest and value.get("schema") == schema else None


def _digest_of_rest(text: str, value: Mapping[str, Any], stated: str) -> str:
    # The canonical text without one member is the canonical text of the rest. A quote inside of text is escaped, so the token is a real member;
    # where it does not stand exactly once, the rest is encoded again.
    token = f',"{DIGEST}":"{stated}"'
    once = text.count(token) == 1
    rest = text.replace(token, "") if once else _encode({k: v for k, v in value.items() if k != DIGEST})
    return PREFIX + hashlib.sha256(rest.encode("utf-8")).hexdigest()


def read_raw(name: str | os.PathLike[str], *, dir_fd: int | None = None, limit: int = MAX_BYTES, names: int = 1) -> Raw:
    """The bytes of one record's file. Raises OSError, or RecordError for a link, a special file, more than `names` names, too many bytes.

    What `write_new` creates has two names for a moment, and for ever where its writer died in that moment: whoever reads that allows two.
    """
    try:
        fd = os.open(name, _OPEN, dir_fd=dir_fd)
    except OSError as exc:
        if os.path.islink(name) if dir_fd is None else _is_link(os.fspath(name), dir_fd):
            raise RecordError("is a link") from exc
        raise
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise RecordError("is not a regular file")
        if found.st_nlink > names:
            raise RecordError(f"has {found.st_nlink} names")
        if found.st_size > limit:
            raise RecordError(f"is larger than {limit} bytes")
        data = os.read(fd, found.st_size + 1)
        while len(data) < found.st_size and (more := os.read(fd, found.st_size)):
            data += more
    finally:
        os.close(fd)
    if len(data) > limit:
        raise RecordError(f"is larger than {limit} bytes")
    return Raw(data, found)


def _is_link(name: str, dir_fd: int) -> bool:
    try:
        return stat.S_ISLNK(os.lstat(name, dir_fd=dir_fd).st_mode)
    except OSError:
        return False
