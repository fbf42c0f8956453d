"""Rows of a JSONL file: `{"messages": [...]}` or `{"prompt": …, "completion": …}`, checked line by line. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tuneplane.record.canonical import CanonicalError, parse_json
from tuneplane.training.refusals import Reason, Refused, refuse

MAX_FAULTS = 20
"""Faulty rows that are named before the reading stops."""

Message = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One example. `line` counts from 1. Conversations have `messages` (the last one is the answer), plain text has the two others."""

    line: int
    messages: tuple[Message, ...] = ()
    prompt: str = ""
    completion: str = ""


def read_rows(path: str | os.PathLike[str]) -> Iterator[Row]:
    """Every row in file order. Raises Refused, which names up to `MAX_FAULTS` faulty lines; empty lines are passed over."""
    name, wrong = os.path.basename(path), []
    try:
        stream = open(path, "rb")  # noqa: SIM115 - closed below, open's own error is worded apart
    except OSError as exc:
        raise refuse("E-TRAIN-020", f"cannot be read: {exc.strerror}", field=os.fspath(path)) from exc
    with stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            try:
                row = parse_row(parse_json(line), number)
            except (CanonicalError, ValueError) as exc:
                wrong.append(Reason("E-TRAIN-021", str(exc), field=f"{name}:{number}"))
                if len(wrong) >= MAX_FAULTS:
                    raise Refused(wrong) from None
                continue
            if not wrong:
                yield row
    if wrong:
        raise Refused(wrong)


def parse_row(value: Any, line: int) -> Row:
    """One parsed line as a Row. Raises ValueError with the reason. Further keys (ids, sources) are left alone."""
    if not isinstance(value, dict):
        raise ValueError("not an object")
    has_messages, has_pair = "messages" in value, "prompt" in value or "completion" in value
    if has_messages == has_pair:
        raise ValueError("needs either `messages` or both `prompt` and `completion`")
    if has_messages:
        return Row(line, messages=_messages(value["messages"], "messages", answer=True))
    prompt, completion = value.get("prompt"), value.get("completion")
    if isinstance(prompt, list) and isinstance(completion, list):
        turns = _messages(prompt, "prompt", answer=False) + _messages(completion, "completion", answer=True)
        if len(completion) != 1:
            raise ValueError("`completion` holds more than one message")
        return Row(line, messages=turns)
    if not isinstance(prompt, str) or not isinstance(completion, str):
        raise ValueError("`prompt` and `completion` must both be text, or both be lists of messages")
    if not completion:
        raise ValueError("`completion` is empty")
    return Row(line, prompt=prompt, completion=completion)


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
