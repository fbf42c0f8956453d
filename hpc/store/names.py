"""Which file names can be stored and shown anywhere, and which two names are one name elsewhere. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Final, Literal

MAX_PART_BYTES: Final = 240
MAX_PATH_BYTES: Final = 1024
BIDI: Final = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Marks that change the order in which text is shown."""
Kind = Literal["", "form", "length", "characters"]
_DEVICES: Final = re.compile(r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³])(\.|$)", re.IGNORECASE)
_DRIVE: Final = re.compile(r"^[A-Za-z]:")


def path_fault(path: str) -> str:
    """Why `path` is no normal relative POSIX path that can be stored and shown anywhere; "" if it is one."""
    return fault_of(path)[1]


def fault_of(path: str) -> tuple[Kind, str]:
    """(kind, reason): `form` of a path that is not normal, `length`, or `characters`; ("", "") for a sound one."""
    if not path:
        return "form", "is empty"
    if path.startswith("/"):
        return "form", "is absolute"
    if _DRIVE.match(path):
        return "form", "starts with a drive letter"
    try:
        encoded = path.encode("utf-8")
    except UnicodeEncodeError:
        return "characters", "is not UTF-8"
    if len(encoded) > MAX_PATH_BYTES:
        return "length", f"is longer than {MAX_PATH_BYTES} bytes"
    return next((fault for part in path.split("/") if (fault := _part_fault(part))[0]), ("", ""))


def _part_fault(part: str) -> tuple[Kind, str]:
    if part in ("", ".", ".."):
        return "form", f"has a part {part!r}"
    if len(part.encode("utf-8")) > MAX_PART_BYTES:
        return "length", f"has a part longer than {MAX_PART_BYTES} bytes"
    if "\\" in part:
        return "form", "has a backslash"
    if BIDI.search(part):
        return "characters", "has a mark that changes the direction of text"
    if not part.isprintable():
        return "characters", "has a control character"
    if part[-1] in ". ":
        return "characters", "has a part that ends in a dot or space"
    if _DEVICES.match(part):
        return "characters", "has a part that other systems take for a device"
    return "", ""


def folded(path: str) -> str:
    """The form in which a file system that ignores case and composes accents would compare the path."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def twins(paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Pairs of different files or folders among `paths` that fold to one name, each pair once."""
    seen: dict[str, str] = {}
    for path in paths:
        parts = path.split("/")
        for end in range(1, len(parts) + 1):
            prefix = "/".join(parts[:end])
            other = seen.setdefault(folded(prefix), prefix)
            if other != prefix:
                yield other, prefix
                break
