"""Rows through a model: padding, the logits of the answers, their log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

IGNORED = -100
Row = tuple[Any, int]
"""Token ids and how many of them are prompt."""


class Model(Protocol):
    """What gives logits: the engine, or a teacher."""

    def __call__(self, **inputs: Any) -> Any: ...

    def accepts(self, name: str) -> bool: ...


@dataclass(frozen=True)
class Batch:
    """Right-padded rows on a device. `labels` outside the answers are -100; no answer begins before token `first`."""

    inputs: dict[str, Any]
    labels: Any
    first: int


def collate(rows: Sequence[Row], pad_id: int, device: Any) -> Batch:
    """`input_ids`, `attention_mask` and labels of shape (rows, longest row)."""
    import numpy as np
    import torch

    width = max(len(ids) for ids, _ in rows)
    inputs: Any = np.full((len(rows), width), pad_id, dtype=np.int64)
    labels: Any = np.full((len(rows), width), IGNORED, dtype=np.int64)
    mask: Any = np.zeros((len(rows), width), dtype=np.int64)
    for line, (ids, prompt) in enumerate(rows):
        inputs[line, : len(ids)] = ids
        labels[line, prompt : len(ids)] = ids[prompt:]
        mask[line, : len(ids)] = 1
    return Batch(
        {"input_ids": torch.from_numpy(inputs).to(device), "attention_mask": torch.from_numpy(mask).to(device)},
        torch.from_numpy(labels).to(device),
        min(prompt for _, prompt in rows),
    )


def answer_logits(model: Model, batch: Batch) -> tuple[Any, Any]:
    """Logits (rows, n, vocabulary) from the first answer token of the batch on, and the ids that they should give (rows, n)."""
    kept = batch.labels.shape[1] - max(0, batch.first - 1)
    fewer = {"logits_to_keep": kept} if model.accepts("logits_to_keep") else {}
    logits = model(**batch.inputs, use_cache=False, **fewer).logits[:, -kept:][:, :-1]
    return logits, batch.labels[:, batch.labels.shape[1] - kept + 1 :]


def summed_loss(logits: Any, wanted: Any) -> Any:
    """Cross-entropy in fp32, summed over all answer tokens."""
    import torch

    return torch.nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]).float(), wanted.reshape(-1), ignore_index=IGNORED, reduction="sum"
    )


def token_logps(logits: Any, wanted: Any) -> Any:
    """Log-probability in fp32 of each answer token, (rows, n); 0 outside the answers."""
    import torch

    return -torch.nn.functional.cross_entropy(
        logits.transpose(1, 2).float(), wanted, ignore_index=IGNORED, reduction="none"
    )
