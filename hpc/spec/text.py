"""Text that may reach a script or a path: no control characters, ever; names from a small alphabet.

The rules are ASCII on purpose: what sbatch, bash, a file system and a person read alike.
"""

from __future__ import annotations

import re

from hpc.errors import Refusal

CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""C0, DEL, C1 (with U+0085), the two Unicode line ends, and lone surrogates, which have no UTF-8."""
CONTROL_IN_PROSE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""The same without line feed and tab, for text that travels in JSON alone."""
SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
MAX_SEGMENT = 128
SEGMENT_ALLOWED = f"letters, digits, '.', '_' and '-', the first a letter or digit, at most {MAX_SEGMENT} characters"
PROJECT = re.compile(r"[A-Za-z0-9._-]+")


def visible(text: str, limit: int = 80) -> str:
    """`text` as it may be printed: control characters as escapes, cut after `limit` characters."""
    shown = CONTROL.sub(lambda m: m.group().encode("unicode_escape").decode(), text[: limit + 1])
    return shown if len(text) <= limit else shown[:limit] + "…"


def escaped(text: str, keep: str = "") -> str:
    """`text` with an escape for every character that would steer a terminal or has no UTF-8, but for those in `keep`."""
    return text if text.isprintable() else "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text)


def control_character(text: str, field: str = "", *, prose: bool = False) -> Refusal | None:
    """Refusal E-SPEC-016 that names the first control character and its place, or None where there is none."""
    hit = (CONTROL_IN_PROSE if prose else CONTROL).search(text)
    if not hit:
        return None
    message = f"control character U+{ord(hit.group()):04X} at position {hit.start()}"
    return Refusal("E-SPEC-016", message, field=field, found=visible(text), allowed="one line of plain text")


def check_plain(text: str, field: str = "") -> str:
    """`text` itself. Raises Refusal E-SPEC-016 when it holds a control character."""
    if refusal := control_character(text, field):
        raise refusal
    return text


def segment(text: str, field: str = "") -> str:
    """A name that can be one part of a path. Raises Refusal E-SPEC-015 (blank) or E-SPEC-017."""
    if not text.strip():
        raise Refusal("E-SPEC-015", "must not be empty", field=field, found=visible(text), allowed=SEGMENT_ALLOWED)
    if len(text) > MAX_SEGMENT or not SEGMENT.fullmatch(text):
        raise Refusal("E-SPEC-017", "not a name", field=field, found=visible(text), allowed=SEGMENT_ALLOWED)
    return text


def project_name(text: str, field: str = "") -> str:
    """A project's name; may start with '.', '_' or '-' but is neither '.' nor '..'. Raises Refusal E-SPEC-017."""
    if len(text) > MAX_SEGMENT or not PROJECT.fullmatch(text) or text in (".", ".."):
        allowed = "letters, digits, '.', '_' and '-', but not '.' or '..'"
        raise Refusal("E-SPEC-017", "not a project name", field=field, found=visible(text), allowed=allowed)
    return text


def filled(text: str, field: str = "") -> str:
    """Text that says something. Raises Refusal E-SPEC-015 when it is blank."""
    if not text.strip():
        raise Refusal("E-SPEC-015", "must not be empty", field=field, found=visible(text), allowed="some text")
    return text


def experiment_path(text: str, field: str = "") -> str:
    """A relative path of safe segments, without the trailing slash. Raises Refusal E-SPEC-015 or E-SPEC-017."""
    filled(text, field)
    path = text.removesuffix("/")
    if not all(SEGMENT.fullmatch(part) and len(part) <= MAX_SEGMENT for part in path.split("/")):
        raise Refusal(
            "E-SPEC-017",
            "not a relative path of names",
            field=field,
            found=visible(text),
            allowed=f"names joined by '/', relative; each name: {SEGMENT_ALLOWED}",
            hint="write it as experiments/NAME",
        )
    return path


def leaf_variable(leaf: str) -> str:
    """The part of an environment variable that a data set or volume gets: upper case, '-' and '.' as '_'."""
    return leaf.upper().replace("-", "_").replace(".", "_")
