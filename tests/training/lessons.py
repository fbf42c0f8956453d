"""Short runs of one method after the other on the tiny model, made once a session; what all of them must show."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ranks import ROOT, Attempt, Run, assert_continues
from tuneplane.training.sums import held_out_path

STEPS = 8
FORMS = {
    "dpo": "preference",
    "rm": "preference",
    "kto": "judged",
    "sft": "answer",
    "distill": "answer",
    "grpo": "prompt",
}
GOLDEN = ROOT / "tests" / "data" / "training" / "golden.json"
REWARDS = """
import random

def digits(prompts, completions, **columns):
    texts = [c[0]["content"] for c in completions]
    return [sum(ch.isdigit() for ch in t) / max(1, len(t)) for t in texts]

def short(prompts, completions, answer, **columns):
    assert len(answer) == len(prompts) == len(completions)
    return [-0.01 * len(c[0]["content"]) + 1e-6 * random.random() for c in completions]
"""
SHARED = {"gradient_accumulation": 2, "max_steps": STEPS, "save_steps": STEPS // 2, "keep_checkpoints": 3}
LORA = {"zero_stage": 2, "lora_rank": 4, "lora_dropout": 0.1}
FULL = {"zero_stage": 2, "learning_rate": 1e-3}
RPO = FULL | {"rpo_alpha": 0.5}
CENTRED = FULL | {"center_rewards_coefficient": 0.01}
LEANING = FULL | {"max_steps": 16, "undesirable_weight": 1.3}
LONGER = FULL | {"max_steps": 24}


class Lessons:
    """`straight` makes the uninterrupted run of a method and settings, or gives the one that was made."""

    def __init__(
        self, folders: pytest.TempPathFactory, tiny: Path, wrong_sums: Callable[[str], Path], warm: Any
    ) -> None:
        self._folders, self.tiny, self._rows, self._warm = folders, tiny, wrong_sums, warm
        self._made: dict[str, Attempt] = {}

    def rows(self, method: str) -> Path:
        return self._rows(FORMS[method])

    def run(self, method: str, **settings: Any) -> Run:
        rows = self.rows(method)
        made = Run(self._folders.mktemp(method) / "run", self.tiny, rows, method, **(SHARED | settings))
        made.validation, made.warm = held_out_path(rows), self._warm
        (made.root / "work").mkdir(parents=True)
        (made.root / "work" / "rewards.py").write_text(REWARDS)  # only grpo looks at it
        return made

    def straight(self, method: str, **settings: Any) -> Attempt:
        key = json.dumps([method, settings], sort_keys=True)
        if key not in self._made:
            self._made[key] = self.run(method, **settings).complete()
        return self._made[key]

    def assert_resumes(
        self, method: str, before_it: Callable[[Run], Any] = lambda run: None, **settings: Any
    ) -> Attempt:
        """A run that goes on from the straight run's checkpoint in its middle computes the rest to the last bit."""
        whole, later = self.straight(method, **settings), self.run(method, **settings)
        half = later.hyperparams["max_steps"] // 2
        for name in ("cache", f"checkpoints/step-{half:09d}"):
            shutil.copytree(whole.root / name, later.root / name)
        before_it(later)
        attempt = later.complete()
        assert_continues(attempt, whole, half)
        return attempt


def golden(name: str, more: float = 1.0) -> Any:
    """Committed values of a run, approximately: they were measured with the versions that the file names, on another CPU perhaps.

    `more` widens the tolerance.
    """
    value = json.loads(GOLDEN.read_text())
    return pytest.approx(value["losses"][name], rel=more * value["relative_tolerance"], abs=1e-6)


def plain_losses(
    model: Any, rows: int, loss_of: Callable[[list[int]], Any], learning_rate: float, batch: int = 8
) -> list[float]:
    """The losses of a plain loop: no DeepSpeed, one process, the whole global batch at once, torch's AdamW, a linear schedule."""
    import torch
    from tuneplane.training.sampler import Order

    optimiser = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    order, losses = Order(rows, 3), []
    for step in range(STEPS):
        loss = loss_of(order.ids(step * batch, batch))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.param_groups[0]["lr"] = learning_rate * (1 - step / STEPS)
        optimiser.step()
        optimiser.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def encoded(rows: Path, form: str, tokenizer: Any) -> list[list[tuple[list[int], int]]]:
    """Ids and length of the prompt of each answer of each example."""
    from sources import file_source
    from tuneplane.training.chat import Encoder
    from tuneplane.training.rows import read_examples

    groups = Encoder(tokenizer, 128, "error").encode_groups([e.rows for e in read_examples(file_source(rows), form)])
    return [[(g.ids, g.prompt) for g in group] for group in groups if isinstance(group, list)]


def plain_logp(model: Any, ids: list[int], prompt: int) -> Any:
    """Log-probability of the ids behind the prompt, by log_softmax, one row at a time."""
    import torch

    logps = torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0].double(), -1)
    return sum(logps[place - 1, ids[place]] for place in range(prompt, len(ids)))
