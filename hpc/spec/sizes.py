"""Memory sizes as Slurm writes them: a whole number with K, M, G or T (powers of 1024); without a letter, MiB."""

from __future__ import annotations

import re

from hpc.errors import Refusal
from hpc.spec.text import visible

MAX_MIB = 1 << 30
ALLOWED = "a whole number with K, M, G or T, at most 1024T; without a letter MiB"
_SIZE = re.compile(r"([0-9]{1,15})([KMGTkmgt]?)")
_SHIFT = {"M": 0, "G": 10, "T": 20}


def parse_memory(text: str, field: str = "") -> int:
    """MiB; kibibytes are rounded up, as Slurm does. 0 is sbatch's word for all of a node. Raises Refusal E-SPEC-041."""
    match = _SIZE.fullmatch(text)
    if match:
        number, unit = int(match[1]), match[2].upper() or "M"
        mib = -(-number // 1024) if unit == "K" else number << _SHIFT[unit]
        if mib <= MAX_MIB:
            return mib
    raise Refusal("E-SPEC-041", "not a memory size", field=field, found=visible(text), allowed=ALLOWED)


def format_memory(mib: int) -> str:
    """The shortest exact form: `512M`, `16G`, `2T`; `0` for all of a node."""
    if mib == 0:
        return "0"
    unit = next(u for u in "TGM" if mib % (1 << _SHIFT[u]) == 0)
    return f"{mib >> _SHIFT[unit]}{unit}"
