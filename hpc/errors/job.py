"""The kernel's codes (`tuneplane.contract.faults`) as rows of the catalogue."""

from __future__ import annotations

from tuneplane.contract import exits
from tuneplane.contract.faults import JOB_FAULTS

from hpc.errors.core import ErrorKind, table

KINDS: dict[str, ErrorKind] = table(
    *(ErrorKind(code, title, cause, mend, exits.LAUNCH_FAILED) for code, (title, cause, mend) in JOB_FAULTS.items())
)
