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
    """Right-padded rows, or sequences of several rows, on a device. `labels` outside the answers are -100; no answer begins before token `first`.

    `asked` are the places before an answer's token in any sequence: of packed rows only those need logits.
    """

    inputs: dict[str, Any]
    labels: Any
    first: int
    asked: Any = None


def collate(rows: Sequence[Row], pad_id: int, device: Any) -> Batch:
    """`input_ids`, `attention_mask` and labels of shape (rows, longest row)."""
    import numpy as np
    import torch

    width = max(len(ids) for ids, _ in rows)
    inputs: Any = np.full((len(rows), width), pad_id, dtype=np.int64)
    labels: Any = np.full((len(rows), width), IGNORED, dtype=np.int64)
    mask: Any = np.zeros((len(rows), width), dtype=np.int64)
    for line, (ids, prompt) in enumerate(rows):
        learnt = max(prompt, 1)  # nothing foretells the first token
        inputs[line, : len(ids)] = ids
        labels[line, learnt : len(ids)] = ids[learnt:]
        mask[line, : len(ids)] = 1
    return Batch(
        {"input_ids": torch.from_numpy(inputs).to(device), "attention_mask": torch.from_numpy(mask).to(device)},
        torch.from_numpy(labels).to(device),
        min(max(prompt, 1) for _, prompt in rows),
    )


def collate_packed(groups: Sequence[Sequence[Row]], pad_id: int, device: Any) -> Batch:
    """`input_ids`, `position_ids` and labels of shape (groups, longest group): the rows of a group stand one behind the other in one sequence.

    Positions begin anew with each row, and padding is a row of its own; without an `attention_mask` transformers reads from them that no row attends
    to another. The first token of a row never is a label: it would be foretold by the row before it.
    """
    import numpy as np
    import torch

    width = max(sum(len(ids) for ids, _ in rows) for rows in groups)
    inputs: Any = np.full((len(groups), width), pad_id, dtype=np.int64)
    labels: Any = np.full((len(groups), width), IGNORED, dtype=np.int64)
    positions: Any = np.zeros((len(groups), width), dtype=np.int64)
    first = width
    for line, rows in enumerate(groups):
        at = 0
        for ids, prompt in rows:
            learnt = max(prompt, 1)
            inputs[line, at : at + len(ids)] = ids
            labels[line, at + learnt : at + len(ids)] = ids[learnt:]
            positions[line, at : at + len(ids)] = np.arange(len(ids))
            first, at = min(first, at + learnt), at + len(ids)
        positions[line, at:] = np.arange(width - at)
    asked = np.nonzero((labels[:, 1:] != IGNORED).any(0))[0]
    made = [torch.from_numpy(array).to(device) for array in (inputs, positions, labels, asked)]
    return Batch({"input_ids": made[0], "position_ids": made[1]}, made[2], first, made[3])


def answer_logits(model: Model, batch: Batch) -> tuple[Any, Any]:
    """Logits (rows, n, vocabulary) from the first answer token of the batch on, and the ids that they should give (rows, n).

    Of packed rows n counts the places before an answer's token alone.
    """
    if batch.asked is not None:
        fewer = {"logits_to_keep": batch.asked} if model.accepts("logits_to_keep") else {}
        logits = model(**batch.inputs, use_cache=False, **fewer).logits
        return logits if fewer else logits[:, batch.asked], batch.labels[:, batch.asked + 1]
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

    # One row of logits a token: with more dimensions torch has no deterministic form on a GPU.
    flat = logits.reshape(-1, logits.shape[-1]).float()
    lost = torch.nn.functional.cross_entropy(flat, wanted.reshape(-1), ignore_index=IGNORED, reduction="none")
    return -lost.view(wanted.shape)
