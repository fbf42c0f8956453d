"""Dependencies: conditions with job ids, all of them or any of them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc.errors import Refusal
from hpc.spec.dependencies import KINDS, Dependencies, Dependency, parse_dependency


@pytest.mark.parametrize(
    ("text", "items", "any_of"),
    [
        ("afterok:123", (Dependency("afterok", ("123",)),), False),
        ("afterok:1:2_3:4_*", (Dependency("afterok", ("1", "2_3", "4_*")),), False),
        ("after:5+10:6", (Dependency("after", ("5", "6"), (10, 0)),), False),
        ("singleton", (Dependency("singleton"),), False),
        ("afterany:1,singleton", (Dependency("afterany", ("1",)), Dependency("singleton")), False),
        ("afterok:1?afternotok:2", (Dependency("afterok", ("1",)), Dependency("afternotok", ("2",))), True),
        ("aftercorr:9", (Dependency("aftercorr", ("9",)),), False),
    ],
)
def test_forms(text: str, items: tuple[Dependency, ...], any_of: bool) -> None:
    assert parse_dependency(text) == Dependencies(items, any_of)


def test_p15_every_parent_is_told_once() -> None:
    assert parse_dependency("afterok:3:1,afterany:3:2_1,singleton").jobs == ("3", "1", "2_1")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "afterok",
        "afterok:",
        "afterok:x",
        "afterok:0",
        "afterok:1+5",
        "afterok:1:",
        "singleton:1",
        "before:1",
        "afterok:1,",
        "afterok:1,singleton?afterany:2",
        "afterok:1 ",
        "afterok:1\n",
        "afterok:run-1",
        "AFTEROK:1",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(Refusal) as caught:
        parse_dependency(text)
    assert caught.value.code == "E-SPEC-043"


JOBS = st.lists(st.integers(1, (1 << 32) - 1).map(str), min_size=1, max_size=3)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(KINDS), JOBS), min_size=1, max_size=4), st.sampled_from(",?"))
def test_built_expressions_read_as_built(items: list[tuple[str, list[str]]], joint: str) -> None:
    found = parse_dependency(joint.join(":".join([kind, *jobs]) for kind, jobs in items))
    assert [(item.kind, list(item.jobs)) for item in found.items] == items
    assert found.any_of == (joint == "?" and len(items) > 1)
