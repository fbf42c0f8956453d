"""Rows of an evaluation set that stand in the training rows: the share that counts, since a score on them measures memory.

An evaluation row overlaps if its whole text stands in the training rows as the whole text of one, or if at least NEAR of its 13-grams stand there.
The evaluation set is taken in blocks that fit into memory; the training rows are read once a block, so any size of either is judged exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from hpc.data.duplicates import LISTED, Tick, quiet
from hpc.data.rows import Source, rows
from hpc.data.shingles import NEAR, WORDS, grams, row_text, sampled, sampling_for, text_key

BLOCK_KEYS: Final = 2_000_000
"""Keys of evaluation rows that are held at once."""


@dataclass
class _Block:
    """Some evaluation rows: what each is known by, and where each key was met in the training rows ("" : nowhere)."""

    rows: list[tuple[str, int, list[int]]] = field(default_factory=list)
    met: dict[int, tuple[int, int]] = field(default_factory=dict)


def overlap(train: Sequence[Source], evaluation: Sequence[Source], *, tick: Tick = quiet) -> dict[str, Any]:
    """`{train_rows, eval_rows, exact, near, overlapping, ratio, …, offenders}`; `ratio` is a share of the evaluation rows.

    Raises Refusal E-DATA-003, E-DATA-004, E-STORE-02x.
    """
    modulus = sampling_for(sum(s.size for s in evaluation))
    out: dict[str, Any] = {
        "train_rows": 0, "eval_rows": 0, "exact": 0, "near": 0, "overlapping": 0, "words": WORDS, "threshold": NEAR, "sampling": f"1/{modulus}",
    }  # fmt: skip
    offenders: list[dict[str, Any]] = []
    for number, block in enumerate(_blocks(evaluation, modulus)):
        seen = _meet(train, block, tick)
        if not number:
            out["train_rows"] = seen
        out["eval_rows"] += len(block.rows)
        for place, whole, keys in block.rows:
            hits = [k for k in keys if block.met[k][0] >= 0]
            exact = block.met[whole][0] >= 0
            near = not exact and bool(keys) and len(hits) >= NEAR * len(keys)
            out["exact"] += exact
            out["near"] += near
            if (exact or near) and len(offenders) < LISTED:
                source, line = block.met[whole if exact else hits[0]]
                kind = "exact" if exact else "near"
                offenders.append({"row": place, "in": f"{train[source].name}:{line}", "kind": kind})
    out["overlapping"] = out["exact"] + out["near"]
    out["ratio"] = out["overlapping"] / out["eval_rows"] if out["eval_rows"] else 0.0
    return out | {"offenders": offenders}


def _blocks(evaluation: Sequence[Source], modulus: int) -> Iterator[_Block]:
    stream = ((source.name, line, row) for source in evaluation for line, row in rows(source))
    block = _Block()
    for name, line, row in stream:
        text = row_text(row)
        whole, keys = text_key(text), sampled(grams(text), modulus)
        block.rows.append((f"{name}:{line}", whole, keys))
        block.met.update(dict.fromkeys((whole, *keys), (-1, 0)))
        if len(block.met) >= BLOCK_KEYS:
            yield block
            block = _Block()
    if block.rows:
        yield block


def _meet(train: Sequence[Source], block: _Block, tick: Tick) -> int:
    """Note in the block where each of its keys is met first; the number of training rows."""
    met, count = block.met, 0
    for index, source in enumerate(train):
        stream = rows(source)
        while batch := list(islice(stream, 1024)):
            for line, row in batch:
                text = row_text(row)
                for key in (text_key(text), *grams(text)):
                    if key in met and met[key][0] < 0:
                        met[key] = (index, line)
            count += len(batch)
            tick(len(batch))
    return count
