"""Error kinds of cleaning up."""

from __future__ import annotations

from hpc.errors.core import ErrorKind, table

KINDS: dict[str, ErrorKind] = table(
    ErrorKind(
        "E-GC-001",
        "in use again",
        "Between looking and removing, a run, a lock or a download took it up. It was left, or put back.",
        "Nothing; the next `tp gc` looks anew.",
    ),
    ErrorKind(
        "E-GC-002",
        "not yours to remove",
        "It lies in a folder where only its owner, or the folder's, may remove it.",
        "Let its owner, the service user or root run `tp gc`.",
    ),
)
