"""Whether a model keeps the rows of one sequence apart: asked of the model itself, before the first step.

A model may take `position_ids` and yet let its rows attend to each other (an attention that builds no mask from them, a state that runs through the
sequence). What it answers is compared with what it answers to a row alone, and to a row that stands behind another one.
"""

from __future__ import annotations

from typing import Any

from tuneplane.training.forward import Model, collate, collate_packed
from tuneplane.training.refusals import Refused, refuse
from tuneplane.training.tokens import Tokens

_LONGEST = 24
_NOISE = {"fp32": 1e-4, "bf16": 5e-2}
"""What rounding may change between sequences of other lengths, as a share of the largest logit."""
_STILL = 1e-5
_FIELD = "hyperparams.packing"


def prove(model: Model, tokens: Tokens, pad_id: int, device: Any, precision: str) -> None:
    """Raise Refused E-TRAIN-019 if rows in one sequence are not answered as each of them alone. A collective: every rank asks the same.

    Two rows of the data are asked, at most 24 tokens of each. Modes and gradients are the caller's business.
    """
    if not model.accepts("position_ids"):
        raise _cannot("the model takes no position_ids")
    first, second = (tokens.row(i % len(tokens))[0][:_LONGEST] for i in (0, 1))
    other = (first[::-1] + 1) % (int(max(first.max(), second.max())) + 1)
    alone = _logits(model, collate([(second, 0)], pad_id, device))
    behind = [
        _logits(model, collate_packed([[(row, 0), (second, 0)]], pad_id, device))[:, len(row) :]
        for row in (first, other)
    ]
    noise = _NOISE[precision] * float(alone.abs().max())
    if (apart := float((behind[0] - alone).abs().max())) > noise:
        raise _cannot("a row is answered otherwise behind another one than alone", apart, noise)
    # Of equal shape, so nothing but a leak can make a difference.
    still = _STILL * float(alone.abs().max())
    if (apart := float((behind[0] - behind[1]).abs().max())) > still:
        raise _cannot("a row's answers depend on the row before it", apart, still)


def _logits(model: Model, batch: Any) -> Any:
    return model(**batch.inputs, use_cache=False).logits.float()


def _cannot(why: str, found: float | None = None, allowed: float | None = None) -> Refused:
    parts = {} if found is None or allowed is None else {"found": f"{found:.3g}", "allowed": f"{allowed:.3g}"}
    return refuse("E-TRAIN-019", f"this model cannot train on packed rows: {why}", field=_FIELD, **parts)
