"""Apptainer definition files: their head, and the runtime that they say they build. Pure but for reading the file.

spython's own parser is not used: it knows `Bootstrap: docker` only and lists every section once more for each that follows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from hpc.errors import Refusal

MAX_BYTES = 1 << 20
_KEY = re.compile(r"^([A-Za-z][A-Za-z0-9]*):\s*(\S.*?)\s*$")
_RUNTIME = re.compile(r"^#\s*runtime_id:\s*(\S+)\s*$")


@dataclass(frozen=True)
class Definition:
    """`head`: the keys of the first stage in lower case (bootstrap, from, …); `runtime_ids` from comment lines: one image may be several runtimes."""

    head: dict[str, str]
    runtime_ids: tuple[str, ...]
    sections: tuple[str, ...]

    @property
    def source(self) -> str:
        """What the image is built from, as `<agent>:<place>`; provenance only, never an identity (P59)."""
        return f"{self.head['bootstrap']}:{self.head.get('from') or self.head.get('mirrorurl', '')}"


def parse_definition(text: str, where: str) -> Definition:
    """The head of a definition's first stage. Raises Refusal E-SIF-007."""
    head: dict[str, str] = {}
    sections, runtime_ids, stages = [], list[str](), 0
    for line in text.splitlines():
        stripped = line.strip()
        if match := _RUNTIME.match(stripped):
            runtime_ids.append(match.group(1))
        elif stripped.startswith("%"):
            sections.append(stripped[1:].split()[0].lower() if stripped[1:].split() else "")
        elif not sections and (match := _KEY.match(stripped)) and not stripped.startswith("#"):
            stages += match.group(1).lower() == "bootstrap"
            if stages < 2:
                head.setdefault(match.group(1).lower(), match.group(2))
    if "bootstrap" not in head or not (head.get("from") or head.get("mirrorurl")):
        missing = "Bootstrap" if "bootstrap" not in head else "From or MirrorURL"
        raise Refusal(
            "E-SIF-007", f"has no {missing} line", field=where, found=head or "no head", allowed="Bootstrap: and From:"
        )
    return Definition(head, tuple(runtime_ids), tuple(sections))


def read_definition(path: Path) -> Definition:
    """`parse_definition` of a file. Raises Refusal E-SIF-007."""
    try:
        data = path.read_bytes()
    except OSError as exc:
        raise Refusal("E-SIF-007", exc.strerror or str(exc), field=str(path), allowed="a readable file") from exc
    if len(data) > MAX_BYTES:
        raise Refusal(
            "E-SIF-007", "is too large", field=str(path), found=len(data), allowed=f"at most {MAX_BYTES} bytes"
        )
    return parse_definition(data.decode("utf-8", "replace"), str(path))
