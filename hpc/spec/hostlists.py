"""Host lists as Slurm writes them: `gpu01,node[1-4,7],rack[1-2]n[01-16]`. No file names, no globs."""

from __future__ import annotations

import re

from hpc.errors import Refusal
from hpc.spec.text import visible

MAX_TEXT = 2048
ALLOWED = "host names such as gpu01 or node[1-4,7], joined by ','"
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]|\[[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*\])*")
_COMMA = re.compile(r",(?![^\[]*\])")
_RANGE = re.compile(r"([0-9]+)-([0-9]+)")


def check_hostlist(text: str, field: str = "") -> str:
    """`text` itself. Raises Refusal E-SPEC-048: another alphabet, open brackets, ranges that run backwards."""
    hosts = _COMMA.split(text)
    backwards = any(int(low) > int(high) for host in hosts for low, high in _RANGE.findall(_brackets(host)))
    if len(text) > MAX_TEXT or backwards or not all(_HOST.fullmatch(host) for host in hosts):
        raise Refusal("E-SPEC-048", "not a host list", field=field, found=visible(text), allowed=ALLOWED)
    return text


def _brackets(host: str) -> str:
    return ";".join(re.findall(r"\[([^\]]*)\]", host))
