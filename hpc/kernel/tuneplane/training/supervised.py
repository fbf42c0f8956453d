"""Supervised fine-tuning: next-token loss on the answers, an equal weight for each answer token of the whole global batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tuneplane.training.engine import Engine
from tuneplane.training.method import Outcome
from tuneplane.training.peers import Peers
from tuneplane.training.refusals import refuse
from tuneplane.training.sampler import Order, steps_for
from tuneplane.training.settings import Settings
from tuneplane.training.tokens import Tokens
from tuneplane.training.watchdog import Watchdog

_IGNORED = -100


class Supervised:
    """The method of `deepspeed/sft`.

    The loss of a step is the sum over all answer tokens of the global batch divided by their number, whatever the micro batch, the
    accumulation and the number of ranks: each rank knows the number without asking, since it knows the whole order.
    """

    name = "sft"

    def __init__(
        self, train: Tokens, held_out: Tokens | None, settings: Settings, peers: Peers, pad_id: int, watchdog: Watchdog
    ) -> None:
        self.train, self.held_out, self.settings, self.peers = train, held_out, settings, peers
        self._pad, self._watchdog = pad_id, watchdog
        self.on_first_batch: Callable[[], None] = lambda: None
        self.order = Order(len(train), settings.seed)
        self._round = settings.micro_batch_size * peers.place.world_size
        self.global_batch = self._round * settings.gradient_accumulation
        self.total_steps = settings.max_steps or steps_for(len(train), settings.epochs, self.global_batch)

    def position(self, step: int) -> int:
        """How many rows all ranks have taken once `step` is done."""
        return step * self.global_batch

    def rows_of(self, step: int) -> list[list[int]]:
        """Row numbers of step `step`: one list a micro round, which the ranks share in order of rank."""
        ids = self.order.ids(self.position(step - 1), self.global_batch)
        return [ids[i : i + self._round] for i in range(0, len(ids), self._round)]

    def step(self, engine: Engine, step: int, learning_rate: float) -> Outcome:
        rounds = self.rows_of(step)
        targets = sum(self.train.targets(i) for ids in rounds for i in ids)
        tokens = sum(self.train.length(i) for ids in rounds for i in ids)
        # Gradients are averaged over the ranks; the global mean over tokens needs their sum.
        scale = self.peers.place.world_size / targets
        lost = 0.0
        for ids in rounds:
            self._watchdog.again()
            summed = self._summed_loss(engine, self.train, self._mine(ids))
            engine.backward(summed * scale)
            lost += float(summed.detach())
        return Outcome(lost / targets, engine.step(learning_rate), tokens)

    def _mine(self, ids: Sequence[int]) -> Sequence[int]:
        size = self.settings.micro_batch_size
        return ids[self.peers.place.rank * size : (self.peers.place.rank + 1) * size]

    def collate(self, tokens: Tokens, ids: Sequence[int]) -> dict[str, Any]:
        """Right-padded `input_ids`, `attention_mask` and `labels` of the rows, on the device; labels outside the answer are -100."""
        import numpy as np
        import torch

        rows = [tokens.row(i) for i in ids]
        width = max(len(r) for r, _ in rows)
        inputs: Any = np.full((len(rows), width), self._pad, dtype=np.int64)
        labels: Any = np.full((len(rows), width), _IGNORED, dtype=np.int64)
        mask: Any = np.zeros((len(rows), width), dtype=np.int64)
        for line, (row, prompt) in enumerate(rows):
            inputs[line, : len(row)] = row
            labels[line, prompt : len(row)] = row[prompt:]
            mask[line, : len(row)] = 1
        device = self.peers.device
        return {
            "input_ids": torch.from_numpy(inputs).to(device),
            "attention_mask": torch.from_numpy(mask).to(device),
            "labels": torch.from_numpy(labels).to(device),
        }

    def _summed_loss(self, engine: Engine, tokens: Tokens, ids: Sequence[int]) -> Any:
        """Cross-entropy in fp32, summed over the answer tokens of these rows. Logits are made from the first answer token on only."""
        import torch

        batch = self.collate(tokens, ids)
        self.on_first_batch()
        labels = batch.pop("labels")
        kept = labels.shape[1] - max(0, min(tokens.row(i)[1] for i in ids) - 1)
        fewer = {"logits_to_keep": kept} if engine.accepts("logits_to_keep") else {}
        logits = engine(**batch, use_cache=False, **fewer).logits[:, -kept:][:, :-1]
        wanted = labels[:, labels.shape[1] - kept + 1 :]
        return torch.nn.functional.cross_entropy(
            logits.reshape(-1, logits.shape[-1]).float(), wanted.reshape(-1), ignore_index=_IGNORED, reduction="sum"
        )

    def validate(self, engine: Engine) -> float | None:
        """Mean loss over the answer tokens of all held-out rows. Every rank makes the same number of forwards (ZeRO-3 needs that)."""
        import torch

        held_out = self.held_out
        if held_out is None:
            return None
        lost, count, size = 0.0, 0, self.settings.micro_batch_size
        engine.train(False)
        with torch.no_grad():
            for start in range(0, len(held_out), self._round):
                self._watchdog.again()
                first = start + self.peers.place.rank * size
                mine = range(first, min(first + size, len(held_out)))
                summed = float(self._summed_loss(engine, held_out, mine or [0]))
                if mine:
                    lost, count = lost + summed, count + sum(held_out.targets(i) for i in mine)
        engine.train()
        total, number = self.peers.total([lost, count])
        return total / number

    def state(self, step: int) -> dict[str, Any]:
        position = self.position(step)
        return {
            "samples": position,
            "epoch": position // len(self.train),
            "next_samples_sha256": self.order.digest(position),
        }

    def resume(self, state: dict[str, Any], step: int) -> None:
        if state != self.state(step):
            raise refuse(
                "E-TRAIN-044",
                "the next samples would not be those that the checkpoint's run had before it",
                field="checkpoint: method state",
                found=str(self.state(step)),
                allowed=str(state),
            )

    def fingerprint(self) -> dict[str, Any]:
        return {
            "train": {
                "sha256": self.train.meta["source_sha256"],
                "tokens": self.train.meta["key"],
                "rows": len(self.train),
            },
            "total_steps": self.total_steps,
        }
