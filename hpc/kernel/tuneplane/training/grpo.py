"""Group-relative policy optimisation: answers drawn from the model itself, each rewarded against the others to the same prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuneplane.training.engine import Engine
from tuneplane.training.forward import IGNORED, Batch, Row, answer_logits, token_logps
from tuneplane.training.method import Outcome, valid_norm
from tuneplane.training.program import Job
from tuneplane.training.rewards import rewards_of, score
from tuneplane.training.rowmethod import RowMethod, add
from tuneplane.training.sampling import Sample, Sampler, uniform
from tuneplane.training.tables import GrpoSettings
from tuneplane.training.tokens import Tokens


def advantages(rewards: Any, scale: bool) -> Any:
    """What each answer of a group is better than its group, (groups, answers): r - mean, over (standard deviation + 1e-4) where `scale`."""
    apart = rewards - rewards.mean(-1, keepdim=True)
    return apart / (rewards.std(-1, keepdim=True) + 1e-4) if scale else apart


def token_loss(now: Any, old: Any, gains: Any, settings: GrpoSettings) -> tuple[Any, Any]:
    """Loss of each token and whether it is clipped, of log-probabilities now and at the drawing, and of its answer's advantage.

    -min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A) with r = exp(now - old) (Shao et al. 2024).
    """
    import torch

    ratio = (now - old).exp()
    held = ratio.clamp(1 - settings.epsilon, 1 + settings.epsilon_high)
    return -torch.minimum(ratio * gains, held * gains), held * gains < ratio * gains


@dataclass(frozen=True)
class Rollout:
    """This rank's answers of a step, in order of prompt, and all that the updates need to know of them.

    `old` and `reference` hold a tensor a micro batch: the answer tokens' log-probabilities by the forward that training uses, under the model
    that drew them and under the initial one (empty without `beta`). `answer_tokens` and `tokens` count those of all ranks.
    """

    rows: list[Row]
    gains: Any
    old: list[Any]
    reference: list[Any]
    shares: dict[str, float]
    tokens: int
    answer_tokens: int


class Grpo(RowMethod):
    """The method of `deepspeed/grpo`: a step draws `num_generations` answers to each prompt and makes `num_iterations` updates with all of them.

    Metrics: `reward` (mean of the functions' sum) and each function's own, `reward_std` (mean over the groups), `same_reward` (share of groups
    without a difference, from which nothing is learnt), `completion_length`, `truncated` (share of answers without an end), `clip_ratio`, `kl`
    (to the initial model, with `beta`), `sampling_gap` (mean difference a token between the log-probability at the drawing and by the forward
    that training uses).
    """

    name = "grpo"
    settings: GrpoSettings

    def prepare(self, job: Job, tokenizer: Any) -> None:
        """Load what rewards: functions of the experiment, the environment's verifier. Raises Refused."""
        self._tokenizer = tokenizer
        self._functions = rewards_of(job, self.settings.reward_functions)

    def examples_a_step(self) -> int:
        answers = self._round * self.settings.gradient_accumulation
        return answers // self.settings.num_generations

    def arithmetic(self) -> str:
        each, updates = self.settings.num_generations, self.settings.num_iterations
        return f"a step: {self.global_batch} prompts x {each} answers, {updates} updates; {super().arithmetic()}"

    def step(self, engine: Engine, step: int, learning_rate: float) -> Outcome:
        rollout = self.roll(engine, step)
        size, updates = self.settings.micro_batch_size, self.settings.num_iterations
        lost, norms, means = 0.0, list[float](), dict(rollout.shares)
        for _ in range(updates):
            for part in range(self.settings.gradient_accumulation):
                self._watchdog.again()
                loss, more = self._lost(engine, rollout, part, range(part * size, (part + 1) * size))
                engine.backward(loss * self.peers.place.world_size)  # gradients are averaged over the ranks
                lost += float(loss.detach()) / updates
                add(means, {name: value / updates for name, value in more.items()})
            norms.append(engine.step(learning_rate))
        # One that is none must not be hidden by a larger one: the loop ends the run by it.
        norm = next((n for n in norms if not valid_norm(n)), max(norms))
        return Outcome(lost, norm, rollout.tokens, means)

    def roll(self, engine: Engine, step: int) -> Rollout:
        """Draw, reward and measure the answers of a step. A collective."""
        import numpy as np
        import torch

        settings, each = self.settings, self.settings.num_generations
        mine = self.global_batch // self.peers.place.world_size
        first = self.peers.place.rank * mine
        ids = self.order.ids(self.position(step - 1), self.global_batch)[first : first + mine]
        places = range(first * each, (first + mine) * each)
        self.on_first_batch()
        numbers = uniform(settings.seed, step, places, settings.max_completion_length)
        samples = self._draw(engine, [i for i in ids for _ in range(each)], self.train, numbers, settings.temperature)
        rewards = self._rewards(self.train, [i for i in ids for _ in range(each)], samples)
        summed = torch.tensor(list(rewards.values()), dtype=torch.float64).sum(0).view(mine, each)
        prompts = [self.train.row(i)[0] for i in ids for _ in range(each)]
        rows: list[Row] = [
            (np.concatenate([prompt, np.asarray(sample.ids, dtype=prompt.dtype)]), len(prompt))
            for prompt, sample in zip(prompts, samples, strict=True)
        ]
        old, reference = self._measured(engine, rows)
        counts = self.peers.total([sum(len(s.ids) for s in samples), sum(len(r) for r, _ in rows)])
        shares = self._shares(samples, rewards, summed, old, counts[0])
        gains = advantages(summed, settings.scale_rewards).view(-1).float().to(self.peers.device)
        return Rollout(rows, gains, old, reference, shares, int(counts[1]), int(counts[0]))

    def _draw(
        self, engine: Engine, ids: Sequence[int], tokens: Tokens, numbers: Any, temperature: float
    ) -> list[Sample]:
        sampler = Sampler(
            self._tokenizer.eos_token_id,
            self._pad,
            temperature,
            self.settings.max_completion_length,
            self.peers.device,
            self._anyone if self.settings.zero_stage == 3 else bool,
            self._watchdog.again,
        )
        size, end = self.settings.generation_batch_size or len(ids), len(ids)
        if self.settings.zero_stage == 3 and self.settings.generation_batch_size:
            # All ranks make the same draws, also where one has fewer prompts than a micro batch: what it draws beside is dropped.
            end = max(end, self.settings.micro_batch_size)
        out: list[Sample] = []
        with engine.asking():
            for start in range(0, end, size):
                own = ids[start : start + size]
                prompts = [tokens.row(i)[0] for i in own or ids[:1]]
                out += sampler.draw(engine, prompts, numbers[start : start + size] if own else numbers[:1])[: len(own)]
        return out

    def _anyone(self, live: bool) -> bool:
        return self.peers.total([float(live)])[0] > 0

    def _rewards(self, tokens: Tokens, ids: Sequence[int], samples: Sequence[Sample]) -> dict[str, list[float]]:
        texts = [self._tokenizer.decode(s.ids, skip_special_tokens=True) for s in samples]
        return score(self._functions, [tokens.object(i) for i in ids], texts, self._watchdog.again)

    def _measured(self, engine: Engine, rows: Sequence[Row]) -> tuple[list[Any], list[Any]]:
        """Log-probabilities of the answer tokens under the model as it is and under the initial one, a micro batch each."""
        old, reference, size = [], [], self.settings.micro_batch_size
        for start in range(0, len(rows), size):
            self._watchdog.again()
            batch = self.batch(rows[start : start + size])
            with engine.asking():
                old.append(self._logps(engine, batch))
            if self.settings.beta:
                with engine.initially():
                    reference.append(self._logps(engine, batch))
        return old, reference

    def _logps(self, engine: Engine, batch: Batch) -> Any:
        """Of all answer tokens, row after row, at the temperature of the drawing."""
        logits, wanted = answer_logits(engine, batch)
        if self.settings.temperature != 1:
            logits = logits.float() / self.settings.temperature
        return token_logps(logits, wanted)[wanted != IGNORED]

    def _shares(
        self,
        samples: Sequence[Sample],
        rewards: Mapping[str, Sequence[float]],
        summed: Any,
        old: Sequence[Any],
        answer_tokens: float,
    ) -> dict[str, float]:
        import torch

        groups, answers = self.global_batch, self.global_batch * self.settings.num_generations
        drawn = torch.tensor([p for s in samples for p in s.logps], device=old[0].device)
        spread = summed.std(-1)
        return {
            "reward": float(summed.sum()) / answers,
            **{f"reward_{name}": sum(values) / answers for name, values in rewards.items()},
            "reward_std": float(spread.sum()) / groups,
            "same_reward": float((spread == 0).sum()) / groups,
            "completion_length": sum(len(s.ids) for s in samples) / answers,
            "truncated": sum(not s.ended for s in samples) / answers,
            "sampling_gap": float((torch.cat(list(old)) - drawn).abs().double().sum()) / answer_tokens,
        }

    def _lost(self, engine: Engine, rollout: Rollout, part: int, ids: range) -> tuple[Any, dict[str, float]]:
        """This micro batch's share of the loss, and of the means that change from update to update."""
        import torch

        rows = [rollout.rows[i] for i in ids]
        lengths = torch.tensor([len(row) - prompt for row, prompt in rows], device=self.peers.device)
        weights = self._weights(lengths, rollout.answer_tokens).repeat_interleave(lengths)
        gains = rollout.gains[ids.start : ids.stop].repeat_interleave(lengths)
        now = self._logps(engine, self.batch(rows))
        lost, clipped = token_loss(now, rollout.old[part], gains, self.settings)
        means = {"clip_ratio": float(clipped.sum()) / rollout.answer_tokens}
        if self.settings.beta:
            behind = rollout.reference[part] - now
            apart = behind.exp() - behind - 1
            lost = lost + self.settings.beta * apart
            means["kl"] = float(apart.detach().sum()) / rollout.answer_tokens
        return (weights * lost).sum(), means

    def _weights(self, lengths: Any, answer_tokens: int) -> Any:
        """What a token of each answer weighs: dapo the same in the whole batch, grpo the same in its answer, dr_grpo the same in every batch."""
        answers = self.global_batch * self.settings.num_generations
        if self.settings.loss_type == "grpo":
            return 1.0 / (lengths * answers)
        whole = answer_tokens if self.settings.loss_type == "dapo" else answers * self.settings.max_completion_length
        return (lengths > 0) / whole

    def validate(self, engine: Engine, between: Callable[[], None]) -> dict[str, float]:
        """Mean rewards of the most likely answers to all held-out prompts."""
        if self.held_out is None:
            return {}
        sums: dict[str, float] = {}
        for share in self.shares_of(self.held_out):
            between()
            samples = self._draw(engine, share.ids, self.held_out, self._nothing(len(share.ids)), 0.0)
            found = {f"reward_{n}": sum(v) for n, v in self._rewards(self.held_out, share.ids, samples).items()}
            found["reward"] = sum(found.values())
            add(sums, found if share.counted else dict.fromkeys(found, 0.0))
        totals = self.peers.total(list(sums.values()))
        return {name: total / self.held_out.examples for name, total in zip(sums, totals, strict=True)}

    def _nothing(self, count: int) -> Any:
        import numpy as np

        return np.zeros((count, self.settings.max_completion_length))
