"""--profile and --set: every documented case, and ours for CPU-only profiles."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc.errors import Refusals
from hpc.spec.jobspec import parse
from hpc.spec.profiles import ProfileShape, place
from hpc.spec.settings import parse_settings

CASES = json.loads((Path(__file__).parents[1] / "data" / "vectors" / "profile_and_set_cases.json").read_text("utf-8"))
REGISTRY = {
    name: ProfileShape(series=p["series"], nodes=p["num_nodes"], gpus_per_node=p["gpus_per_node"])
    for name, p in CASES["registry"].items()
}
SITE = REGISTRY | {
    "cpu": ProfileShape(gpus_per_node=0, cpus=4, memory_gb=8),
    "cpu4": ProfileShape(gpus_per_node=0, cpus=8, memory_gb=16, ranks_per_node=4),
    "big": ProfileShape(series="h200", gpus_per_node=8, cpus=96, memory_gb=1000),
}


@pytest.mark.parametrize("case", CASES["profile"], ids=lambda c: " ".join(c["input"]) or "none")
def test_documented_profile_cases(case: dict[str, Any]) -> None:
    try:
        placed = place(case["input"], REGISTRY)
    except Refusals as refusals:
        assert case["verdict"] == "refuse"
        assert {r.field for r in refusals.items} == {"--profile"}  # noqa: PT017 - both verdicts of one table
        return
    pools = [f"{p.name}:{p.shape.series}:{p.shape.nodes}:{p.shape.gpus_per_node}" for p in placed.pools]
    found = {
        "profile": placed.profile,
        "pools": pools,
        "roles": [f"{role}:{pool}" for role, pool in placed.roles.items()],
    }
    assert case["verdict"] == "accept"
    assert found == {key: case[key] for key in found}


@pytest.mark.parametrize("case", CASES["set"], ids=lambda c: " ".join(c["input"]))
def test_documented_set_cases(case: dict[str, Any]) -> None:
    if case["verdict"] == "refuse":
        with pytest.raises(Refusals) as caught:
            parse_settings(case["input"])
        assert [(r.code, r.field) for r in caught.value.items] == [("E-SPEC-065", "--set")]
    else:
        assert repr(parse_settings(case["input"])) == case["value"]


@pytest.mark.parametrize(
    ("entry", "shape"),
    [
        ("cpu", {"nodes": 1, "gpus_per_node": 0, "cpus": 4, "memory_gb": 8}),
        ("cpu:3", {"nodes": 3, "gpus_per_node": 0, "cpus": 4, "memory_gb": 8, "ranks_per_node": 1}),
        ("cpu4", {"nodes": 1, "gpus_per_node": 0, "cpus": 8, "memory_gb": 16, "ranks_per_node": 4}),
        ("cpu4:8", {"nodes": 2, "gpus_per_node": 0, "cpus": 8, "memory_gb": 16, "ranks_per_node": 4}),
        ("cpu4:2", {"nodes": 1, "gpus_per_node": 0, "cpus": 4, "memory_gb": 8, "ranks_per_node": 2}),
        ("big:16", {"series": "h200", "nodes": 2, "gpus_per_node": 8, "cpus": 96, "memory_gb": 1000}),
        ("big:2", {"series": "h200", "nodes": 1, "gpus_per_node": 2, "cpus": 24, "memory_gb": 250}),
    ],
)
def test_pools_as_a_jobspec_takes_them(entry: str, shape: dict[str, Any]) -> None:
    pool = place([entry], SITE).pools[0].as_json()
    assert pool == {"name": "all"} | shape
    spec = {
        "apiVersion": "tuneplane/v1",
        "kind": "TrainingJob",
        "metadata": {"name": "e"},
        "spec": {
            "recipe": {"name": "f/m", "version": "1", "digest": "x"},
            "source": {"exp": "experiments/e"},
            "framework": {"kind": "f", "version": "1"},
            "resources": {"pools": [pool]},
        },
        "provenance": {"core_version": "0.4.0"},
    }
    assert parse(spec).normalised()["spec"]["resources"]["pools"] == [pool]


def test_every_entry_is_judged_at_once_and_the_choices_are_named() -> None:
    with pytest.raises(Refusals) as caught:
        place(["a=h20:8", "b=h100:12", "h200:8"], REGISTRY)
    assert [r.code for r in caught.value.items] == ["E-SPEC-061", "E-SPEC-062", "E-SPEC-063"]
    unknown, whole, _ = caught.value.items
    assert (unknown.allowed, unknown.hint) == ("b300x2, h100, h200", "did you mean h200?")
    assert whole.allowed == "up to 8, or whole nodes: 8, 16, …"


def test_a_role_stands_once_even_in_one_entry() -> None:
    with pytest.raises(Refusals) as caught:
        place(["a,a=h200:8"], REGISTRY)
    assert [r.code for r in caught.value.items] == ["E-SPEC-063"]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(SITE)), st.integers(1, 4096))
def test_a_count_is_met_exactly_or_refused(name: str, count: int) -> None:
    per_node = SITE[name].gpus_per_node or SITE[name].ranks_per_node or 1
    try:
        shape = place([f"{name}:{count}"], SITE).pools[0].shape
    except Refusals:
        met = None
    else:
        met = shape.nodes * (shape.gpus_per_node or shape.ranks_per_node)
    assert met == (count if count <= per_node or count % per_node == 0 else None)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=12))
def test_any_expression_is_pools_or_refusals_of_the_flag(text: str) -> None:
    try:
        fields = {p.profile for p in place([text], REGISTRY).pools} - REGISTRY.keys()
    except Refusals as refusals:
        fields = {r.field for r in refusals.items} - {"--profile"}
    assert fields == set()


def test_settings_in_error_are_all_named() -> None:
    with pytest.raises(Refusals) as caught:
        parse_settings(["a=1", "b", "=2", "c=\x00"])
    assert [r.code for r in caught.value.items] == ["E-SPEC-065", "E-SPEC-065", "E-SPEC-016"]


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("a=1e-5", 1e-5),
        ("a=-3", -3),
        ("a=inf", math.inf),
        ("a=١", "١"),
        ("a=" + "9" * 50, "9" * 50),
        ("a=x\ny", "x\ny"),
        ("a.b.c=off", False),
    ],
)
def test_more_values(entry: str, value: object) -> None:
    (found,) = parse_settings([entry]).values()
    assert found == value
    assert type(found) is type(value)


@settings(max_examples=200, deadline=None)
@given(st.integers() | st.booleans() | st.floats(allow_nan=False))
def test_numbers_and_booleans_survive_the_command_line(value: float) -> None:
    (found,) = parse_settings([f"a={value}"]).values()
    assert found == value or len(str(value)) > 40
