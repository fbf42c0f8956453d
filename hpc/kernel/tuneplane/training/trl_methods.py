"""The methods of trl/*: rows, order, validation and what a resume must find are those of deepspeed/*; a step is a TRL trainer's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tuneplane.training.engine import Engine
from tuneplane.training.grpo import Grpo
from tuneplane.training.kto import Kto
from tuneplane.training.method import Outcome
from tuneplane.training.preference import Preference
from tuneplane.training.reward import Reward
from tuneplane.training.rewards import asked
from tuneplane.training.rowmethod import RowMethod
from tuneplane.training.supervised import Supervised
from tuneplane.training.tokens import Tokens
from tuneplane.training.trl_trainer import TrainerEngine

IGNORED = -100


class ByTrainer(RowMethod):
    """A step through a TRL trainer. A subclass says what examples are to TRL."""

    def example(self, tokens: Tokens, index: int) -> dict[str, Any]:
        """Example `index` in the columns that the trainer's collator reads."""
        raise NotImplementedError

    def examples(self, engine: TrainerEngine, ids: Sequence[int]) -> list[dict[str, Any]]:
        """The examples of a micro batch, with what the reference says of them."""
        return [self.example(self.train, i) for i in ids]

    def micro_batches(self, engine: TrainerEngine, step: int) -> list[Any]:
        """This rank's micro batches of a step, as the trainer's dataloader would give them."""
        out = []
        for ids in self.rows_of(step):
            self._watchdog.again()
            out.append(engine.trainer.data_collator(self.examples(engine, self._mine(ids))))
        return out

    def step(self, engine: Engine, step: int, learning_rate: float) -> Outcome:
        assert isinstance(engine, TrainerEngine)
        batches = self.micro_batches(engine, step)
        self.on_first_batch()
        lost, norm = engine.update(batches, learning_rate, self._watchdog.again)
        ranks = self.peers.place.world_size  # the loop adds up over the ranks, and TRL's loss is of all of them
        return Outcome(
            lost / ranks,
            norm,
            self.tokens_of(engine, step),
            engine.told(),
            lambda told: {name: total / ranks for name, total in told.items()},
        )

    def tokens_of(self, engine: TrainerEngine, step: int) -> int:
        """Tokens of a step, all ranks, without padding."""
        return self.measure(self.train, [i for ids in self.rows_of(step) for i in ids]).tokens


def _ids(tokens: Tokens, row: int) -> tuple[list[int], list[int]]:
    """(prompt, answer) of a row."""
    ids, prompt = tokens.row(row)
    return [int(i) for i in ids[:prompt]], [int(i) for i in ids[prompt:]]


class TrlSft(ByTrainer, Supervised):
    """`trl/sft`: the loss of a step is the mean over all answer tokens of the global batch."""

    def example(self, tokens: Tokens, index: int) -> dict[str, Any]:
        prompt, answer = _ids(tokens, tokens.rows_of(index)[0])
        ids, learnt = prompt + answer, max(1, len(prompt))  # the first token would be counted, too, but never be learnt
        return {"input_ids": ids, "labels": [IGNORED] * learnt + ids[learnt:]}


class TrlDpo(ByTrainer, Preference):
    """`trl/dpo`."""

    def example(self, tokens: Tokens, index: int) -> dict[str, Any]:
        rows = tokens.rows_of(index)
        (prompt, chosen), (other, rejected) = _ids(tokens, rows[0]), _ids(tokens, rows[1])
        return {"prompt_ids": prompt, "chosen_ids": chosen, "rejected_ids": other[len(prompt) :] + rejected}

    def examples(self, engine: TrainerEngine, ids: Sequence[int]) -> list[dict[str, Any]]:
        numbers = [self.train.rows_of(i)[side] for side in (0, 1) for i in ids]
        before = self.reference.logps(
            engine, self.train.meta["key"], numbers, self.batch([self.train.row(n) for n in numbers])
        )
        chosen, rejected = (part.tolist() for part in before.chunk(2))
        return [
            {**self.example(self.train, i), "ref_chosen_logps": c, "ref_rejected_logps": r}
            for i, c, r in zip(ids, chosen, rejected, strict=True)
        ]


