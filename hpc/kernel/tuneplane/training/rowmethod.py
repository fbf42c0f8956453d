"""What methods over a file of rows share: the order, the ranks' shares of a batch, sums over them, validation, what a checkpoint must find."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuneplane.training.engine import Engine
from tuneplane.training.forward import Batch, Row, collate, collate_packed
from tuneplane.training.method import Outcome
from tuneplane.training.peers import Peers
from tuneplane.training.refusals import refuse
from tuneplane.training.sampler import Order, steps_for
from tuneplane.training.settings import Settings
from tuneplane.training.tokens import Tokens
from tuneplane.training.watchdog import Watchdog


@dataclass(frozen=True)
class Whole:
    """Counts of all examples that a loss is a mean over: the global batch of a step, or all held-out rows.

    `targets` are answer tokens, `chosen` those of the first answer of each example, `good` the examples that are not labelled bad.
    """

    examples: int
    tokens: int
    targets: int
    chosen: int
    good: int


@dataclass(frozen=True)
class Share:
    """Examples that this rank takes at once. One that is not counted keeps the ranks' forwards equal in number (ZeRO-3 needs that)."""

    ids: Sequence[int]
    counted: bool = True


class RowMethod:
    """The frame of a method over rows; a subclass says what a micro batch loses.

    Every rank knows the whole order, and with it the counts of the global batch: sums over a rank's rows divided by them add up over the ranks
    to the mean, whatever the micro batch, the accumulation and the number of ranks.
    """

    name = ""

    def __init__(
        self, train: Tokens, held_out: Tokens | None, settings: Settings, peers: Peers, pad_id: int, watchdog: Watchdog
    ) -> None:
        self.train, self.held_out, self.settings, self.peers = train, held_out, settings, peers
        self._pad, self._watchdog = pad_id, watchdog
        self.on_first_batch: Callable[[], None] = lambda: None
        self.order = Order(train.examples, settings.seed)
        self._round = settings.micro_batch_size * peers.place.world_size
        self.global_batch = self.examples_a_step()
        self.total_steps = settings.max_steps or steps_for(train.examples, settings.epochs, self.global_batch)

    def lost(self, engine: Engine, tokens: Tokens, ids: Sequence[int], whole: Whole) -> tuple[Any, dict[str, float]]:
        """The loss summed over these examples (a scalar tensor), and what `means` makes metrics of, summed over them as well."""
        raise NotImplementedError

    def means(self, sums: Mapping[str, float], whole: Whole) -> dict[str, float]:
        """Metrics over `whole` from sums over all its examples."""
        return {name: value / self.divisor(whole) for name, value in sums.items()}

    def divisor(self, whole: Whole) -> float:
        """What the summed loss is divided by."""
        return whole.examples

    def before(
        self, engine: Engine, tokens: Tokens, shares: Sequence[Share], whole: Whole, between: Callable[[], None]
    ) -> None:
        """Called on all ranks before the losses of `whole`, for what a loss needs to know of all of it. `between` comes before each share."""

    def examples_a_step(self) -> int:
        """Examples that all ranks take in a step."""
        return self._round * self.settings.gradient_accumulation

    def arithmetic(self) -> str:
        """How the global batch comes about, for people."""
        micro, more, ranks = (
            self.settings.micro_batch_size,
            self.settings.gradient_accumulation,
            self.peers.place.world_size,
        )
        return f"global batch {micro * more * ranks} = {micro} x {more} accumulated x {ranks} ranks"

    def facts(self) -> list[str]:
        """Lines about the rows for people, before the first step."""
        return []

    def position(self, step: int) -> int:
        """How many examples all ranks have taken once `step` is done."""
        return step * self.global_batch

    def rows_of(self, step: int) -> list[list[int]]:
        """Example numbers of step `step`: one list a micro round, which the ranks share in order of rank."""
        ids = self.order.ids(self.position(step - 1), self.global_batch)
        return [ids[i : i + self._round] for i in range(0, len(ids), self._round)]

    def measure(self, tokens: Tokens, examples: Iterable[int]) -> Whole:
        """The counts of these examples."""
        numbers = list(examples)
        rows = [tokens.rows_of(e) for e in numbers]
        return Whole(
            len(rows),
            sum(tokens.length(i) for part in rows for i in part),
            sum(tokens.targets(i) for part in rows for i in part),
            sum(tokens.targets(part[0]) for part in rows),
            len(rows) if tokens.labels is None else int(tokens.labels[numbers].sum()),
        )

    def step(self, engine: Engine, step: int, learning_rate: float) -> Outcome:
        rounds = self.rows_of(step)
        whole = self.measure(self.train, [i for ids in rounds for i in ids])
        shares = [Share(self._mine(ids)) for ids in rounds]
        self.before(engine, self.train, shares, whole, self._watchdog.again)
        # Gradients are averaged over the ranks; the global mean needs their sum.
        scale = self.peers.place.world_size / self.divisor(whole)
        lost, sums = 0.0, dict[str, float]()
        for share in shares:
            self._watchdog.again()
            summed, more = self.lost(engine, self.train, share.ids, whole)
            engine.backward(summed * scale)
            lost += float(summed.detach())
            add(sums, more)
        norm = engine.step(learning_rate)
        return Outcome(lost / self.divisor(whole), norm, whole.tokens, sums, lambda totals: self.means(totals, whole))

    def _mine(self, ids: Sequence[int]) -> Sequence[int]:
        size = self.settings.micro_batch_size
        return ids[self.peers.place.rank * size : (self.peers.place.rank + 1) * size]

    def shares_of(self, tokens: Tokens) -> list[Share]:
        """This rank's part of all examples of a file; every rank has as many shares."""
        size, out = self.settings.micro_batch_size, []
        for start in range(0, tokens.examples, self._round):
            first = start + self.peers.place.rank * size
            ids = range(first, min(first + size, tokens.examples))
            out.append(Share(ids) if ids else Share([0], counted=False))
        return out

    def batch_of(self, tokens: Tokens, examples: Sequence[int]) -> Batch:
        """Examples of single answers as tensors: a row each, or, where they are packs, a sequence of several rows each."""
        if tokens.packs is None:
            return self.batch([tokens.row(i) for i in examples])
        groups = [[tokens.row(i) for i in tokens.rows_of(example)] for example in examples]
        made = collate_packed(groups, self._pad, self.peers.device)
        self.on_first_batch()
        return made

    def batch(self, rows: Sequence[Row]) -> Batch:
        """The rows as tensors on this rank's device."""
        made = collate(rows, self._pad, self.peers.device)
        self.on_first_batch()
        return made

    def validate(self, engine: Engine, between: Callable[[], None]) -> dict[str, float]:
        """Means over all held-out rows, `loss` among them, equal on all ranks; empty without such rows."""
        import torch

        held_out = self.held_out
        if held_out is None:
            return {}
        whole, shares = self.measure(held_out, range(held_out.examples)), self.shares_of(held_out)
        lost, sums = 0.0, dict[str, float]()
        engine.train(False)
        with torch.no_grad():
            self.before(engine, held_out, shares, whole, between)
            for share in shares:
                between()
                summed, more = self.lost(engine, held_out, share.ids, whole)
                lost += float(summed) if share.counted else 0.0
                add(sums, more if share.counted else dict.fromkeys(more, 0.0))
        engine.train()
        lost, *totals = self.peers.total([lost, *sums.values()])
        return {"loss": lost / self.divisor(whole), **self.means(dict(zip(sums, totals, strict=True)), whole)}

    def state(self, step: int) -> dict[str, Any]:
        position = self.position(step)
        return {
            "samples": position,
            "epoch": position // self.train.examples,
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
        meta, packs = self.train.meta, self.train.packs
        return {
            "train": {
                "sha256": meta["source_sha256"],
                "tokens": meta["key"],
                "rows": meta["counts"]["kept"],
                **({} if packs is None else {"packs": packs.meta["key"]}),
            },
            "total_steps": self.total_steps,
        }


def add(sums: dict[str, float], more: dict[str, float]) -> None:
    """Add each of `more` to the sum of its name."""
    for name, value in more.items():
        sums[name] = sums.get(name, 0.0) + value
