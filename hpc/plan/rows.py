"""How many training rows there are and how long they are: from an earlier run's token cache, else counted, and their lengths sampled. Reads only."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final

from tuneplane.contract.datasets import is_data
from tuneplane.contract.packing import pack
from tuneplane.record.digest import digest_json
from tuneplane.record.files import read_bytes, read_json

from hpc.data.rows import Source, chunks
from hpc.errors import Refusal
from hpc.plan.template import Render, messages_of

COUNTED: Final = 512 << 20
"""Bytes that are read to count rows; of more only the beginning is looked at, and the count is an estimate."""
SAMPLE: Final = 400
PACKED: Final = 20_000
"""Rows that are packed to see how many fit into a sequence."""
BYTES_A_TOKEN: Final = 4.0
"""Where no tokenizer can be asked: what English text has, roughly. An assumption, and said to be one."""
_MOST_OFFSETS: Final = 256 << 20
Counter = Callable[[Sequence[str]], list[int]]


@dataclass(frozen=True)
class Rows:
    """Training rows as far as they are known. Tokens a row and of the longest row; `how` says where the numbers are from.

    `lengths`: tokens of an even sample of the rows, or of all of them.
    """

    rows: int
    mean_tokens: float
    longest_tokens: int
    exact: bool
    how: str
    lengths: tuple[int, ...] = field(default=(), repr=False)

    def as_json(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "lengths"}


@dataclass(frozen=True)
class Packed:
    """Rows put together: how many sequences, how full they are on average (of 1), and tokens in each. An estimate, but for few rows."""

    sequences: int
    fill: float
    mean_tokens: float

    def as_json(self) -> dict[str, Any]:
        return dict(vars(self))


def packed(rows: Rows, width: int) -> Packed | None:
    """What the job's own packing makes of rows with these lengths, the sample standing for all; None where no length is known."""
    if not rows.lengths:
        return None
    count = min(rows.rows, PACKED)
    taken = list(islice(cycle(rows.lengths), count))
    random.Random(0).shuffle(taken)  # noqa: S311 - as the job does: neighbours in a file are often of one kind
    made = sum(1 for _ in pack(enumerate(min(n, width) for n in taken), width))
    sequences = max(1, round(made * rows.rows / count))
    mean = rows.rows * rows.mean_tokens / sequences
    return Packed(sequences, min(1.0, mean / width), mean)


def content_digests(files: Sequence[Mapping[str, Any]]) -> set[str]:
    """What the token cache calls the content of an input with these files, in order of name; empty where a digest is missing."""
    known = [
        str(f["sha256"])
        for f in sorted(files, key=lambda f: str(f["path"]))
        if is_data(str(f["path"])) and f.get("sha256")
    ]
    alone = {str(f["sha256"]) for f in files if f.get("sha256")} if len(files) == 1 else set()
    return alone | ({digest_json(known)} if len(known) > 1 else set(known))


def from_caches(caches: Iterable[Path], digests: set[str], max_length: int) -> Rows | None:
    """The counts of a token folder that was made from exactly these files, with rows no longer than `max_length`; None where there is none."""
    for folder in caches:
        try:
            meta = read_json(folder / "meta.json")
            if meta["source_sha256"] not in digests:
                continue
            kept, tokens = int(meta["counts"]["kept"]), int(meta["tokens"])
            longest, lengths = _lengths(folder)
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if kept and longest <= max_length:
            return Rows(
                kept, tokens / kept, longest, True, "the token cache of an earlier run with the same rows", lengths
            )
    return None


def _lengths(folder: Path) -> tuple[int, tuple[int, ...]]:
    """Tokens of the longest row of a token folder, and of an even sample of its rows: the gaps of its offsets (little-endian, 8 bytes each).

    Raises OSError, ValueError.
    """
    offsets = memoryview(read_bytes(folder / "offsets.bin", limit=_MOST_OFFSETS)).cast("q")
    rows = len(offsets) - 1
    longest = max((offsets[i + 1] - offsets[i] for i in range(rows)), default=0)
    return longest, tuple(offsets[i + 1] - offsets[i] for i in range(0, rows, -(-max(1, rows) // PACKED)))


def measured(
    sources: Sequence[Source], max_length: int, counter: Counter | None, render: Render | None = None
) -> Rows | None:
    """Rows counted, their tokens sampled evenly. None where no row can be read. Rows longer than `max_length` count as that long."""
    total = sum(s.size for s in sources)
    found = _Looked()
    for source in sources:
        found.look(source)
    texts = [text for line in found.sample if (text := _text(line, render))]
    if not texts:
        return None
    rows = found.rows if found.whole else round(found.rows * total / found.bytes)
    count = counter or _assumed
    lengths, longest = count(texts), count([_text(found.longest, render)])[0] if found.whole else max_length
    counted = "rows counted" if found.whole else f"rows estimated from the first {COUNTED >> 20} MiB"
    by = "with the model's tokenizer" if counter else f"as {BYTES_A_TOKEN:g} bytes a token, which is assumed"
    how = f"{counted}; tokens from a sample of {len(texts)} rows {by}, {'with the' if render else 'without a'} chat template"
    held = tuple(min(n, max_length) for n in lengths)
    return Rows(rows, sum(held) / len(held), min(max_length, max(longest, *lengths)), False, how, held)


def _assumed(texts: Sequence[str]) -> list[int]:
    return [round(len(text.encode()) / BYTES_A_TOKEN) for text in texts]


class _Looked:
    """Rows that were read: how many, the longest in bytes, and an even sample of at most twice SAMPLE of them."""

    def __init__(self) -> None:
        self.rows, self.bytes, self.whole, self._every = 0, 0, True, 1
        self.sample: list[bytes] = []
        self.longest = b""

    def look(self, source: Source) -> None:
        """Read a file's rows, up to COUNTED bytes over all files."""
        for chunk in _chunks(source):
            if self.bytes > COUNTED:
                self.whole = False
                return
            for line in chunk:
                self._take(line)

    def _take(self, line: bytes) -> None:
        if self.rows % self._every == 0:
            self.sample.append(line)
            if len(self.sample) > SAMPLE * 2:
                del self.sample[1::2]
                self._every *= 2
        self.rows += 1
        self.bytes += len(line) + 1
        if len(line) > len(self.longest):
            self.longest = line


def _chunks(source: Source) -> Iterable[list[bytes]]:
    try:
        yield from chunks(source)
    except Refusal:
        return  # the job, or the submission, says what is wrong with the file


def _text(line: bytes, render: Render | None) -> str:
    """A row as the model's template writes it, else every text in it, one after the other."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return ""
    if render is not None and (messages := messages_of(row)) is not None:
        try:
            return render(messages)
        except Exception:  # a template may refuse or fail at anything; then the texts alone are counted
            return "\n".join(_texts(row))
    return "\n".join(_texts(row))


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if key != "role":
                yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def tokenizer_counter(model: Path) -> Counter | None:
    """Counts tokens with the model's own tokenizer.json, where the package tokenizers is installed here."""
    path = model / "tokenizer.json"
    if not path.is_file():
        return None
    try:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(os.fspath(path))
    except Exception:  # whatever it is: without a tokenizer the lengths are an assumption, and that is said
        return None
    return lambda texts: [len(e.ids) for e in tokenizer.encode_batch(list(texts), add_special_tokens=False)]
