"""Why a transform run ends without an output."""

from __future__ import annotations

import errno
from typing import Final

REFUSED: Final = "refused"
FAILED: Final = "failed"
TIMEOUT: Final = "timeout"
CANCELLED: Final = "cancelled"
SUCCEEDED: Final = "succeeded"

NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class Stop(Exception):  # noqa: N818
    """`status` is the report's word, `code` one of the E-JOB codes of docs/errors.md, `message` one line."""

    def __init__(self, status: str, code: str, message: str) -> None:
        super().__init__(f"{code} {message}")
        self.status, self.code, self.message = status, code, message


def refused(code: str, message: str) -> Stop:
    """Nothing of the provider ran."""
    return Stop(REFUSED, code, message)


def failed(code: str, message: str) -> Stop:
    """The provider ran, and its output is not published."""
    return Stop(FAILED, code, message)


def broken(what: str, exc: OSError) -> Stop:
    """The machine said no: E-JOB-047."""
    room = "no room is left: " if exc.errno in NO_ROOM else ""
    return failed("E-JOB-047", f"{what}: {room}{exc.strerror or exc}")
