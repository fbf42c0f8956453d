"""Rows with other columns, as the rows that methods read. Pure, a row at a time; standard library only, so that both rooms share the rule.

Three mappings: `input` and `output` name a question's and its answer's column; `messages` names one that holds a conversation, of which the first
question and the answer that follows it are taken, with the system text before it; the other roles (`prompt`, `completion`, `chosen`, `rejected`,
`label`) give columns the names that methods read. What is skipped and dropped is counted, a column that no row has is refused, and no
evaluation row is ever trained on: an evaluation split keeps the first of rows with one question, training drops every question of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from tuneplane.contract.datarows import DataFault

SHOWN: Final = 30
PAIR: Final = ("input", "output")
TALK: Final = "messages"
NAMES: Final = ("prompt", "completion", "chosen", "rejected", "label")
_SHAPE: Final = "{input: COLUMN, output: COLUMN}, {messages: COLUMN}, or columns for some of prompt, completion, chosen, rejected, label"


@dataclass(frozen=True)
class Columns:
    """Which columns are what, by role."""

    roles: Mapping[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.roles.values())

    @property
    def talk(self) -> str:
        """The column with the conversation, "" for the other mappings."""
        return self.roles.get(TALK, "")

    @property
    def pair(self) -> bool:
        return PAIR[0] in self.roles


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
    """Raises DataFault E-DATA-005 for anything but one of the three mappings, each value the name of a column."""
    names = set(value) if isinstance(value, Mapping) else set()
    good = names in (set(PAIR), {TALK}) or (names and names <= set(NAMES))
    if not good or not all(isinstance(v, str) and v.strip() for v in value.values()):
        raise DataFault("E-DATA-005", "is no mapping of columns", field=field, found=str(value)[:200], allowed=_SHAPE)
    return Columns(dict(value))


def identity(text: str) -> str:
    """What two questions have in common that count as one: case and white space make no difference."""
    return " ".join(text.split()).lower()


def text_of(value: Any) -> str:
    """A value as text without its outer white space: text itself, numbers and truth values as JSON writes them; "" for all else."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value).strip()
    return ""


def map_row(row: Mapping[str, Any], columns: Columns) -> dict[str, Any] | None:
    """The row as methods read it, None where a mapped column holds nothing. Columns that are only renamed keep those beside them."""
    if columns.talk:
        return _conversation(row.get(columns.talk))
    if columns.pair:
        return _messages([], *(text_of(row.get(columns.roles[role])) for role in PAIR))
    found = {role: row.get(column) for role, column in columns.roles.items()}
    if any(value is None or value == "" for value in found.values()):
        return None
    return {name: value for name, value in row.items() if name not in columns.names and name != TALK} | found


def _conversation(value: Any) -> dict[str, Any] | None:
    turns = [m for m in value if isinstance(m, Mapping)] if isinstance(value, list) else []
    for index, message in enumerate(turns[:-1]):
        if message.get("role") == "user":
            answer = turns[index + 1]
            before = [_message("system", text) for m in turns[:index] if (text := _system(m))]
            said = text_of(message.get("content")), text_of(answer.get("content"))
            return _messages(before, *said) if answer.get("role") == "assistant" else None
    return None


def _system(message: Mapping[str, Any]) -> str:
    return text_of(message.get("content")) if message.get("role") == "system" else ""


def _messages(before: list[dict[str, str]], question: str, answer: str) -> dict[str, Any] | None:
    if not question or not answer:
        return None
    return {"messages": [*before, _message("user", question), _message("assistant", answer)]}


def _message(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def question_of(row: Mapping[str, Any]) -> str:
    """What a row asks: the users' texts before its answer, or the prompt as text; "" where nothing of the kind is there."""
    asked = row.get("prompt")
    if asked is None:
        talk = row.get("messages") or row.get("chosen")
        asked = talk[:-1] if isinstance(talk, list) else None
    if isinstance(asked, list):
        return "\n".join(text_of(m.get("content")) for m in asked if isinstance(m, Mapping) and m.get("role") == "user")
    return text_of(asked)


class Seen:
    """Questions that were met, by a digest of 16 bytes each."""

    def __init__(self) -> None:
        self._known: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, text: str) -> bool:
        return self._key(text) in self._known

    def add(self, text: str) -> bool:
        """True if the question is new."""
        before = len(self._known)
        self._known.add(self._key(text))
        return len(self._known) > before

    @staticmethod
    def _key(text: str) -> bytes:
        return hashlib.blake2b(identity(text).encode("utf-8", "surrogatepass"), digest_size=16).digest()


class Mapper:
    """The rows of one split, mapped one after the other and counted. `columns` None: rows stay as they are.

    An evaluation split (`evaluates`) keeps the first of rows with one question and adds its questions to `seen`; training takes none that `seen` has.
    """

    def __init__(self, columns: Columns | None, seen: Seen, *, split: str, evaluates: bool) -> None:
        self.counts, self._columns, self._seen, self._split = Counts(), columns, seen, split
        self._own = Seen() if evaluates else None
        self._missing, self._have = set(columns.names if columns else ()), dict[str, None]()

    def take(self, row: Mapping[str, Any]) -> dict[str, Any] | None:
        """The row to learn from or to measure on, None for one that is skipped or dropped."""
        self.counts.records += 1
        self._note(row)
        found = map_row(row, self._columns) if self._columns else dict(row)
        if found is None:
            self.counts.skipped_missing_fields += 1
            return None
        if not self._takes(question_of(found)):
            return None
        self.counts.kept += 1
        return found

    def _takes(self, question: str) -> bool:
        if self._own is None:
            dropped = bool(question) and question in self._seen
            self.counts.dropped_eval_overlap += dropped
            return not dropped
        self._seen.add(question)
        fresh = self._own.add(question) or not question
        self.counts.dropped_duplicate_inputs += not fresh
        return fresh

    def _note(self, row: Mapping[str, Any]) -> None:
        if self._missing:
            self._missing -= row.keys()
            if len(self._have) < SHOWN:
                self._have.update(dict.fromkeys(map(str, row)))

    def finish(self) -> Counts:
        """After the last row: the counts. Raises DataFault E-DATA-005 for a column that no row had (those that are there are listed), E-DATA-002
        where nothing was kept.
        """
        if self._missing and self.counts.records:
            name = min(self._missing)
            allowed = ", ".join(n[:100] for n in sorted(self._have)[:SHOWN]) or "none"
            text = f"no row of {self._split} has a column {name!r:.100}"
            raise DataFault("E-DATA-005", text, field=self._split, found=name, allowed=allowed)
        if not self.counts.kept:
            found = ", ".join(f"{k} {v}" for k, v in self.counts.as_json().items())
            raise DataFault("E-DATA-002", f"no row of {self._split} is left", field=self._split, found=found)
        return self.counts


def refuse_missing(columns: Columns, have: Iterable[str], split: str) -> None:
    """Raises DataFault E-DATA-005 where a mapped column is not among `have`. Pure; for whoever knows the columns without the rows."""
    known = set(have)
    if lost := sorted(set(columns.names) - known):
        allowed = ", ".join(n[:100] for n in sorted(known)[:SHOWN]) or "none"
        text = f"no row of {split} has a column {lost[0]!r:.100}"
        raise DataFault("E-DATA-005", text, field=split, found=lost[0], allowed=allowed)
