"""A locked plugin that this job cannot use."""

from __future__ import annotations

import traceback

SHOWN_LINES = 6
MAX_SHOWN = 2000


class PluginFault(Exception):  # noqa: N818
    """`code` is one of the E-JOB codes of docs/errors.md; `message` is one line that names the plugin."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code} {message}")
        self.code, self.message = code, message


def last_lines(exc: BaseException, lines: int = SHOWN_LINES) -> str:
    """The end of an exception's traceback in one printable line: where the plugin's own code was, and what it said, MAX_SHOWN characters of it."""
    text = "".join(traceback.format_exception(type(exc), exc, exc.__traceback__)).strip().splitlines()
    line = " | ".join(line.strip() for line in text[-lines:] if line.strip().strip("^~"))
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in line[-MAX_SHOWN:])
    return shown if len(line) <= MAX_SHOWN else f"…{shown}"
