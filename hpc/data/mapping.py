"""Rows with other columns, as the rows that methods read: `{"prompt", "completion"}`. Pure, a row at a time.

Two mappings: `input` and `output` name two columns; `messages` names one that holds a conversation, of which the first question and the answer that
follows it are taken. What is skipped and dropped is counted, a column that no row has is refused, and no evaluation row is ever trained on: an
evaluation split keeps the first of rows with one input, training drops every input that an evaluation split has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from hpc.errors.core import Refusal
from hpc.spec.text import visible

SHOWN: Final = 30
KEYS: Final = ("input", "output", "messages")


@dataclass(frozen=True)
class Columns:
    """Which columns are what: `input` and `output`, or `messages`."""

    input: str = ""
    output: str = ""
    messages: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return (self.messages,) if self.messages else (self.input, self.output)


@dataclass
class Counts:
    """What became of the rows of one split."""

    records: int = 0
    kept: int = 0
    skipped_missing_fields: int = 0
    dropped_duplicate_inputs: int = 0
    dropped_eval_overlap: int = 0

    def as_json(self) -> dict[str, int]:
        return asdict(self)


def parse_columns(value: Any, field: str = "") -> Columns:
    """Raises Refusal E-DATA-005 for anything but {input, output} or {messages}, each the name of a column."""
    shape = "{input: COLUMN, output: COLUMN} or {messages: COLUMN}"
    good = isinstance(value, Mapping) and set(value) in ({"input", "output"}, {"messages"})
    if not good or not all(isinstance(v, str) and v.strip() for v in value.values()):
        raise Refusal("E-DATA-005", "is no mapping of columns", field=field, found=visible(str(value)), allowed=shape)
    return Columns(**value)


def identity(text: str) -> str:
    """What two inputs have in common that count as one: case and white space make no difference."""
    return " ".join(text.split()).lower()


def text_of(value: Any) -> str:
    """A value as text without its outer white space: text itself, numbers and truth values as JSON writes them; "" for all else."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value).strip()
    return ""


def pair_of(row: Mapping[str, Any], columns: Columns) -> tuple[str, str] | None:
    """(question, answer) of a row, None where one of them is missing."""
    if columns.messages:
        return _turns(row.get(columns.messages))
    pair = text_of(row.get(columns.input)), text_of(row.get(columns.output))
    return pair if all(pair) else None


def _turns(value: Any) -> tuple[str, str] | None:
    turns = [m for m in value if isinstance(m, Mapping)] if isinstance(value, list) else []
    for index, message in enumerate(turns[:-1]):
        if message.get("role") == "user":
            answer = turns[index + 1]
            pair = text_of(message.get("content")), text_of(answer.get("content"))
            return pair if answer.get("role") == "assistant" and all(pair) else None
    return None


class Seen:
    """Inputs that were met, by a digest of 16 bytes each."""

    def __init__(self) -> None:
        self._known: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, text: str) -> bool:
        return self._key(text) in self._known

    def add(self, text: str) -> bool:
        """True if the input is new."""
        before = len(self._known)
        self._known.add(self._key(text))
        return len(self._known) > before

    @staticmethod
    def _key(text: str) -> bytes:
        return hashlib.blake2b(identity(text).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def map_evaluation(
    rows: Iterable[Mapping[str, Any]], columns: Columns, counts: Counts, seen: Seen, *, split: str = "validation"
) -> Iterator[dict[str, str]]:
    """Rows of an evaluation split; their inputs are added to `seen`. Raises Refusal E-DATA-005, E-DATA-002 as `map_training`."""

    def takes(question: str, fresh: Seen) -> bool:
        if not fresh.add(question):
            counts.dropped_duplicate_inputs += 1
            return False
        seen.add(question)
        return True

    own = Seen()
    return _map(rows, columns, counts, split, lambda question: takes(question, own))


def map_training(
    rows: Iterable[Mapping[str, Any]], columns: Columns, counts: Counts, seen: Seen, *, split: str = "train"
) -> Iterator[dict[str, str]]:
    """Rows of the training split without those whose input `seen` has. At the end raises Refusal E-DATA-005 for a column that no row had (the ones
    that are there are listed), E-DATA-002 where nothing was kept.
    """

    def takes(question: str) -> bool:
        if question in seen:
            counts.dropped_eval_overlap += 1
            return False
        return True

    return _map(rows, columns, counts, split, takes)


def _map(
    rows: Iterable[Mapping[str, Any]], columns: Columns, counts: Counts, split: str, takes: Callable[[str], bool]
) -> Iterator[dict[str, str]]:
    missing, have = set(columns.names), {}  # type: ignore[var-annotated]
    for row in rows:
        counts.records += 1
        if missing:
            missing -= row.keys()
            if len(have) < SHOWN:
                have.update(dict.fromkeys(map(str, row)))
        pair = pair_of(row, columns)
        if pair is None:
            counts.skipped_missing_fields += 1
        elif takes(pair[0]):
            counts.kept += 1
            yield {"prompt": pair[0], "completion": pair[1]}
    if missing and counts.records:
        name = min(missing)
        allowed = ", ".join(visible(n) for n in sorted(have)[:SHOWN]) or "none"
        raise Refusal(
            "E-DATA-005", f"no row of {split} has a column {name!r}", field=split, found=name, allowed=allowed
        )
    if not counts.kept:
        found = ", ".join(f"{k} {v}" for k, v in counts.as_json().items())
        raise Refusal("E-DATA-002", f"no row of {split} is left", field=split, found=found)
