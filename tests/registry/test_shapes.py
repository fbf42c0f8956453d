"""The shape of facts: what fits, and the first place that does not."""

from __future__ import annotations

import pytest

from hpc.registry.shapes import TEXTS, Named, Shape, misfit

ROW: Shape = {"name": str, "count?": int, "tags": [str], "more?": Named({"on": bool})}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"name": "a", "tags": []}, ""),
        ({"name": "a", "tags": ["x"], "count": 1, "more": {"z": {"on": True}}, "later": [None]}, ""),
        (None, "facts is no object"),
        ({"tags": []}, "facts has no name"),
        ({"name": 1, "tags": []}, "facts.name is no text"),
        ({"name": "a", "tags": "x"}, "facts.tags is no list"),
        ({"name": "a", "tags": ["x", 1]}, "facts.tags[] is no text"),
        ({"name": "a", "tags": [], "count": True}, "facts.count is no whole number"),
        ({"name": "a", "tags": [], "more": {"z": {"on": 1}}}, "facts.more.*.on is no truth value"),
    ],
)
def test_the_first_misfit_is_named(value: object, words: str) -> None:
    assert misfit(value, ROW, "facts") == words


def test_an_empty_shape_asks_for_an_object_alone() -> None:
    assert [misfit(v, {}, "f") for v in ({}, {"a": 1}, [])] == ["", "", "f is no object"]
    assert misfit({"a": 1}, TEXTS, "f") == "f.* is no text"