class TrlKto(ByTrainer, Kto):
    """`trl/kto`: behind each prompt stands another row's answer as well, from which TRL estimates the divergence."""

    def example(self, tokens: Tokens, index: int) -> dict[str, Any]:
        prompt, answer = _ids(tokens, index)
        row, cut = self._mismatch(tokens)(index)
        other = [int(i) for i in row[cut:]]
        return {
            "prompt_ids": prompt,
            "completion_ids": answer,
            "KL_completion_ids": other,
            "label": bool(tokens.labels[index]),
        }

    def examples(self, engine: TrainerEngine, ids: Sequence[int]) -> list[dict[str, Any]]:
        key, mismatched = self.train.meta["key"], self._mismatch(self.train)
        before = self.reference.logps(engine, key, ids, self.batch([self.train.row(i) for i in ids])).tolist()
        crossed = self.reference.logps(
            engine, f"{key} mismatched", ids, self.batch([mismatched(i) for i in ids])
        ).tolist()
        return [
            {**self.example(self.train, i), "ref_logps": one, "ref_KL_logps": other}
            for i, one, other in zip(ids, before, crossed, strict=True)
        ]


class TrlReward(ByTrainer, Reward):
    """`trl/rm`."""

    def example(self, tokens: Tokens, index: int) -> dict[str, Any]:
        rows = tokens.rows_of(index)
        chosen, rejected = ([int(i) for i in tokens.row(row)[0]] for row in rows)
        return {"chosen_ids": chosen, "rejected_ids": rejected}


class TrlGrpo(ByTrainer, Grpo):
    """`trl/grpo`: TRL draws the answers of a step in the training process, rewards them and learns from them once."""

    def example(self, tokens: Tokens, index: int) -> dict[str, Any]:
        return tokens.object(index)

    def rewards(self) -> list[Any]:
        """The experiment's reward functions, as TRL calls them."""
        return [_named(name, function, self._watchdog.again) for name, function in self._functions.items()]

    def micro_batches(self, engine: TrainerEngine, step: int) -> list[Any]:
        """TRL wants the prompts of all answers of the step at each of its micro batches, each prompt once an answer.

        And the same keys in each: it takes the columns of the first row, and reads them in all.
        """
        mine = self.global_batch // self.peers.place.world_size
        first = self.peers.place.rank * mine
        ids = self.order.ids(self.position(step - 1), self.global_batch)[first : first + mine]
        rows = [self.example(self.train, i) for i in ids for _ in range(self.settings.num_generations)]
        names = sorted({name for row in rows for name in row})
        prompts = [{name: row.get(name) for name in names} for row in rows]
        return [prompts] * self.settings.gradient_accumulation

    def tokens_of(self, engine: TrainerEngine, step: int) -> int:
        """Prompts and answers, as TRL counted them."""
        total = int(engine.trainer.state.num_input_tokens_seen)
        before, self._counted = getattr(self, "_counted", 0), total
        return total - before


def _named(name: str, function: Any, again: Callable[[], None]) -> Any:
    """TRL names a metric by the function's own name and passes columns of its own; ours gets what deepspeed/grpo passes.

    What it gives is checked as there: TRL takes None and NaN for a function that has no word, and learns from the others in silence.
    """

    def reward(prompts: Any, completions: Any, **columns: Any) -> Any:
        kept = {
            k: v for k, v in columns.items() if k not in ("completion_ids", "trainer_state", "log_extra", "log_metric")
        }
        again()
        found = asked(name, function, prompts, completions, kept)
        again()
        return found

    reward.__name__ = name
    return reward


METHODS: dict[str, type[ByTrainer]] = {"sft": TrlSft, "dpo": TrlDpo, "kto": TrlKto, "rm": TrlReward, "grpo": TrlGrpo}
