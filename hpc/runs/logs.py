"""Reads logs from shared files: one rank, one node's launcher, the batch script, or all ranks merged by time.

A line of a rank's or node's log is `<UTC time>Z <text>`; a line without a time belongs to the moment of the line before it. Files are opened by
path again and again and never kept, so that a new attempt, a new rank or a stale handle of a network mount does not end a follow.
"""

from __future__ import annotations

import errno
import heapq
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tuneplane.contract.layout import AttemptPaths, RunPaths
from tuneplane.record.files import open_regular

from hpc.errors import Refusal
from hpc.runs.records import numbers, read_submissions

_TIMED: Final = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?Z) ?(.*)$", re.DOTALL)
_SOURCE: Final = re.compile(r"^(rank|node)-(\d+)\.log$")
_ELEMENT: Final = re.compile(r"^(\d{1,9})_(\d{1,8})\.log$")
_BLOCK: Final = 1 << 16
_LONGEST: Final = 1 << 20
"""A line longer than this is cut, so that a file without newlines cannot flood a terminal."""
_FARTHEST: Final = 64 << 20
"""How far back the last lines of a file are looked for."""
_NO_LOG: Final = frozenset({errno.ENOENT, errno.ESTALE, errno.ENXIO, errno.ELOOP, errno.EISDIR})
"""It went away, or a link, pipe or folder stands there."""


@dataclass(frozen=True)
class Source:
    """One log file: attempt, kind (`rank`, `node`, `batch`), its number, its path, and the array element that it is of."""

    attempt: int
    kind: str
    number: int
    path: Path
    element: int | None = None

    @property
    def label(self) -> str:
        return self.kind if self.kind == "batch" else f"{self.kind} {self.number}"


@dataclass(frozen=True)
class Line:
    """One line of a log. `time` is the text in the file, or that of the line before; "" where there was none yet."""

    source: Source
    time: str
    text: str

    def as_json(self) -> dict[str, object]:
        return {
            "attempt": self.source.attempt, "source": self.source.kind, "number": self.source.number,
            "element": self.source.element, "time": self.time or None, "text": self.text,
        }  # fmt: skip


def sources(
    run: RunPaths,
    *,
    kind: str = "rank",
    number: int | None = None,
    attempt: int | None = None,
    element: int | None = None,
) -> list[Source]:
    """The log files that exist now. `kind`: rank, node or batch (the submission's own output). Of an array all elements, or one."""
    if kind == "batch":
        found = [Source(n, "batch", n, run.batch / f"{n}.log") for n in numbers(run.batch, ".log")] + _of_elements(run)
        return [s for s in found if attempt in (None, s.attempt) and element in (None, s.element)]
    out = []
    indices = [element] if element is not None else [None, *numbers(run.array)]
    for index in indices:
        part = run if index is None else run.element(index)
        for n in numbers(part.attempts) if attempt is None else [attempt]:
            out += _in_attempt(part.attempt(n), kind, number, index)
    return sorted(out, key=lambda s: (s.attempt, s.element or 0, s.number))


def _of_elements(run: RunPaths) -> list[Source]:
    """The batch logs of an array's elements, `<first attempt>_<Slurm's index>.log`."""
    try:
        matches = [m for name in os.listdir(run.batch) if (m := _ELEMENT.match(name))]
    except OSError:
        return []
    offsets = {s.first_attempt: s.offset for s in read_submissions(run, {})} if matches else {}
    found = [(int(m[1]), int(m[2]) + offsets.get(int(m[1]), 0), run.batch / m[0]) for m in matches]
    return [Source(first, "batch", first, path, index) for first, index, path in sorted(found)]


def _in_attempt(paths: AttemptPaths, kind: str, number: int | None, element: int | None) -> list[Source]:
    try:
        names = os.listdir(paths.logs)
    except OSError:
        return []
    matches = [(m, name) for name in names if (m := _SOURCE.match(name)) and m.group(1) == kind]
    return [
        Source(paths.number, kind, int(m.group(2)), paths.logs / name, element)
        for m, name in matches
        if number in (None, int(m.group(2)))
    ]


def split_line(raw: str, before: str) -> tuple[str, str]:
    """(time, text) of one raw line. Pure."""
    match = _TIMED.match(raw)
    return (match.group(1), match.group(2)) if match else (before, raw)


def plain(text: str) -> str:
    """The text without what would steer a terminal: control characters but the tab are dropped, escape sequences with them."""
    text = re.sub(r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-Z\\-_]", "", text)
    return "".join(c for c in text.rpartition("\r")[2] if c == "\t" or (c.isprintable() or c == "�"))


def _decode(raw: bytes) -> str:
    text = raw[:_LONGEST].rstrip(b"\r").decode("utf-8", "replace")
    return text if len(raw) <= _LONGEST else text + "…"


