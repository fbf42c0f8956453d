"""Supervised fine-tuning: next-token loss on the answers, an equal weight for each answer token of the whole global batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tuneplane.training.engine import Engine
from tuneplane.training.forward import answer_logits, summed_loss
from tuneplane.training.rowmethod import RowMethod, Whole
from tuneplane.training.tokens import Tokens


class Supervised(RowMethod):
    """The method of `deepspeed/sft`: the loss of a step is the mean over all answer tokens of the global batch."""

    name = "sft"

    def divisor(self, whole: Whole) -> float:
        return whole.targets

    def lost(self, engine: Engine, tokens: Tokens, ids: Sequence[int], whole: Whole) -> tuple[Any, dict[str, float]]:
        """Cross-entropy in fp32, summed over the answer tokens of these rows. Logits are made from the first answer token on only."""
        return summed_loss(*answer_logits(engine, self.batch_of(tokens, ids))), {}
