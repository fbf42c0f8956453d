"""A locked plugin that this job cannot use."""

from __future__ import annotations

import traceback

SHOWN_LINES = 6
MAX_SHOWN = 1000


class PluginFault(Exception):  # noqa: N818
    """`code` is one of the E-JOB codes of docs/errors.md; `message` is one line that names the plugin."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code} {message}")
        self.code, self.message = code, message


def last_lines(exc: BaseException, lines: int = SHOWN_LINES) -> str:
    """What an exception said and the last lines of its traceback, where the plugin's own code is: one printable line, MAX_SHOWN characters each."""
    text = "".join(traceback.format_exception(type(exc), exc, exc.__traceback__)).strip().splitlines()
    said = "".join(traceback.format_exception_only(type(exc), exc)).strip().splitlines()
    frames = [line.strip() for line in text[: -len(said)][-lines:] if line.strip().strip("^~")]
    return f"{_shown(' '.join(line.strip() for line in said))} ({_shown(' | '.join(frames))})"


def _shown(text: str) -> str:
    cut = text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in cut)
