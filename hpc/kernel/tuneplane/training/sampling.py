"""Answers drawn from the model in training: batched, with a cache of keys and values, each with random numbers of its own.

A sample's numbers follow from (seed, step, its place in the order) alone, so that a resumed run draws what the uninterrupted one would have
drawn, and another number of ranks the same up to rounding.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tuneplane.training.forward import Model


@dataclass(frozen=True)
class Sample:
    """An answer: its ids (the end token included, where it came), and the log-probability of each when it was drawn."""

    ids: list[int]
    logps: list[float]
    ended: bool


@dataclass(frozen=True)
class Sampler:
    """Draws at a temperature (0 = always the most likely token) at most `longest` tokens.

    `agree` tells, of whether this rank goes on, whether it must (under ZeRO-3 all ranks make the same forwards). `beat` is called at each token.
    """

    end_id: int | None
    pad_id: int
    temperature: float
    longest: int
    device: Any
    agree: Callable[[bool], bool] = bool
    beat: Callable[[], None] = lambda: None

    def draw(self, model: Model, prompts: Sequence[Sequence[int]], numbers: Any) -> list[Sample]:
        """One answer a prompt. `numbers` are uniform in [0, 1), of shape (prompts, longest). Modes and gradients are the caller's business."""
        import torch

        ids, mask = self._padded(prompts)
        uniform = torch.as_tensor(numbers, dtype=torch.float64, device=self.device)
        more: dict[str, Any] = {"logits_to_keep": 1} if model.accepts("logits_to_keep") else {}
        name = "cache" if model.accepts("cache") else "past_key_values"  # transformers renamed it
        drawn: list[Any] = []
        logps: list[Any] = []
        live = torch.ones(len(prompts), dtype=torch.bool, device=self.device)
        positions = (mask.cumsum(-1) - 1).clamp_min(0)
        for place in range(self.longest):
            self.beat()
            out = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True, **more)
            more[name] = getattr(out, name)
            token, logp = self._choose(out.logits[:, -1], uniform[:, place])
            drawn.append(torch.where(live, token, -1))
            logps.append(logp)
            if self.end_id is not None:
                live = live & (token != self.end_id)
            if place + 1 == self.longest or not self.agree(bool(live.any())):
                break
            ids, positions = token[:, None], positions[:, -1:] + 1
            mask = torch.cat([mask, mask.new_ones(len(prompts), 1)], -1)
        return self._samples(torch.stack(drawn, 1).tolist(), torch.stack(logps, 1).tolist())

    def _padded(self, prompts: Sequence[Sequence[int]]) -> tuple[Any, Any]:
        """Left-padded ids and their mask."""
        import torch

        width = max(len(p) for p in prompts)
        ids = torch.tensor([[self.pad_id] * (width - len(p)) + [int(i) for i in p] for p in prompts])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        return ids.to(self.device), mask.to(self.device)

    def _choose(self, logits: Any, uniform: Any) -> tuple[Any, Any]:
        """The token that the uniform number falls on, and its log-probability in fp32 at the temperature."""
        import torch

        logps = torch.log_softmax(logits.float() / (self.temperature or 1.0), -1)
        if self.temperature:
            chances = logps.double().exp()
            if torch.are_deterministic_algorithms_enabled():
                chances = chances.cpu()  # sums of this kind have no deterministic form on a GPU
            below = chances.cumsum(-1)
            point = (uniform.to(below.device) * below[:, -1])[:, None]
            token = torch.searchsorted(below, point, right=True)[:, 0].to(logits.device)
            token = token.clamp_max(logits.shape[-1] - 1)
        else:
            token = logps.argmax(-1)
        return token, logps.gather(-1, token[:, None])[:, 0]

    def _samples(self, drawn: list[list[int]], logps: list[list[float]]) -> list[Sample]:
        out = []
        for ids, values in zip(drawn, logps, strict=True):
            kept = [i for i in ids if i >= 0]
            out.append(Sample(kept, values[: len(kept)], kept[-1] == self.end_id))
        return out


def uniform(seed: int, step: int, places: Sequence[int], longest: int) -> Any:
    """Random numbers in [0, 1), a row a sample: a function of its seed, step and place. numpy's frozen legacy stream."""
    import numpy as np

    def row(place: int) -> Any:
        digest = hashlib.sha256(f"tuneplane sample {seed} {step} {place}".encode()).digest()
        return np.random.RandomState(np.frombuffer(digest, dtype="<u4")).random_sample(longest)

    return np.stack([row(place) for place in places])
