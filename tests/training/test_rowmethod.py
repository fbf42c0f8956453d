"""Means over rows are sums divided once, at the end."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from tuneplane.training.rowmethod import RowMethod, Whole


class Always(RowMethod):
    """Every example is judged rightly and loses a half."""

    def lost(self, engine: Any, tokens: Any, ids: Sequence[int], whole: Whole) -> tuple[Any, dict[str, float]]:
        return 0.5 * len(ids), {"accuracy": float(len(ids))}


class Rows:
    examples = 49
    labels = None

    def rows_of(self, example: int) -> tuple[int, ...]:
        return (example,)

    def length(self, row: int) -> int:
        return 3

    def targets(self, row: int) -> int:
        return 1


def test_a_share_of_all_is_exactly_one() -> None:
    """A gate on it (`accuracy >= 1`) must not fail for 49 forty-ninths that add up to 0.9999999999999998."""
    peers = SimpleNamespace(place=SimpleNamespace(rank=0, world_size=1), total=list)
    settings = SimpleNamespace(micro_batch_size=1, gradient_accumulation=1, seed=1, max_steps=1)
    rows: Any = Rows()
    method = Always(rows, rows, settings, peers, 0, SimpleNamespace())  # type: ignore[arg-type]
    found = method.validate(SimpleNamespace(train=lambda *_: None), lambda: None)  # type: ignore[arg-type]
    assert found == {"loss": 0.5, "accuracy": 1.0}
