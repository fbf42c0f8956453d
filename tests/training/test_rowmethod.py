"""Numbers of a step and of a validation, without a model: means are sums divided once, at the end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tuneplane.training.grpo import Grpo
from tuneplane.training.kto import Kto
from tuneplane.training.rowmethod import RowMethod, Whole


class Always(RowMethod):
    """Every example is judged rightly and loses a half."""

    def lost(self, engine: Any, tokens: Any, ids: Sequence[int], whole: Whole) -> tuple[Any, dict[str, float]]:
        return torch.tensor(0.5 * len(ids)), {"accuracy": float(len(ids))}


class Rows:
    examples = 49
    labels = None

    def rows_of(self, example: int) -> tuple[int, ...]:
        return (example,)

    def length(self, row: int) -> int:
        return 3

    def targets(self, row: int) -> int:
        return 1


def method_of(kind: type[RowMethod], ranks: int = 1, rank: int = 0, rows: Any = None) -> Any:
    """One rank's method over `rows`, without a model: its peers only count."""
    peers = SimpleNamespace(place=SimpleNamespace(rank=rank, world_size=ranks), total=list)
    settings = SimpleNamespace(micro_batch_size=1, gradient_accumulation=1, seed=1, max_steps=1)
    rows = rows or Rows()
    watchdog = SimpleNamespace(again=lambda: None)
    return kind(rows, rows, settings, peers, 0, watchdog)  # type: ignore[arg-type]


def test_a_share_of_all_is_exactly_one() -> None:
    """A gate on it (`accuracy >= 1`) must not fail for 49 forty-ninths that add up to 0.9999999999999998."""
    found = method_of(Always).validate(SimpleNamespace(train=lambda *_: None), lambda: None)
    assert found == {"loss": 0.5, "accuracy": 1.0}


@pytest.mark.parametrize("ranks", [1, 6, 48])
def test_it_is_in_a_step_as_well_whatever_the_number_of_ranks(ranks: int) -> None:
    engine = SimpleNamespace(backward=lambda loss: None, step=lambda rate: 1.0)
    outcomes = [method_of(Always, ranks, rank).step(engine, 1, 1e-3) for rank in range(ranks)]
    totals = {"accuracy": sum(o.sums["accuracy"] for o in outcomes)}
    assert [o.means(totals) for o in outcomes] == [{"accuracy": 1.0}] * ranks


class Labelled(Rows):
    """400 answers, 200 of them good; labels as a token folder has them."""

    examples = 400
    labels = np.arange(400, dtype="<i1") % 2


def test_many_labels_are_counted_and_not_wrapped_around() -> None:
    method = method_of(Kto, rows=Labelled())
    whole = method.measure(method.train, range(400))
    assert (whole.examples, whole.good) == (400, 200)
    sums = {"kl": 40.0, "reward_desirable": 200.0, "reward_undesirable": -100.0}
    wanted = {"kl": 0.1, "reward_desirable": 1.0, "reward_undesirable": -0.5, "reward_margin": 1.5}
    assert method.means(sums, whole) == wanted
    only_good = method.measure(method.train, range(1, 400, 2))
    assert method.means(sums, only_good) == {"kl": 0.2, "reward_desirable": 1.0}


def test_an_invalid_gradient_of_one_update_is_not_hidden_by_another() -> None:
    method: Any = object.__new__(Grpo)
    method.settings = SimpleNamespace(micro_batch_size=1, gradient_accumulation=1, num_iterations=3)
    method.peers, method._watchdog = (
        SimpleNamespace(place=SimpleNamespace(world_size=1)),
        SimpleNamespace(again=lambda: None),
    )
    method.roll = lambda engine, step: SimpleNamespace(shares={}, tokens=8)
    norms = iter([1.0, math.nan, 2.0])
    engine = SimpleNamespace(backward=lambda loss: None, step=lambda rate: next(norms))
    method._lost = lambda *_: (torch.tensor(0.5), {})
    assert math.isnan(method.step(engine, 1, 1e-3).grad_norm)
