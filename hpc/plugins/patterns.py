"""Patterns that run over log lines of others: the small part of regular expressions whose cost can be told beforehand. Pure.

Taken: letters and signs, `.`, classes, `\\d \\w \\s` and their opposites, `\\b`, `^`, `$`, groups with alternatives. A repetition belongs to a single
character or class, never to a group; at most two are open, and what can be chosen at each place is bounded. Not taken: references back, looking
around, flags inside, possessive and named forms.
"""

from __future__ import annotations

import re
from typing import Final

MAX_LENGTH: Final = 200
MAX_LINE: Final = 400
"""Only so much of a line is looked at."""
MAX_OPEN: Final = 2
MAX_CHOICES: Final = 64
_DEPTH: Final = 4
_REPEAT = re.compile(r"[*+?]\??|\{([0-9]{1,2})(,([0-9]{0,2}))?\}\??")
_SET = re.compile(r"\[\^?\]?(?:\\[dDwWsS\\\]\[^-]|\\[^\w\s]|[^\\\]\[])*\]")


class UnsafeError(ValueError):
    """The pattern is not of the part that is taken; the message says why."""


class _Reader:
    """Reads a pattern once, left to right, and counts what can be chosen."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.open, self.choices = text, 0, 0, 1

    def alternatives(self, depth: int) -> None:
        if depth > _DEPTH:
            raise UnsafeError(f"groups are nested deeper than {_DEPTH}")
        count = 1
        while self.at < len(self.text) and self.text[self.at] != ")":
            if self.text[self.at] == "|":
                self.at += 1
                count += 1
            else:
                self.item(depth)
        self.choose(count)

    def item(self, depth: int) -> None:
        char = self.text[self.at]
        if char == "(":
            self.group(depth)
        elif char in "^$" or self.text[self.at : self.at + 2] in (r"\b", r"\B"):
            self.at += 1 if char in "^$" else 2
            if _REPEAT.match(self.text, self.at):
                raise UnsafeError("a place in the line cannot be repeated")
        elif char in "*+?{":
            raise UnsafeError(f"{char!r} has nothing to repeat; write \\{char} for the sign")
        else:
            self.single(char)
            self.repetition()

    def group(self, depth: int) -> None:
        self.at += 3 if self.text.startswith("(?:", self.at) else 1
        if self.text[self.at : self.at + 1] == "?":
            raise UnsafeError("only plain groups (…) and (?:…) are taken")
        self.alternatives(depth + 1)
        if self.text[self.at : self.at + 1] != ")":
            raise UnsafeError("a group is not closed")
        self.at += 1
        if _REPEAT.match(self.text, self.at):
            raise UnsafeError("a group cannot be repeated")

    def single(self, char: str) -> None:
        """One character or class."""
        if char == "[":
            if not (found := _SET.match(self.text, self.at)):
                raise UnsafeError("a class [...] is not closed, or holds what is not taken")
            self.at = found.end()
        elif char == "\\":
            nxt = self.text[self.at + 1 : self.at + 2]
            if not nxt or (nxt.isalnum() and nxt not in "dDwWsS") or nxt == "_":
                raise UnsafeError(f"\\{nxt} is not taken")
            self.at += 2
        else:
            self.at += 1

    def repetition(self) -> None:
        found = _REPEAT.match(self.text, self.at)
        if not found:
            return
        self.at = found.end()
        if found.group().startswith("?"):
            self.choose(2)
        elif found[1] is None or (found[2] is not None and found[3] != found[1]):
            self.open += 1
        if self.open > MAX_OPEN:
            raise UnsafeError(f"more than {MAX_OPEN} open repetitions")
        if _REPEAT.match(self.text, self.at):
            raise UnsafeError("a repetition of a repetition")

    def choose(self, count: int) -> None:
        self.choices *= count
        if self.choices > MAX_CHOICES:
            raise UnsafeError(f"more than {MAX_CHOICES} ways to read it; split it into several patterns")


def compile_safe(text: str, *, ignore_case: bool = False) -> re.Pattern[str]:
    """The compiled pattern. Raises UnsafeError for anything that is not surely cheap, and for what matches an empty line."""
    if len(text) > MAX_LENGTH:
        raise UnsafeError(f"longer than {MAX_LENGTH} characters")
    reader = _Reader(text)
    reader.alternatives(0)
    if reader.at != len(text):
        raise UnsafeError("a ) closes nothing")
    try:
        pattern = re.compile(text, re.ASCII | (re.IGNORECASE if ignore_case else 0))
    except (re.error, OverflowError, RecursionError) as exc:
        raise UnsafeError(str(exc)) from exc
    if pattern.search(""):
        raise UnsafeError("matches every line")
    return pattern
