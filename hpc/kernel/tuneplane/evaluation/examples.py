"""Rows as questions with opaque ids, and their answers apart. Standard library only.

What asks the model reads questions only: an id is a digest of the question, so it tells nothing of the answer and is the same in every evaluation of
the same question, wherever it stands in the file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from tuneplane.evaluation.scoring import normalised
from tuneplane.record.canonical import canonical_bytes, parse_json
from tuneplane.record.digest import digest_json
from tuneplane.training.refusals import Reason, Refused, refuse
from tuneplane.training.rows import MAX_FAULTS, Message, Row, read_rows

_ID_DOMAIN = "tuneplane/eval-question/v1"


@dataclass(frozen=True)
class Question:
    """What a model is asked: `messages` for the chat template, or plain `prompt` text. `line` counts from 1."""

    id: str
    line: int
    messages: tuple[Message, ...] = ()
    prompt: str = ""

    def as_json(self) -> dict[str, Any]:
        asked: dict[str, Any] = {"messages": list(self.messages)} if self.messages else {"prompt": self.prompt}
        return {"id": self.id, "line": self.line, **asked}


@dataclass(frozen=True)
class Examples:
    """The questions of an evaluation and the expected answers by id; `total` rows were there, `repeated` of them asked something again."""

    questions: tuple[Question, ...]
    expected: dict[str, str]
    total: int
    repeated: int = 0

    @property
    def sampled(self) -> bool:
        return len(self.questions) < self.total - self.repeated


def question_id(asked: Sequence[Message] | str) -> str:
    """The opaque id of a question: 20 hexadecimal digits."""
    return digest_json([_ID_DOMAIN, asked if isinstance(asked, str) else list(asked)])[7:27]


def read_examples(
    path: str | os.PathLike[str], *, max_rows: int = 0, seed: int = 0, repeats: str = "error"
) -> Examples:
    """Every row of a file, or a seeded sample of `max_rows` in the file's order.

    Two rows whose questions are equal but for case and white space are refused (E-EVAL-003), since they would count twice; with `repeats="first"`
    the first one stays. Raises Refused: E-TRAIN-020/021 for the rows, E-EVAL-002 for none.
    """
    rows, seen, again = [], dict[str, int](), []
    for row in read_rows(path):
        key = _identity(row)
        if key in seen:
            again.append((row.line, seen[key]))
        else:
            seen[key] = row.line
            rows.append(row)
    name = os.path.basename(path)
    if again and repeats == "error":
        raise Refused(
            Reason("E-EVAL-003", f"asks what line {first} asks", field=f"{name}:{line}")
            for line, first in again[:MAX_FAULTS]
        )
    if not rows:
        raise refuse("E-EVAL-002", "no row is in it", field=os.fspath(path))
    total = len(rows) + len(again)
    if max_rows and max_rows < len(rows):
        picked = Random(f"tuneplane evaluation rows {seed}").sample(range(len(rows)), max_rows)  # noqa: S311
        rows = [rows[i] for i in sorted(picked)]
    pairs = [_split(row) for row in rows]
    return Examples(tuple(q for q, _ in pairs), {q.id: answer for q, answer in pairs}, total, len(again))


def _identity(row: Row) -> str:
    turns = row.messages[:-1] if row.messages else ()
    return json.dumps([[m["role"], normalised(m["content"])] for m in turns] if turns else normalised(row.prompt))


def _split(row: Row) -> tuple[Question, str]:
    if not row.messages:
        return Question(question_id(row.prompt), row.line, prompt=row.prompt), row.completion
    asked = row.messages[:-1]
    return Question(question_id(asked), row.line, messages=asked), str(row.messages[-1]["content"])


def inputs_bytes(questions: Iterable[Question]) -> bytes:
    """The evaluator's input file."""
    return b"".join(canonical_bytes(q.as_json()) + b"\n" for q in questions)


def read_inputs(path: str | os.PathLike[str]) -> list[Question]:
    """The questions of an input file, as `inputs_bytes` wrote it."""
    with open(path, "rb") as stream:
        values = [parse_json(line) for line in stream]
    return [Question(v["id"], v["line"], tuple(v.get("messages", ())), v.get("prompt", "")) for v in values]
