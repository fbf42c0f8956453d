"""The text of a row as hashes of its runs of 13 words, the measure that contamination of language models is usually given in. Pure.

The text: of the columns that models learn from (messages without the system's, prompt, completion, …) where a row has some, else of all; lower
case, white space folded. Hashes are the same on every machine and in every process.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from typing import Any, Final

WORDS: Final = 13
NEAR: Final = 0.8
"""Share of a row's 13-grams that must be known for the row to count as near."""
TARGET: Final = 4_000_000
"""13-grams that are kept of a whole set; of larger ones every second, fourth, … by hash."""
BYTES_A_WORD: Final = 6
TEXT_COLUMNS: Final = (
    "messages", "conversations", "prompt", "completion", "input", "output", "instruction", "question", "answer", "text", "chosen", "rejected",
)  # fmt: skip
_PRIME: Final = (1 << 61) - 1
_BASE: Final = 1_000_003
_LEAVES: Final = pow(_BASE, WORDS, _PRIME)


def sampling_for(size: int) -> int:
    """The modulus that keeps about TARGET 13-grams of `size` bytes: a power of two, 1 for all."""
    modulus = 1
    while size // BYTES_A_WORD // modulus > TARGET:
        modulus *= 2
    return modulus


def row_text(row: dict[str, Any]) -> str:
    """The text of a row: lower case, one blank between words."""
    named = [row[column] for column in TEXT_COLUMNS if column in row]
    return " ".join(" ".join(_strings(named or row)).lower().split())


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        if value.get("role") != "system":
            for key in sorted(value):
                if key != "role":
                    yield from _strings(value[key])
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item)
    elif value is not None:
        yield str(value)


def text_key(text: str) -> int:
    """64 bits for a whole text."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "big")


def grams(text: str) -> list[int]:
    """A hash of every run of 13 words, in order; none for a shorter text."""
    words = text.split(" ")
    if len(words) < WORDS:
        return []
    codes = [zlib.crc32(word.encode("utf-8", "surrogatepass")) + 1 for word in words]
    value, out = 0, []
    for index, code in enumerate(codes):
        value = (value * _BASE + code) % _PRIME
        if index >= WORDS:
            value = (value - codes[index - WORDS] * _LEAVES) % _PRIME
        if index >= WORDS - 1:
            out.append(_spread(value))
    return out


def _spread(value: int) -> int:
    """Even bits in every byte, since parts and samples are taken by some of them."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    return value ^ (value >> 31)


def sampled(hashes: list[int], modulus: int) -> list[int]:
    """Distinct hashes that the modulus keeps; the smallest one where it keeps none."""
    kept = sorted({h for h in hashes if h % modulus == 0})
    return kept or sorted(hashes)[:1]


def row_keys(row: dict[str, Any], modulus: int) -> list[int]:
    """What a row is compared by: its sampled 13-grams, or its whole text where that is shorter."""
    text = row_text(row)
    return sampled(grams(text), modulus) or [text_key(text)]
