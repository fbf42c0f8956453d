"""Answers in batches: long questions first, each batch padded on the left, greedy or sampled with random numbers of each question's own.

An answer does not depend on what else is in its batch, but for the last digits of floating point: a batch of another size may decide a near tie
between two tokens otherwise.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tuneplane.evaluation.answers import Prediction
from tuneplane.evaluation.examples import Question
from tuneplane.evaluation.loading import Loaded
from tuneplane.evaluation.settings import Settings
from tuneplane.training.chat import Encoder
from tuneplane.training.refusals import Reason, Refused, refuse
from tuneplane.training.rows import MAX_FAULTS, Row


@dataclass(frozen=True)
class Asked:
    """A question as token ids."""

    id: str
    ids: list[int]


def encode(questions: Sequence[Question], loaded: Loaded, settings: Settings, source: str) -> list[Asked]:
    """Every question by the model's template, longest first. Raises Refused E-TRAIN-022, E-EVAL-031, or E-EVAL-035 for one without room."""
    rows = [Row(q.line, messages=q.messages, prompt=q.prompt) for q in questions]
    wrong: list[Reason] = []
    asked: list[Asked] = []
    room = None if loaded.context is None else loaded.context - settings.max_new_tokens
    if room is not None and room < 1:
        allowed = f"less than the model's context of {loaded.context} tokens"
        raise refuse(
            "E-EVAL-031", "leaves no room", field="max_new_tokens", found=str(settings.max_new_tokens), allowed=allowed
        )
    for question, ids in zip(questions, Encoder(loaded.tokenizer, 1, "error", source).prompts(rows), strict=True):
        if isinstance(ids, Reason):
            wrong.append(ids)
        elif not ids or (room is not None and len(ids) > room):
            wrong.append(_unfit(question, len(ids), room, source))
        else:
            asked.append(Asked(question.id, ids))
        if len(wrong) >= MAX_FAULTS:
            break
    if wrong:
        raise Refused(wrong)
    return sorted(asked, key=lambda a: (-len(a.ids), a.id))


def _unfit(question: Question, tokens: int, room: int | None, source: str) -> Reason:
    field = f"{os.path.basename(source)}:{question.line}"
    if not tokens:
        return Reason("E-EVAL-035", "has no token to begin with", field)
    allowed = f"{room} tokens, so that max_new_tokens fit behind it"
    return Reason("E-EVAL-035", "longer than the model's context allows", field, f"{tokens} tokens", allowed)


def answers(asked: Sequence[Asked], loaded: Loaded, settings: Settings) -> Iterator[list[Prediction]]:
    """Predictions batch by batch. A batch that does not fit into the GPU's memory is halved, and so are all after it."""
    import torch

    size, begin = settings.batch_size, 0
    while begin < len(asked):
        batch = asked[begin : begin + size]
        try:
            found = answer(batch, loaded, settings)
        except torch.cuda.OutOfMemoryError:
            if size == 1:
                raise
            torch.cuda.empty_cache()
            size = max(1, len(batch) // 2)
            continue
        begin += len(batch)
        yield found


def answer(batch: Sequence[Asked], loaded: Loaded, settings: Settings) -> list[Prediction]:
    """One batch."""
    import torch

    begun = time.perf_counter()
    longest = max(len(a.ids) for a in batch)
    pad = loaded.tokenizer.pad_token_id
    filler = 0 if pad is None else pad
    ids = torch.tensor([[filler] * (longest - len(a.ids)) + a.ids for a in batch], device=loaded.device)
    mask = torch.tensor([[0] * (longest - len(a.ids)) + [1] * len(a.ids) for a in batch], device=loaded.device)
    processors = [sampler(batch, loaded.device, settings)] if settings.temperature > 0 else None
    with torch.inference_mode():
        out = loaded.network.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=settings.max_new_tokens,
            do_sample=False,
            use_cache=True,
            logits_processor=processors,
        )
    made = [until_end(row, loaded.ends) for row in out[:, longest:].tolist()]
    texts = loaded.tokenizer.batch_decode([ids for ids, _ in made], skip_special_tokens=True)
    took = round((time.perf_counter() - begun) * 1000)
    return [
        Prediction(a.id, _encodable(text), took, len(ids), not ended)
        for a, text, (ids, ended) in zip(batch, texts, made, strict=True)
    ]


def until_end(ids: Sequence[int], ends: Sequence[int]) -> tuple[list[int], bool]:
    """The tokens up to the first end token, that one included, and whether there was one."""
    at = next((i for i, token in enumerate(ids) if token in ends), None)
    return (list(ids), False) if at is None else (list(ids[: at + 1]), True)


def _encodable(text: str) -> str:
    """Text that UTF-8 can hold: a tokenizer may decode half of a pair."""
    return text.encode("utf-8", "replace").decode("utf-8")


def sampler(batch: Sequence[Asked], device: Any, settings: Settings) -> Any:
    """A logits processor after which the largest value is a sample: Gumbel noise from one generator a question.

    So a sample depends on the seed and the question, not on the batch that the question came with.
    """
    import torch

    generators = []
    for asked in batch:
        digest = hashlib.sha256(f"tuneplane sampling/{settings.seed}/{asked.id}".encode()).digest()
        generators.append(torch.Generator(device).manual_seed(int.from_bytes(digest[:7], "big")))

    def process(_ids: Any, logits: Any) -> Any:
        logits = logits.float() / settings.temperature
        if settings.top_p < 1:
            logits = _nucleus(logits, settings.top_p)
        draws = torch.stack([torch.empty(logits.shape[1], device=device).exponential_(generator=g) for g in generators])
        return logits - draws.log()

    return process


def _nucleus(logits: Any, top_p: float) -> Any:
    """Logits of the likeliest tokens whose probabilities reach `top_p` together; the likeliest one always stays."""
    ordered, places = logits.sort(dim=-1, descending=True)
    before = ordered.softmax(dim=-1).cumsum(dim=-1) - ordered.softmax(dim=-1)
    dropped = (before >= top_p).scatter(1, places, before >= top_p)
    return logits.masked_fill(dropped, float("-inf"))
