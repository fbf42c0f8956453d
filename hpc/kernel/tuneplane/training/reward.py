"""Reward modelling: a score a row, such that the chosen answer of a pair has the higher one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tuneplane.training.engine import Engine
from tuneplane.training.rowmethod import RowMethod, Whole
from tuneplane.training.tables import RewardSettings
from tuneplane.training.tokens import Tokens


def score_loss(chosen: Any, rejected: Any, settings: RewardSettings) -> Any:
    """Loss of each pair of scores: -log s(chosen - rejected) (Bradley and Terry), and the weight of centring times (chosen + rejected)^2."""
    from torch.nn.functional import logsigmoid

    return -logsigmoid(chosen - rejected) + settings.center_rewards_coefficient * (chosen + rejected) ** 2


class Reward(RowMethod):
    """The method of `deepspeed/rm`: the loss of a step is the mean over the pairs of the global batch.

    Metrics: mean scores `score_chosen` and `score_rejected`, their difference `score_margin`, and `accuracy`, the share of pairs whose
    chosen answer has the higher score.
    """

    name = "rm"
    settings: RewardSettings

    def lost(self, engine: Engine, tokens: Tokens, ids: Sequence[int], whole: Whole) -> tuple[Any, dict[str, float]]:
        batch = self.batch([tokens.row(tokens.rows_of(i)[side]) for side in (0, 1) for i in ids])
        chosen, rejected = engine(**batch.inputs).logits[:, 0].float().chunk(2)
        good, bad = chosen.detach(), rejected.detach()
        sums = {
            "score_chosen": good.sum(),
            "score_rejected": bad.sum(),
            "score_margin": (good - bad).sum(),
            "accuracy": (good > bad).sum(),
        }
        loss = score_loss(chosen, rejected, self.settings).sum()
        return loss, {name: float(value) for name, value in sums.items()}
