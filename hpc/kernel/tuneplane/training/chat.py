"""One row as token ids and the place where its answer begins, by the model's own chat template.

The loss covers the last assistant turn (or the completion) only. SmolLM2-like templates have no generation marks, so the answer is what follows
the rendered prompt: the prompt's ids must be an exact prefix of the whole row's ids, and a row where they are not is refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tuneplane.training.refusals import Reason
from tuneplane.training.rows import Message, Row


@dataclass(frozen=True)
class Encoded:
    """Token ids of a row; the loss covers `ids[prompt:]`. `cut` says that an over-long row was shortened."""

    ids: list[int]
    prompt: int
    cut: bool = False


class Encoder:
    """Rows to ids with one tokenizer and one over-long policy.

    `error` refuses a longer row. `skip` leaves it out. `truncate` drops the oldest turns behind the system text, a question with its answers
    at a time, then cuts the end of the answer; the system text and the last question are never cut, and a row that has no room for an answer
    beside them is left out and counted as `unfit`.
    """

    def __init__(self, tokenizer: Any, max_length: int, over_long: str, source: str = "rows") -> None:
        self.tokenizer, self.max_length, self.over_long, self.source = tokenizer, max_length, over_long, source
        self.has_template = bool(getattr(tokenizer, "chat_template", None))
        plain = tokenizer("a", add_special_tokens=False)["input_ids"]
        dressed = tokenizer("a", add_special_tokens=True)["input_ids"]
        self._begin: list[int] = next(
            (dressed[:i] for i in range(len(dressed)) if dressed[i : i + len(plain)] == plain), []
        )
        self._end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]

    def encode(self, rows: Sequence[Row]) -> list[Encoded | Reason | str]:
        """A result a row: its ids, a reason to refuse, or `skipped` / `unfit`."""
        return [got[0] if isinstance(got, list) else got for got in self.encode_groups([(row,) for row in rows])]

    def encode_groups(self, groups: Sequence[Sequence[Row]]) -> list[list[Encoded] | Reason | str]:
        """A result a group of answers to one prompt: the ids of each, or one reason, `skipped` or `unfit` for all of them.

        `truncate` drops the same turns from all, so that they still answer one prompt.
        """
        joined = iter(self._joined([row for rows in groups for row in rows]))
        return [self._fit(rows, [next(joined) for _ in rows]) for rows in groups]

    def _joined(self, rows: Sequence[Row]) -> list[Encoded | Reason]:
        pairs: list[tuple[str, str] | Reason] = []
        for row in rows:
            try:
                pairs.append(self._texts(row))
            except Exception as exc:  # a template raises what it likes (jinja2's raise_exception among it)
                pairs.append(self._reason(row, "E-TRAIN-022", f"the chat template refuses it: {exc}"))
        texts = [text for pair in pairs if isinstance(pair, tuple) for text in pair]
        ids = iter(self.tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else [])
        return [
            pair if isinstance(pair, Reason) else self._join(row, next(ids), next(ids))
            for row, pair in zip(rows, pairs, strict=True)
        ]

    def prompts(self, rows: Sequence[Row]) -> list[list[int] | Reason]:
        """The ids of questions without their answers, as `encode` begins them: `messages` up to the question, or `prompt`."""
        texts: list[str | Reason] = []
        for row in rows:
            try:
                texts.append(self._asked(row.messages) if row.messages else row.prompt)
            except Exception as exc:  # a template raises what it likes
                texts.append(self._reason(row, "E-TRAIN-022", f"the chat template refuses it: {exc}"))
        plain = [text for text in texts if isinstance(text, str)]
        ids = iter(self.tokenizer(plain, add_special_tokens=False)["input_ids"] if plain else [])
        return [
            text if isinstance(text, Reason) else next(ids) if row.messages else self._begin + next(ids)
            for row, text in zip(rows, texts, strict=True)
        ]

    def _asked(self, messages: Sequence[Message]) -> str:
        if not self.has_template:
            raise ValueError("the model's tokenizer has none; give `prompt` and `completion` as text instead")
        return self._render(messages, ask=True)

    def _texts(self, row: Row) -> tuple[str, str]:
        """The prompt and the whole row as text; of an open row both are the prompt."""
        if not row.messages:
            return row.prompt, row.prompt + row.completion
        if row.open:
            return (self._asked(row.messages),) * 2
        return self._asked(row.messages[:-1]), self._render(row.messages, ask=False)

    def _render(self, messages: Sequence[Message], *, ask: bool) -> str:
        text = self.tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=ask)
        if not isinstance(text, str):
            raise TypeError("it does not give text")
        return text

    def _join(self, row: Row, prompt: list[int], whole: list[int]) -> Encoded | Reason:
        if not row.messages:
            prompt, whole = self._begin + prompt, self._begin + whole + ([] if row.open else self._end)
        if whole[: len(prompt)] != prompt:
            return self._reason(
                row, "E-TRAIN-023", "its prompt is no exact token prefix of the whole row", at=prompt, of=whole
            )
        if len(whole) <= max(1, len(prompt)) and not row.open:  # nothing foretells a row's first token
            return self._reason(row, "E-TRAIN-023", "it has no token to learn from")
        return Encoded(whole, len(prompt))

    def _reason(
        self, row: Row, code: str, message: str, at: list[int] | None = None, of: list[int] | None = None
    ) -> Reason:
        found = ""
        if at is not None and of is not None:
            first = next((i for i, (a, b) in enumerate(zip(at, of, strict=False)) if a != b), min(len(at), len(of)))
            window = slice(max(0, first - 3), first + 3)
            found = f"token {first}: prompt {self._show(at[window])}, row {self._show(of[window])}"
        return Reason(code, message, field=f"{row.file or self.source}:{row.line}", found=found)

    def _show(self, ids: list[int]) -> str:
        return repr([self.tokenizer.decode([i]) for i in ids])

    def _fit(self, rows: Sequence[Row], found: Sequence[Encoded | Reason]) -> list[Encoded] | Reason | str:
        got: list[Encoded] = []
        for one in found:
            if isinstance(one, Reason):
                return one
            got.append(one)
        longest = max(len(g.ids) for g in got)
        if longest <= self.max_length:
            return got
        if self.over_long == "skip":
            return "skipped"
        if self.over_long == "error":
            reason = self._reason(rows[0], "E-TRAIN-024", "longer than max_length")
            return replace(reason, found=f"{longest} tokens", allowed=f"{self.max_length} tokens")
        return self._shorten(rows, got)

    def _shorten(self, rows: Sequence[Row], got: list[Encoded]) -> list[Encoded] | Reason | str:
        talks = [row.messages for row in rows]
        while max(len(g.ids) for g in got) > self.max_length:
            fewer = [shorter for talk in talks if (shorter := without_oldest_turn(talk)) is not None]
            if len(fewer) < len(talks):
                break
            talks, got = fewer, []
            for row, talk in zip(rows, talks, strict=True):
                shorter_row = replace(row, messages=talk)
                texts = self._texts(shorter_row)
                prompt, whole = (self.tokenizer(t, add_special_tokens=False)["input_ids"] for t in texts)
                joined = self._join(shorter_row, prompt, whole)
                if isinstance(joined, Reason):
                    return joined
                got.append(joined)
        if max(g.prompt + (not row.open) for g, row in zip(got, rows, strict=True)) > self.max_length:
            return "unfit"
        return [Encoded(g.ids[: self.max_length], g.prompt, cut=True) for g in got]


def without_oldest_turn(messages: tuple[Message, ...]) -> tuple[Message, ...] | None:
    """The conversation without its oldest question and what answered it; None when only the last question and its answer are left.

    System messages always stay.
    """
    starts = [i for i, m in enumerate(messages) if m["role"] == "user"]
    if len(starts) < 2:
        return None
    first, second = starts[0], starts[1]
    return tuple(m for i, m in enumerate(messages) if m["role"] == "system" or not first <= i < second)
