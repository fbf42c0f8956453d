"""A record is exactly the bytes that were written: every second spelling of it is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tuneplane.record.canonical import canonical_bytes, parse_json

from hpc.registry.records import RecordError, decode_known, decode_record, encode_record, read_raw

SCHEMA = "tuneplane-hpc/toy/v1"
BODY = {
    "schema": SCHEMA,
    "published": {"at": "now"},
    "facts": {"record_digest": "inner", "n": 1, "text": 'a","record_digest":"b'},
}
GOOD = encode_record(BODY)
DIGEST = parse_json(GOOD)["record_digest"]


def test_what_is_written_is_read() -> None:
    assert decode_record(GOOD, SCHEMA) == {**BODY, "record_digest": DIGEST}
    assert decode_known(GOOD, SCHEMA, DIGEST) == {**BODY, "record_digest": DIGEST}
    assert canonical_bytes(parse_json(GOOD)) == GOOD


TOKEN = f',"record_digest":"{DIGEST}"'.encode()
BAD = {
    "white space": GOOD.replace(b":", b": ", 1),
    "a final newline": GOOD + b"\n",
    "another order": json.dumps(dict(reversed(json.loads(GOOD).items())), separators=(",", ":")).encode(),
    "a key twice": GOOD.replace(b'{"facts"', b'{"facts":1,"facts"', 1),
    "an escape that need not be": GOOD.replace(b'"at"', b'"\\u0061t"', 1),
    "a number in another form": GOOD.replace(b'"n":1', b'"n":1.0', 1),
    "not a number": GOOD.replace(b'"n":1', b'"n":NaN', 1),
    "the digest elsewhere": GOOD.replace(TOKEN, b"")[:-1] + TOKEN + b"}",
    "the digest inside": GOOD.replace(TOKEN, b"").replace(b'{"at":"now"', b'{"at":"now"' + TOKEN),
    "no digest": GOOD.replace(TOKEN, b""),
    "cut": GOOD[:-5],
    "empty": b"",
    "a list": b"[]",
    "not UTF-8": GOOD.replace(b"now", b"n\xffw"),
    "nested without end": b"[" * 100_000,
}


@pytest.mark.parametrize("name", BAD)
def test_every_other_spelling_is_refused(name: str) -> None:
    with pytest.raises(RecordError):
        decode_record(BAD[name], SCHEMA)
    assert decode_known(BAD[name], SCHEMA, DIGEST) is None


def test_another_schema_is_refused() -> None:
    with pytest.raises(RecordError, match="schema"):
        decode_record(GOOD, "tuneplane-hpc/other/v1")
    assert decode_known(GOOD, "tuneplane-hpc/other/v1", DIGEST) is None


@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
def test_any_changed_byte_is_refused(place: int, change: int) -> None:
    data = GOOD[:place] + bytes([GOOD[place] ^ change]) + GOOD[place + 1 :]
    with pytest.raises(RecordError):
        decode_record(data, SCHEMA)
    assert decode_known(data, SCHEMA, DIGEST) is None


def test_only_a_plain_file_with_one_name_is_read(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(GOOD)
    assert read_raw(path).data == GOOD
    (tmp_path / "link").symlink_to(path)
    os.mkfifo(tmp_path / "pipe")
    for name, words in (("link", "is a link"), ("pipe", "not a regular file")):
        with pytest.raises(RecordError, match=words):
            read_raw(tmp_path / name)
    with pytest.raises(RecordError, match="larger"):
        read_raw(path, limit=10)
    os.link(path, tmp_path / "second")
    with pytest.raises(RecordError, match="2 names"):
        read_raw(path)
    assert read_raw(path, names=2).data == GOOD
