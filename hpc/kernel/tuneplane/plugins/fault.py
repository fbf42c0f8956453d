"""A locked plugin that this job cannot use."""

from __future__ import annotations

import traceback

SHOWN_LINES = 6


class PluginFault(Exception):  # noqa: N818
    """`code` is one of the E-JOB codes of docs/errors.md; `message` is one line that names the plugin."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code} {message}")
        self.code, self.message = code, message


def last_lines(exc: BaseException, lines: int = SHOWN_LINES) -> str:
    """The end of an exception's traceback in one line: where the plugin's own code was, and what it said."""
    text = "".join(traceback.format_exception(type(exc), exc, exc.__traceback__)).strip().splitlines()
    return " | ".join(line.strip() for line in text[-lines:] if line.strip().strip("^~"))
