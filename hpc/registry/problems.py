"""What can be wrong with something in the registry, in one shape for refusals at use and for findings of an audit. Pure."""

from __future__ import annotations

import errno
import os
from typing import Any, Final, NamedTuple

from hpc.errors.core import Refusal
from hpc.spec.text import escaped
from hpc.store import faults

TAMPERED: Final = "tampered"
INCOMPLETE: Final = "incomplete"
NOTE: Final = "note"
LEVELS: Final = (TAMPERED, INCOMPLETE, NOTE)
NO_TICKET: Final = "E-STORE-022"
LITTER: Final = "litter"


class Problem(NamedTuple):
    """One thing that is wrong: `tampered` (it is not what was published), `incomplete` (nobody could look), `note` (harmless).

    `code` is a refusal's code, or a word for a note; `path` is relative to the storage root.
    """

    level: str
    code: str
    path: str
    message: str
    found: str = ""
    allowed: str = ""

    def as_json(self) -> dict[str, Any]:
        return {
            "level": self.level,
            "code": self.code,
            "path": escaped(self.path),
            "message": escaped(self.message),
            "found": escaped(self.found),
            "allowed": escaped(self.allowed),
        }

    def refusal(self, hint: str = "") -> Refusal:
        return Refusal(
            self.code, self.message, field=escaped(self.path), found=self.found or None, allowed=self.allowed, hint=hint
        )


def of_error(exc: OSError, path: str, doing: str = "read") -> Problem:
    """An error of the machine: `incomplete`, never `tampered`. A missing ticket keeps a code of its own."""
    fault = faults.refusal(exc, path, doing)
    return Problem(INCOMPLETE, fault.code, path, fault.message, str(fault.found or ""))


def of_refusal(fault: Refusal, path: str, level: str = TAMPERED) -> Problem:
    """A refusal met at `path`. What the machine could not do (E-STORE-02x) is incomplete, whatever `level` says."""
    if fault.code.startswith("E-STORE-02"):
        level = INCOMPLETE
    found = "" if fault.found is None else str(fault.found)
    return Problem(level, fault.code, path, fault.message, found, fault.allowed)


def is_gone(exc: OSError) -> bool:
    """True where the name is not there or is no folder: a statement about the tree, not about the machine."""
    return exc.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def is_stale(exc: OSError) -> bool:
    """True for a handle of a file that a server replaced meanwhile: opened again by path, it is mostly well."""
    return exc.errno == errno.ESTALE


def below(root: str | os.PathLike[str], path: str | os.PathLike[str]) -> str:
    """`path` relative to the storage root, for messages."""
    return os.path.relpath(path, root)
