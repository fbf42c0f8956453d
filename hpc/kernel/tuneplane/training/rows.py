"""Rows of JSONL and Parquet files in one of four forms, checked row by row. Standard library only, but for Parquet.

    answer      {"messages": [...]} or {"prompt": …, "completion": …}
    preference  {"prompt": …, "chosen": …, "rejected": …}, or `chosen` and `rejected` as whole conversations that differ in their last message
    judged      an answer, and `"label": true` (good) or `false` (bad)
    prompt      {"prompt": …}, to be answered by the model; what else the object holds is for reward functions

`prompt` and its answers are all text, or all lists of messages.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tuneplane.contract.mapping import Mapper
from tuneplane.training.refusals import Reason, Refused
from tuneplane.training.source import Source, raw_rows

MAX_FAULTS = 20
"""Faulty rows that are named before the reading stops."""

Message = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One example. `line` counts from 1 in `file`. Conversations have `messages` (the last one is the answer), plain text has the two others.

    A row that is `open` has no answer yet.
    """

    line: int
    messages: tuple[Message, ...] = ()
    prompt: str = ""
    completion: str = ""
    open: bool = False
    file: str = ""


@dataclass(frozen=True)
class Example:
    """What a method takes at once: answers to one prompt, and for a judged answer whether it is good.

    `rows` holds one answer, or of a preference the chosen and the rejected one; `value` the whole object where that is wanted.
    """

    rows: tuple[Row, ...]
    good: bool = True
    value: Any = None

    @property
    def line(self) -> int:
        return self.rows[0].line


def read_rows(path: str | os.PathLike[str]) -> Iterator[Row]:
    """Every row of one file of the form `answer`, as `read_examples` gives them."""
    return (example.rows[0] for example in read_examples(Source("rows", (Path(path),), ""), "answer"))


def read_examples(source: Source, form: str, mapper: Mapper | None = None) -> Iterator[Example]:
    """Every row in order of the files. Raises Refused, which names up to `MAX_FAULTS` faulty rows; empty lines are passed over.

    With a `mapper` rows have its columns; those that it skips or drops are not given.
    """
    parse = FORMS[form]
    wrong: list[Reason] = []
    for raw in raw_rows(source):
        try:
            if raw.fault:
                raise ValueError(raw.fault)
            example = _example(raw.value, raw.line, parse, mapper)
        except ValueError as exc:
            wrong.append(Reason("E-TRAIN-021", str(exc), field=f"{raw.file}:{raw.line}"))
            if len(wrong) >= MAX_FAULTS:
                break
            continue
        if example is not None and not wrong:
            rows = tuple(replace(row, file=raw.file) for row in example.rows)
            yield replace(example, rows=rows)
    if wrong:
        raise Refused(wrong)


def _example(value: Any, line: int, parse: Callable[[Any, int], Example], mapper: Mapper | None) -> Example | None:
    if mapper is None:
        return parse(value, line)
    if not isinstance(value, dict):
        raise ValueError("not an object")
    found = mapper.take(value)
    return None if found is None else parse(found, line)


def parse_row(value: Any, line: int) -> Row:
    """One parsed line as a Row. Raises ValueError with the reason. Further keys (ids, sources) are left alone."""
    if not isinstance(value, dict):
        raise ValueError("not an object")
    has_messages, has_pair = "messages" in value, "prompt" in value or "completion" in value
    if has_messages == has_pair:
        raise ValueError("needs either `messages` or both `prompt` and `completion`")
    if has_messages:
        return Row(line, messages=_messages(value["messages"], "messages", answer=True))
    return _pair(value, "completion", line)


def _pair(value: dict[str, Any], name: str, line: int) -> Row:
    """`prompt` and the answer `name` as one row."""
    prompt, answer = value.get("prompt"), value.get(name)
    if isinstance(prompt, list) and isinstance(answer, list):
        turns = _messages(prompt, "prompt", answer=False) + _messages(answer, name, answer=True)
        if len(answer) != 1:
            raise ValueError(f"`{name}` holds more than one message")
        return Row(line, messages=turns)
    if not isinstance(prompt, str) or not isinstance(answer, str):
        raise ValueError(f"`prompt` and `{name}` must both be text, or both be lists of messages")
    if not answer:
        raise ValueError(f"`{name}` is empty")
    return Row(line, prompt=prompt, completion=answer)


def parse_preference(value: Any, line: int) -> Example:
    """One parsed line as the chosen and the rejected answer to one prompt. Raises ValueError with the reason."""
    if not isinstance(value, dict):
        raise ValueError("not an object")
    if "chosen" not in value or "rejected" not in value:
        raise ValueError("needs both `chosen` and `rejected`")
    one, other = (_answer(value, name, line) for name in ("chosen", "rejected"))
    if one.messages[:-1] != other.messages[:-1]:
        raise ValueError("`chosen` and `rejected` differ before their last message: they answer different prompts")
    if one == other:
        raise ValueError("`chosen` and `rejected` are equal")
    return Example((one, other))


def _answer(value: dict[str, Any], name: str, line: int) -> Row:
    """The row that the answer `name` makes with its prompt; without a prompt the answer is the whole conversation."""
    if "prompt" in value:
        return _pair(value, name, line)
    turns = _messages(value[name], name, answer=True)
    if len(turns) < 2:
        raise ValueError(f"`{name}` holds no question, and there is no `prompt`")
    return Row(line, messages=turns)


def parse_judged(value: Any, line: int) -> Example:
    """One parsed line as an answer and its label. Raises ValueError with the reason."""
    row = parse_row(value, line)
    if not isinstance(value.get("label"), bool):
        raise ValueError("`label` is neither true nor false")
    return Example((row,), value["label"])


def parse_prompt(value: Any, line: int) -> Example:
    """One parsed line as a prompt without an answer, and the whole line beside it. Raises ValueError with the reason."""
    if not isinstance(value, dict):
        raise ValueError("not an object")
    prompt = value.get("prompt")
    if isinstance(prompt, list):
        return Example((Row(line, messages=_messages(prompt, "prompt", answer=False), open=True),), value=value)
    if not isinstance(prompt, str) or not prompt:
        raise ValueError("`prompt` is neither text nor a list of messages")
    return Example((Row(line, prompt=prompt, open=True),), value=value)


FORMS: dict[str, Callable[[Any, int], Example]] = {
    "answer": lambda value, line: Example((parse_row(value, line),)),
    "preference": parse_preference,
    "judged": parse_judged,
    "prompt": parse_prompt,
}


def _messages(value: Any, name: str, *, answer: bool) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"`{name}` is not a list of messages")
    for index, message in enumerate(value):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str) or not message["role"]:
            raise ValueError(f"`{name}[{index}]` is not a message with a role")
        if not isinstance(message.get("content"), str):
            raise ValueError(f"`{name}[{index}].content` is not text")
    if answer and (value[-1]["role"] != "assistant" or not value[-1]["content"]):
        raise ValueError(f"`{name}` does not end with an answer of the assistant")
    return tuple(value)
