"""KTO: learning from single answers that were judged good or bad, against what the model would say of mismatched answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tuneplane.training.engine import Engine
from tuneplane.training.forward import Row, answer_logits, token_logps
from tuneplane.training.reference import Reference, logps
from tuneplane.training.rowmethod import RowMethod, Share, Whole
from tuneplane.training.tables import KtoSettings
from tuneplane.training.tokens import Tokens

_TRIES = 64


def judged_loss(gains: Any, good: Any, kl: float, settings: KtoSettings) -> Any:
    """Loss of each answer, of its gain log p/p_ref and its label (Ethayarajh et al. 2024).

    good: desirable_weight (1 - s(beta (gain - kl))); bad: undesirable_weight (1 - s(beta (kl - gain))).
    """
    import torch

    pull = settings.beta * torch.where(good, gains - kl, kl - gains)
    weight = torch.where(good, settings.desirable_weight, settings.undesirable_weight)
    return weight * (1 - torch.sigmoid(pull))


def partner(tokens: Tokens, index: int) -> int:
    """The example whose answer is put behind the prompt of `index`: half the file away, the next one with another prompt."""
    count = tokens.examples
    prompt = _prompt(tokens, index)
    for step in range(min(_TRIES, count)):
        other = (index + count // 2 + step) % count
        if _prompt(tokens, other) != prompt:
            return other
    return (index + count // 2) % count


def _prompt(tokens: Tokens, index: int) -> bytes:
    ids, prompt = tokens.row(index)
    return bytes(ids[:prompt].tobytes())


class Kto(RowMethod):
    """The method of `deepspeed/kto`: the loss of a step is the mean over the answers of the global batch.

    Before it, one number is estimated for the whole global batch: kl, the mean gain of mismatched answers (a prompt with another row's answer) under
    the model without dropout, at least 0, through which no gradient flows. Metrics: `kl`, `reward_desirable` and `reward_undesirable` (means of
    beta gain), `reward_margin`. Held-out answers give `accuracy`, too: the share of their pairs of a good and a bad answer where the good one has
    the higher reward; equal ones count half.
    """

    name = "kto"
    settings: KtoSettings
    reference: Reference
    _kl = 0.0
    _seen: dict[int, float] | None = None

    def prepare(self, engine: Engine, reference: Reference) -> None:
        """Ask the reference what it must know before the first step. A collective, before a checkpoint is loaded."""
        self.reference = reference
        for tokens in (self.train, self.held_out):
            if tokens is not None:
                key = tokens.meta["key"]
                reference.know(engine, key, len(tokens), tokens.row, self.batch)
                reference.know(engine, f"{key} mismatched", len(tokens), self._mismatch(tokens), self.batch)

    def _mismatch(self, tokens: Tokens) -> Any:
        """A function from an example to its prompt with its partner's answer, at most max_length ids."""
        import numpy as np

        def row(index: int) -> Row:
            ids, prompt = tokens.row(index)
            other, answer = tokens.row(partner(tokens, index))
            return np.concatenate([ids[:prompt], other[answer:]])[: self.settings.max_length], prompt

        return row

    def facts(self) -> list[str]:
        good = int(self.train.labels.sum())
        return [f"{good} answers are labelled good, {self.train.examples - good} bad"]

    def before(
        self, engine: Engine, tokens: Tokens, shares: Sequence[Share], whole: Whole, between: Callable[[], None]
    ) -> None:
        """Estimate kl over all of `whole`."""
        row, gained = self._mismatch(tokens), 0.0
        for share in shares:
            between()
            batch = self.batch([row(i) for i in share.ids])
            then = self.reference.logps(engine, f"{tokens.meta['key']} mismatched", share.ids, batch)
            with engine.asking():
                now = logps(engine, batch)
            gained += float((now - then).sum()) if share.counted else 0.0
        self._kl = max(0.0, self.peers.total([gained])[0] / whole.examples)

    def lost(self, engine: Engine, tokens: Tokens, ids: Sequence[int], whole: Whole) -> tuple[Any, dict[str, float]]:
        import torch

        batch = self.batch([tokens.row(i) for i in ids])
        then = self.reference.logps(engine, tokens.meta["key"], ids, batch)
        gains = token_logps(*answer_logits(engine, batch)).sum(-1) - then
        good = torch.tensor([bool(tokens.labels[i]) for i in ids], device=gains.device)
        loss = judged_loss(gains, good, self._kl, self.settings).sum()
        rewards = self.settings.beta * gains.detach()
        if self._seen is not None:
            self._seen.update(zip(ids, rewards.tolist(), strict=True))
        sides = {"reward_desirable": good, "reward_undesirable": ~good}
        return loss, {"kl": self._kl * len(ids), **{name: float(rewards[at].sum()) for name, at in sides.items()}}

    def means(self, sums: Mapping[str, float], whole: Whole) -> dict[str, float]:
        out = {"kl": sums["kl"] / whole.examples}
        counts = {"reward_desirable": whole.good, "reward_undesirable": whole.examples - whole.good}
        out |= {name: sums[name] / count for name, count in counts.items() if count}
        if len(out) == 3:
            out["reward_margin"] = out["reward_desirable"] - out["reward_undesirable"]
        return out

    def validate(self, engine: Engine, between: Callable[[], None]) -> dict[str, float]:
        if self.held_out is None:
            return {}
        self._seen = {}
        found = super().validate(engine, between)
        everyone = {i: r for part in self.peers.gather(list(self._seen.items())) for i, r in part}
        self._seen = None
        sides: dict[bool, list[float]] = {True: [], False: []}
        for index, reward in everyone.items():
            sides[bool(self.held_out.labels[index])].append(reward)
        return found | ({"accuracy": pair_accuracy(sides[True], sides[False])} if sides[True] and sides[False] else {})


def pair_accuracy(good: Sequence[float], bad: Sequence[float]) -> float:
    """The share of all pairs of one from `good` and one from `bad` where the good one is higher; equal ones count half."""
    import numpy as np

    below = np.sort(np.asarray(bad))
    wins = np.searchsorted(below, good, "left").sum() + np.searchsorted(below, good, "right").sum()
    return float(wins / 2 / (len(good) * len(bad)))
