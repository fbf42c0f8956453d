"""Knowledge distillation: the student's next-token distributions are drawn to those of a frozen teacher, on the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tuneplane.training.engine import Engine
from tuneplane.training.forward import IGNORED, answer_logits, summed_loss
from tuneplane.training.rowmethod import RowMethod, Whole
from tuneplane.training.tables import DistillSettings
from tuneplane.training.teacher import Teacher
from tuneplane.training.tokens import Tokens

_LEAST = 1e-12


def divergence(student: Any, teacher: Any, settings: DistillSettings) -> Any:
    """The divergence of each row of logits, (rows, vocabulary) each, with p the teacher's and q the student's distribution at the temperature.

    forward_kl: KL(p||q). reverse_kl: KL(q||p). jsd: b KL(p||m) + (1 - b) KL(q||m), m = b p + (1 - b) q, with b = jsd_beta (Agarwal et al. 2024). With
    `top_k` the teacher's k most likely tokens are classes of their own and all others are one class together.
    """
    import torch

    p, q = (torch.log_softmax(x.float() / settings.temperature, -1) for x in (teacher, student))
    if 0 < settings.top_k < p.shape[-1]:
        chosen = p.topk(settings.top_k, -1).indices
        p, q = (_with_rest(x.gather(-1, chosen)) for x in (p, q))
    if settings.divergence == "forward_kl":
        return _kl(p, q)
    if settings.divergence == "reverse_kl":
        return _kl(q, p)
    b = torch.tensor(settings.jsd_beta, device=p.device)
    m = torch.logaddexp(p + b.log(), q + (-b).log1p())
    return b * _kl(p, m) + (1 - b) * _kl(q, m)


def _kl(p: Any, q: Any) -> Any:
    return (p.exp() * (p - q)).sum(-1)


def _with_rest(logps: Any) -> Any:
    """The log-probabilities and, as a last class, the logarithm of what is left of 1."""
    import torch

    rest = (1 - logps.exp().sum(-1, keepdim=True)).clamp_min(_LEAST).log()
    return torch.cat([logps, rest], -1)


class Distill(RowMethod):
    """The method of `deepspeed/distill`: the loss of a step is the mean over all answer tokens of the global batch.

    A token's loss is alpha T^2 divergence + (1 - alpha) cross-entropy, with T the temperature. Metrics: `divergence` and `cross_entropy`, means a
    token, and `agreement`, the share of tokens where both models find the same one most likely.
    """

    name = "distill"
    settings: DistillSettings
    teacher: Teacher

    def divisor(self, whole: Whole) -> float:
        return whole.targets

    def lost(self, engine: Engine, tokens: Tokens, ids: Sequence[int], whole: Whole) -> tuple[Any, dict[str, float]]:
        batch = self.batch_of(tokens, ids)
        taught, _ = answer_logits(self.teacher, batch)
        logits, wanted = answer_logits(engine, batch)
        at, width = wanted != IGNORED, min(logits.shape[-1], taught.shape[-1])
        student, teacher = logits[at][:, :width], taught[at][:, :width]
        apart, own = divergence(student, teacher, self.settings).sum(), summed_loss(logits, wanted)
        alpha = self.settings.alpha
        loss = alpha * self.settings.temperature**2 * apart + (1 - alpha) * own
        sums = {
            "divergence": apart.detach(),
            "cross_entropy": own.detach(),
            "agreement": (student.argmax(-1) == teacher.argmax(-1)).sum(),
        }
        return loss, {name: float(value) for name, value in sums.items()}

    def fingerprint(self) -> dict[str, Any]:
        return super().fingerprint() | {"teacher": self.teacher.digest}
