"""A file's text as overlapping windows, read once and held a window at a time."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

READ_BYTES = 1 << 20
BYTE_ORDER_MARK = "\ufeff"


class BadTextError(ValueError):
    """An input is no UTF-8 text; the message names the file and the offset of the byte."""


@dataclass(frozen=True)
class Chunk:
    """`text` is the file's text from `start` to before `end`, counted in characters (Unicode code points) from the file's beginning."""

    start: int
    end: int
    text: str


def decoded(source: str, path: Path) -> Iterator[str]:
    """The file's text in pieces, nothing normalised. Raises BadTextError with the offset of the first byte that is no UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    read = 0
    with open(path, "rb") as stream:
        while True:
            data = stream.read(READ_BYTES)
            pending = len(decoder.getstate()[0])
            try:
                text = decoder.decode(data, final=not data)
            except UnicodeDecodeError as exc:
                raise BadTextError(f"{source}: not UTF-8 at byte {read - pending + exc.start}: {exc.reason}") from exc
            read += len(data)
            if text:
                yield text
            if not data:
                return


def chunks_of(source: str, path: Path, chunk_chars: int, overlap_chars: int) -> Iterator[Chunk]:
    """Windows of `chunk_chars` that begin every `chunk_chars - overlap_chars`; the last one ends with the file and may be shorter.

    No window lies inside the one before it. A byte order mark counts as a character and stands in no window. An empty file has none.
    """
    step = chunk_chars - overlap_chars
    window, start, first = "", 0, True
    for text in decoded(source, path):
        if first:
            first = False
            if text.startswith(BYTE_ORDER_MARK):
                text, start = text[1:], 1
        window += text
        offset = 0
        # One character more than a window is needed to know that this is not the last one.
        while len(window) - offset > chunk_chars:
            yield Chunk(start + offset, start + offset + chunk_chars, window[offset : offset + chunk_chars])
            offset += step
        window, start = window[offset:], start + offset
    if window:
        yield Chunk(start, start + len(window), window)
