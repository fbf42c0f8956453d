"""Direct preference optimisation: the chosen answer should gain on the rejected one, measured against the initial model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tuneplane.training.engine import Engine
from tuneplane.training.forward import answer_logits, token_logps
from tuneplane.training.reference import Reference
from tuneplane.training.rowmethod import RowMethod, Whole
from tuneplane.training.tables import DpoSettings
from tuneplane.training.tokens import Tokens


def pair_loss(margin: Any, settings: DpoSettings) -> Any:
    """Loss of each pair, of the margin h = (log p/p_ref of the chosen answer) - (the same of the rejected one).

    sigmoid: -(1 - e) log s(beta h) - e log s(-beta h) with e the label smoothing (Rafailov et al. 2023; Mitchell 2023). ipo: (h - 1/(2 beta))^2,
    where h is made of means a token (Azar et al. 2023).
    """
    from torch.nn.functional import logsigmoid

    if settings.loss_type == "ipo":
        return (margin - 1 / (2 * settings.beta)) ** 2
    reward, smooth = settings.beta * margin, settings.label_smoothing
    return -(1 - smooth) * logsigmoid(reward) - smooth * logsigmoid(-reward)


class Preference(RowMethod):
    """The method of `deepspeed/dpo`: the loss of a step is the mean over the pairs of the global batch.

    With `rpo_alpha` the mean loss over the chosen answers' tokens of the global batch is added, times that weight. Metrics: `reward_chosen` and
    `reward_rejected` are beta log p/p_ref, `reward_margin` is their difference, `accuracy` the share of pairs where it is above 0.
    """

    name = "dpo"
    settings: DpoSettings
    reference: Reference

    def prepare(self, engine: Engine, reference: Reference) -> None:
        """Ask the reference what it must know before the first step. A collective, before a checkpoint is loaded."""
        self.reference = reference
        for tokens in (self.train, self.held_out):
            if tokens is not None:
                reference.know(engine, tokens.meta["key"], len(tokens), tokens.row, self.batch)

    def lost(self, engine: Engine, tokens: Tokens, ids: Sequence[int], whole: Whole) -> tuple[Any, dict[str, float]]:
        numbers = [tokens.rows_of(i)[side] for side in (0, 1) for i in ids]
        batch = self.batch([tokens.row(n) for n in numbers])
        before = self.reference.logps(engine, tokens.meta["key"], numbers, batch)
        per_token = token_logps(*answer_logits(engine, batch))
        now = per_token.sum(-1)
        gains = now - before
        if self.settings.loss_type == "ipo":
            gains = gains / (batch.labels >= 0).sum(-1)
        chosen, rejected = gains.chunk(2)
        loss = pair_loss(chosen - rejected, self.settings).sum()
        if self.settings.rpo_alpha:
            loss = loss - self.settings.rpo_alpha * now[: len(ids)].sum() * (whole.examples / whole.chosen)
        good, bad = (self.settings.beta * g.detach() for g in (chosen, rejected))
        sums = {
            "reward_chosen": good.sum(),
            "reward_rejected": bad.sum(),
            "reward_margin": (good - bad).sum(),
            "accuracy": (good > bad).sum(),
            "logp_chosen": now[: len(ids)].detach().sum(),
            "logp_rejected": now[len(ids) :].detach().sum(),
        }
        return loss, {name: float(value) for name, value in sums.items()}
