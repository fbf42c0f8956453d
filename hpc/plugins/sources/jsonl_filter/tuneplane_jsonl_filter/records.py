"""One line: is it a record, and does it belong into the output?"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

from .config import Config

INVALID = {
    "record_too_long": "longer than max_record_bytes",
    "not_utf8": "not UTF-8",
    "not_json": "not JSON",
    "not_an_object": "not a JSON object",
    "duplicate_key": "a key stands twice in one object",
    "lone_surrogate": "a text holds half of a surrogate pair",
    "missing_field": "a required field is missing or null",
    "text_not_a_string": "the text field is missing or no text",
}
"""Reasons for which a record is invalid; everything else is a rejection."""


class InvalidRecordError(ValueError):
    """The input holds something that is no record; the message names the place."""


class _DuplicateKeyError(Exception):
    """A key stands twice."""


class _NotJSONError(Exception):
    """A constant that Python's reader takes and JSON does not know."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        keys = [key for key, _ in pairs]
        raise _DuplicateKeyError(next(key for key in keys if keys.count(key) > 1))
    return value


def _constant(name: str) -> Any:
    raise _NotJSONError(name)


class Checker:
    """Judges lines by one configuration. `detail` is what there was to say of the last line that was left out."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.detail = ""
        self._decode = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant).decode
        self._by_text = config.deduplicate == "text"
        self._hashes = config.deduplicate != "off"

    def check(self, record: bytes) -> str | bytes:
        """A reason to leave the record out, else its 256-bit digest for the comparison with others (empty without one).

        `record` is the line without its newline; a carriage return before it counts as white space and not for the digest.
        """
        try:
            value = self._decode(record.decode("utf-8"))
        except UnicodeDecodeError as exc:
            return self._no("not_utf8", f"byte {exc.start}")
        except _DuplicateKeyError as exc:
            return self._no("duplicate_key", repr(exc.args[0]))
        except (ValueError, RecursionError, _NotJSONError) as exc:
            return self._no("not_json", str(exc))
        if type(value) is not dict:
            return self._no("not_an_object", type(value).__name__)
        if b"\\u" in record and _has_lone_surrogate(value):
            return self._no("lone_surrogate", "")
        for field in self.config.required_fields:
            if value.get(field) is None:
                return self._no("missing_field", field)
        if self.config.needs_text:
            verdict = self._judge_text(value.get(self.config.text_field))
            if verdict:
                return verdict
        return sha256(record.rstrip(b"\r")).digest() if self._hashes else b""

    def _judge_text(self, text: Any) -> str | bytes:
        """A reason, the text's digest where records are compared by it, else ""."""
        if type(text) is not str:
            return self._no("text_not_a_string", self.config.text_field)
        if len(text) < self.config.min_length:
            return "too_short"
        if self.config.max_length is not None and len(text) > self.config.max_length:
            return "too_long"
        return sha256(text.encode("utf-8")).digest() if self._by_text else ""

    def _no(self, reason: str, detail: str) -> str:
        self.detail = detail
        return reason


def _has_lone_surrogate(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False
