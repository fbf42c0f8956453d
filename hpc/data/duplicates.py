"""Rows that repeat an earlier row, byte for byte, and rows that nearly do. Exact counts; memory does not grow with the rows.

Exact: the bytes of the line, white space around it cut off. Near: at least NEAR of the row's sampled 13-grams of words stand in earlier rows;
a row with fewer words counts only where its whole text does. The list of offenders is bounded; the counts are not.
"""

from __future__ import annotations

import hashlib
import mmap
import struct
import tempfile
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, Final

from hpc.data.rows import Source, chunks, numbered, rows
from hpc.data.shingles import NEAR, WORDS, row_keys, sampling_for
from hpc.data.spill import Spill, spilled

LISTED: Final = 20
"""Offending rows that are named."""
KNOWN: Final = 10_000
"""Repeated keys that are looked for when the offending rows are named."""
Tick = Callable[[int], None]
"""Told how many rows were read since it was told last."""
_PAIR: Final = struct.Struct(">QQ")


def quiet(rows: int) -> None:
    """Nobody is told."""


def row_digests(source: Source) -> Iterator[list[bytes]]:
    """The keys of the rows of one file, some thousand at a time."""
    sha = hashlib.sha256
    for lines in chunks(source):
        yield [sha(line).digest() for line in lines]


def exact_duplicates(sources: Sequence[Source], *, tick: Tick = quiet) -> dict[str, Any]:
    """`{rows, duplicates, ratio, offenders}`: how many rows repeat an earlier one, and the first of them. Raises Refusal E-STORE-02x, E-DATA-004."""
    repeated: set[bytes] = set()
    duplicates = 0
    with spilled() as spill:
        for source in sources:
            for lines in chunks(source):
                spill.add_rows(lines)
                tick(len(lines))
        for keys in spill.parts():
            more = len(keys) - len(set(keys))
            duplicates += more
            if more and len(repeated) < KNOWN:
                repeated.update(_repeated(keys)[: KNOWN - len(repeated)])
        total = spill.count
    offenders = _first_repeats(sources, repeated) if repeated else []
    return {
        "rows": total,
        "duplicates": duplicates,
        "ratio": duplicates / total if total else 0.0,
        "offenders": offenders,
    }


def _repeated(keys: list[bytes]) -> list[bytes]:
    return sorted(key for key, count in Counter(keys).items() if count > 1)


def _first_repeats(sources: Sequence[Source], repeated: set[bytes]) -> list[dict[str, Any]]:
    """The first rows, in the order of the files, that repeat an earlier one. Reads again only as far as it must."""
    first: dict[bytes, str] = {}
    out: list[dict[str, Any]] = []
    for source in sources:
        for number, line in numbered(source):
            key = hashlib.sha256(line).digest()
            if key not in repeated:
                continue
            place = f"{source.name}:{number}"
            if key in first:
                out.append({"row": place, "repeats": first[key]})
                if len(out) == LISTED:
                    return out
            else:
                first[key] = place
    return out


def near_duplicates(sources: Sequence[Source], *, tick: Tick = quiet) -> dict[str, Any]:
    """`{rows, near_duplicates, ratio, words, threshold, sampling, offenders}`; exact repeats are among them.

    Raises Refusal E-DATA-00x, E-STORE-02x.
    """
    modulus = sampling_for(sum(s.size for s in sources))
    found: list[int] = []
    count = 0
    with spilled(_PAIR.size) as grams, spilled(_PAIR.size) as seen, tempfile.TemporaryFile(prefix="tp-rows-") as totals:
        number = _collect(sources, modulus, grams, totals, tick)
        for part in grams.parts():
            seen.add(_later_rows(part))
        if number:
            with (
                mmap.mmap(totals.fileno(), 0, access=mmap.ACCESS_READ) as held,
                memoryview(held) as view,
                view.cast("H") as wanted,
            ):
                for part in seen.parts():
                    rows_hit = Counter(_PAIR.unpack(record)[1] for record in part)
                    hits = [row for row, hit in rows_hit.items() if hit >= NEAR * wanted[row]]
                    count += len(hits)
                    found = sorted([*found, *hits])[:LISTED]
    return {
        "rows": number, "near_duplicates": count, "ratio": count / number if number else 0.0, "words": WORDS, "threshold": NEAR,
        "sampling": f"1/{modulus}", "offenders": _places(sources, found),
    }  # fmt: skip


def _collect(sources: Sequence[Source], modulus: int, grams: Spill, totals: BinaryIO, tick: Tick) -> int:
    """Keys of every row into `grams`, how many each row has into `totals` (two bytes a row); the number of rows."""
    number, sizes = 0, array("H")
    for source in sources:
        for _, row in rows(source):
            keys = row_keys(row, modulus)
            grams.add([_PAIR.pack(key, number) for key in keys])
            sizes.append(min(len(keys), 65_535))
            number += 1
            if len(sizes) == 65_536:
                totals.write(sizes.tobytes())
                tick(len(sizes))
                sizes = array("H")
    totals.write(sizes.tobytes())
    totals.flush()
    tick(len(sizes))
    return number


def _later_rows(part: list[bytes]) -> Iterator[bytes]:
    """Of the keys of one part: a record for each row that has one which an earlier row has, spread by the row."""
    last_key, first_row = -1, -1
    for record in sorted(part):
        key, row = _PAIR.unpack(record)
        if key != last_key:
            last_key, first_row = key, row
        elif row != first_row:
            yield _PAIR.pack((row * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF, row)


def _places(sources: Sequence[Source], numbers: list[int]) -> list[dict[str, Any]]:
    """File and line of rows that are known by their number over all files."""
    out: list[dict[str, Any]] = []
    wanted, at = iter(numbers), 0
    next_one = next(wanted, None)
    for source in sources:
        if next_one is None:
            break
        for line, _ in rows(source):
            if at == next_one:
                out.append({"row": f"{source.name}:{line}"})
                next_one = next(wanted, None)
                if next_one is None:
                    break
            at += 1
    return out