def _lines(source: Source, data: bytes, moment: str) -> list[Line]:
    """Lines of whole bytes; `moment` is the time of what came before."""
    raws = data.split(b"\n")
    out = []
    for raw in raws[:-1] if not raws[-1] else raws:
        moment, text = split_line(_decode(raw), moment)
        out.append(Line(source, moment, text))
    return out


def tail(source: Source, count: int, until: int | None = None) -> list[Line]:
    """The last `count` lines of a file (0: all), or of its first `until` bytes. Raises OSError."""
    with open_regular(source.path) as stream:
        end = stream.seek(0, os.SEEK_END)
        start = end = end if until is None else min(until, end)
        block, data = _BLOCK if count else end, b""
        while start > 0 and (not count or (data.count(b"\n") <= count and len(data) < _FARTHEST)):
            step = min(block, start)
            start, block = start - step, block * 2
            stream.seek(start)
            data = stream.read(step) + data
    if start > 0:
        data = data.partition(b"\n")[2]
    lines = _lines(source, data, "")
    return lines[-count:] if count else lines


def merged(streams: Iterable[list[Line]]) -> Iterator[Line]:
    """Lines of several files as one, by attempt and time; a file's own order is kept whatever its clock says. Pure."""

    def keyed(lines: list[Line]) -> Iterator[tuple[int, str, int, int, int, Line]]:
        latest = ""
        for at, line in enumerate(lines):
            latest = max(latest, line.time)
            yield line.source.attempt, latest, line.source.element or 0, line.source.number, at, line

    for item in heapq.merge(*(keyed(lines) for lines in streams), key=lambda item: item[:5]):
        yield item[5]


def last_lines(found: list[Source], count: int, until: dict[Path, int] | None = None) -> list[Line]:
    """The last `count` lines over all files, merged by time (0: all). Files that vanish meanwhile are left out."""
    streams = []
    for source in found:
        try:
            streams.append(tail(source, count, None if until is None else until.get(source.path, 0)))
        except OSError as exc:
            if exc.errno not in _NO_LOG:
                raise
    lines = list(merged(streams))
    return lines[-count:] if count else lines


def need(found: list[Source], run: RunPaths, what: str) -> list[Source]:
    """`found` itself. Raises Refusal E-RUNS-020 where there is nothing to read."""
    if not found:
        raise Refusal("E-RUNS-020", f"{run.run_id} has no log of {what}", field=run.run_id, found=what)
    return found


class Follower:
    """Reads what was added to a run's logs since the last look; new files of new attempts and ranks join by themselves."""

    def __init__(self, look: Callable[[], list[Source]], *, skip: bool = False) -> None:
        """`skip` leaves out what is there already, up to the last whole line of each file."""
        self._look = look
        self.offsets: dict[Path, int] = {s.path: _whole(s.path) for s in look()} if skip else {}
        self._moments: dict[Path, str] = {}

    def more(self, *, final: bool = False) -> list[Line]:
        """New lines, merged by time. A last line without its newline is kept for later unless this is the `final` look."""
        return list(merged([self._read(source, final) for source in self._look()]))

    def _read(self, source: Source, final: bool) -> list[Line]:
        offset = self.offsets.get(source.path, 0)
        try:
            with open_regular(source.path) as stream:
                if stream.seek(0, os.SEEK_END) < offset:
                    offset = 0  # another file has that name now
                stream.seek(offset)
                data = stream.read(_BLOCK * 64)
        except OSError as exc:
            if exc.errno in _NO_LOG:
                return []
            raise
        whole = len(data) if final or (len(data) > _LONGEST and b"\n" not in data) else data.rfind(b"\n") + 1
        self.offsets[source.path] = offset + whole
        lines = _lines(source, data[:whole], self._moments.get(source.path, ""))
        if lines:
            self._moments[source.path] = lines[-1].time
        return lines


def _whole(path: Path) -> int:
    """Bytes of a file up to its last newline; a line still being written is not counted."""
    try:
        with open_regular(path) as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - _LONGEST))
            data = stream.read(_LONGEST)
    except OSError:
        return 0
    return size - len(data) + data.rfind(b"\n") + 1


def follow(
    follower: Follower,
    *,
    over: Callable[[], bool],
    sleep: Callable[[float], None] = time.sleep,
    interval_s: float = 0.5,
) -> Iterator[Line]:
    """Lines as they come until `over()` says that the run has ended and everything was read. Does not promise order across batches of a look."""
    while True:
        # Asked before reading: what is written before the end is then read after it was seen.
        ended = over()
        yield from follower.more(final=ended)
        if ended:
            while rest := follower.more(final=True):
                yield from rest
            return
        sleep(interval_s)
