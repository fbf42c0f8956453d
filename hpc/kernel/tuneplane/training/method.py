"""What the loop asks of a training method. Supervised fine-tuning is one; preference and reinforcement methods have the same shape."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from tuneplane.training.engine import Engine


@dataclass(frozen=True)
class Outcome:
    """One optimiser step as this rank saw it.

    loss: this rank's share of the step's loss; the shares of all ranks add up to it. tokens: what all ranks together trained on, without
    padding. sums: further values that add up over the ranks. means: makes the numbers of metrics.jsonl of those sums over all ranks.
    """

    loss: float
    grad_norm: float
    tokens: int
    sums: dict[str, float] = field(default_factory=dict)
    means: Callable[[dict[str, float]], dict[str, float]] = dict


def valid_norm(norm: float) -> bool:
    """Whether a gradient norm is one. DeepSpeed says -1 at some ZeRO stages, and NaN or infinity at others, where the gradients are none."""
    return 0 <= norm < math.inf


class Method(Protocol):
    """One way to train. `step` is everything between two step edges: for a reinforcement method, rollouts too."""

    name: str
    total_steps: int

    def step(self, engine: Engine, step: int, learning_rate: float) -> Outcome:
        """Do step `step` (from 1) on every rank."""
        ...

    def validate(self, engine: Engine, between: Callable[[], None]) -> dict[str, float]:
        """Means over held-out rows, equal on all ranks, `loss` among them where the method has one there; empty without such rows.

        Draws no random numbers: an attempt that goes on from here may have to do it again. `between` is a collective, called before each part
        of the work; it raises Warned on all ranks where the validation is not to be ended.
        """
        ...

    def state(self, step: int) -> dict[str, Any]:
        """What the next step depends on, beside weights, optimiser and random numbers; JSON. Taken after `step`."""
        ...

    def resume(self, state: dict[str, Any], step: int) -> None:
        """Take up `state(step)` of an earlier attempt. Raises Refused if going on would not continue it."""
        ...

    def fingerprint(self) -> dict[str, Any]:
        """What the state is bound to (digests of the data, counts); JSON. A checkpoint of another fingerprint is refused."""
        ...
