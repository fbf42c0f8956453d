"""JobSpec: every documented case with its field, one canonical spelling, every fault at once."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc.errors import Refusal, Refusals
from hpc.errors.catalogue import CATALOGUE
from hpc.spec.jobspec import JobSpec, json_schema, parse

CASES = json.loads((Path(__file__).parents[1] / "data" / "vectors" / "jobspec_cases.json").read_text("utf-8"))["cases"]
ACCEPTED = [case for case in CASES if case["verdict"] == "accept"]
MINIMAL: dict[str, Any] = CASES[0]["input"]


def refused(value: object) -> list[Refusal]:
    with pytest.raises(Refusals) as caught:
        parse(value)
    return caught.value.items


def with_change(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    value = copy.deepcopy(MINIMAL)
    change(value)
    return value


def body(**parts: Any) -> dict[str, Any]:
    return with_change(lambda v: v["spec"].update(parts))


def any_index(field: str) -> str:
    return re.sub(r"\[\d+\]", "[]", field)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['id']} {c['what']}")
def test_documented_cases(case: dict[str, Any]) -> None:
    if case["verdict"] == "refuse":
        assert any_index(case["field"]) in {any_index(r.field) for r in refused(case["input"])}
    else:
        spec = parse(case["input"])
        assert spec.normalised() == case.get("normalised", spec.normalised())


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda c: c["id"])
def test_the_canonical_spelling_is_stable(case: dict[str, Any]) -> None:
    spec = parse(case["input"])
    again = parse(json.loads(json.dumps(spec.normalised())))
    assert again == spec
    assert again.normalised() == spec.normalised()
    assert again.digest() == spec.digest()


def test_parsing_changes_nothing_in_its_input() -> None:
    for case in CASES:
        before = copy.deepcopy(case["input"])
        try:
            parse(case["input"])
        except Refusals:
            pass
        assert case["input"] == before


def test_the_documented_sample_becomes_the_canonical_spelling() -> None:
    sample = next(case["input"] for case in CASES if case["id"] == "j002")
    found = parse(sample).normalised()["spec"]
    assert found["model"] == {"base": "Qwen/Qwen2.5-1.5B", "init_from": "run/run-4f2a91/checkpoint@step=500"}
    assert found["evaluation"]["gates"] == [{"metric": "gsm8k/exact_match", "min": 0.4, "max_regression": 0.02}]
    assert found["data"] == {
        "train": {"dataset": "alice/gsm8k-zh@v2", "path": "train.parquet"},
        "volumes": ["acme/support-transcripts"],
    }


def test_two_spellings_of_one_job_share_a_digest() -> None:
    text = parse(body(model={"init_from": "run/r1/checkpoint@step=5"}))
    documented = parse(body(model={"init_from": {"run_id": "r1", "kind": "checkpoint", "step": 5}, "peft": None}))
    assert text.digest() == documented.digest()
    assert text.digest() != parse(MINIMAL).digest()


def test_a_spec_is_frozen() -> None:
    spec = parse(MINIMAL)
    with pytest.raises(ValueError, match="frozen"):
        spec.metadata.name = "other"  # type: ignore[misc]


def test_all_faults_are_named_at_once() -> None:
    value = copy.deepcopy(MINIMAL)
    value["metadata"]["nmae"] = 3
    value["spec"]["resources"] = {
        "pools": [{"name": "a", "nodes": 0}, {"name": "a"}, {"name": "c", "gpus_per_node": 0, "series": "x"}],
        "roles": {"actor": "b"},
        "network": {"transport": "ib"},
    }
    value["spec"]["slurm"] = {"time": "12h"}
    value["spec"]["source"]["entrypoint"] = "train.py"
    value["spec"]["schedule"] = {}
    assert {(r.code, r.field) for r in refused(value)} == {
        ("E-SPEC-012", "metadata.nmae"),
        ("E-SPEC-014", "spec.resources.pools[0].nodes"),
        ("E-SPEC-021", "spec.resources.pools"),
        ("E-SPEC-024", "spec.resources.pools[2].series"),
        ("E-SPEC-024", "spec.resources.pools[2].cpus"),
        ("E-SPEC-024", "spec.resources.pools[2].memory_gb"),
        ("E-SPEC-023", "spec.resources.roles.actor"),
        ("E-SPEC-013", "spec.resources.network"),
        ("E-SPEC-040", "spec.slurm.time"),
        ("E-SPEC-020", "spec.source.entrypoint"),
        ("E-SPEC-012", "spec.schedule"),
    }


@pytest.mark.parametrize("value", [None, [], "x", 3, True])
def test_what_is_no_object_is_refused(value: object) -> None:
    assert [r.code for r in refused(value)] == ["E-SPEC-013"]


@pytest.mark.parametrize(
    ("value", "code", "field"),
    [
        (with_change(lambda v: v.update(apiVersion="tuneplane/v2")), "E-SPEC-010", "apiVersion"),
        (with_change(lambda v: v.update(kind="trainingjob")), "E-SPEC-010", "kind"),
        (with_change(lambda v: v.pop("provenance")), "E-SPEC-011", "provenance"),
        (with_change(lambda v: v.update(spec=None)), "E-SPEC-011", "spec"),
        (with_change(lambda v: v["metadata"].update(project="..")), "E-SPEC-017", "metadata.project"),
        (with_change(lambda v: v["metadata"].update(name="a\n")), "E-SPEC-016", "metadata.name"),
        (with_change(lambda v: v["metadata"].update(labels={"a": [1]})), "E-SPEC-013", "metadata.labels.a"),
        (with_change(lambda v: v["provenance"].update(git_dirty="no")), "E-SPEC-013", "provenance.git_dirty"),
        (body(resources={"pools": []}), "E-SPEC-015", "spec.resources.pools"),
        (body(resources={}), "E-SPEC-011", "spec.resources"),
        (body(resources={"roles": {}}), "E-SPEC-011", "spec.resources.pools"),
        (body(resources={"pools": ["h200"]}), "E-SPEC-013", "spec.resources.pools[0]"),
        (body(resources={"pools": [{"name": "a", "nodes": True}]}), "E-SPEC-013", "spec.resources.pools[0].nodes"),
        (body(resources={"pools": [{"name": "a", "nodes": None}]}), "E-SPEC-013", "spec.resources.pools[0].nodes"),
        (body(resources={"pools": [{"name": "a", "cpus": 4.5}]}), "E-SPEC-013", "spec.resources.pools[0].cpus"),
        (body(resources={"pools": [{"name": "a", "cpus": True}]}), "E-SPEC-013", "spec.resources.pools[0].cpus"),
        (
            body(resources={"pools": [{"name": "a", "ranks_per_node": 2}]}),
            "E-SPEC-034",
            "spec.resources.pools[0].ranks_per_node",
        ),
        (
            body(resources={"pools": [{"name": "a", "gpus_per_node": 0, "cpus": 4.0, "memory_gb": 8}]}),
            "E-SPEC-024",
            "spec.resources.pools[0].cpus",
        ),
        (
            body(resources={"pools": [{"name": f"p{i}", "nodes": 65536, "gpus_per_node": 1024} for i in range(32)]}),
            "E-SPEC-025",
            "spec.resources.pools",
        ),
        (
            body(resources={"pools": [{"name": "a", "nodes": 2048, "memory_gb": 1048576}]}),
            "E-SPEC-025",
            "spec.resources.pools",
        ),
        (body(resources={"pools": [{"name": "a"}], "roles": ["a"]}), "E-SPEC-013", "spec.resources.roles"),
        (body(resources={"pools": [{"name": "a"}], "roles": {" ": "a"}}), "E-SPEC-015", "spec.resources.roles"),
        (
            body(resources={"pools": [{"name": "a"}], "leases": [{"tool": "v", "seats": 0}]}),
            "E-SPEC-014",
            "spec.resources.leases[0].seats",
        ),
        (
            body(resources={"pools": [{"name": "a"}], "network": {"interface": "x" * 16}}),
            "E-SPEC-017",
            "spec.resources.network",
        ),
        (
            body(resources={"pools": [{"name": "a"}], "network": {"interface": "a b"}}),
            "E-SPEC-017",
            "spec.resources.network",
        ),
        (body(model={"peft": {"kind": "lora", "rank": 8}}), "E-SPEC-012", "spec.model.peft.rank"),
        (body(model={"peft": {"kind": "lora", "dim": "8"}}), "E-SPEC-013", "spec.model.peft.dim"),
        (body(model={"peft": {"kind": "lora", "alpha": True}}), "E-SPEC-013", "spec.model.peft.alpha"),
        (body(model={"peft": {"kind": "lora", "alpha": 0}}), "E-SPEC-014", "spec.model.peft.alpha"),
        (body(model={"init_from": {"run_id": "r1", "stepp": 5}}), "E-SPEC-029", "spec.model.init_from"),
        (body(model={"init_from": ["r1"]}), "E-SPEC-013", "spec.model.init_from"),
        (body(data={"train": {"split": "train"}}), "E-SPEC-036", "spec.data.train"),
        (body(data={"train": {"dataset": "a/x", "path": "../y"}}), "E-SPEC-017", "spec.data.train.path"),
        (body(data={"train": {"dataset": "a/x", "path": "/y"}}), "E-SPEC-017", "spec.data.train.path"),
        (
            body(data={"train": {"dataset": "a/my-d@v1"}, "validation": {"dataset": "b/my.d@v1"}}),
            "E-SPEC-022",
            "spec.data.validation.dataset",
        ),
        (body(data={"volumes": ["a/x", "b/x"]}), "E-SPEC-022", "spec.data.volumes"),
        (body(data={"volumes": "a/x"}), "E-SPEC-013", "spec.data.volumes"),
        (body(data={"output_dataset": "a/x"}), "E-SPEC-028", "spec.data.output_dataset"),
        (body(data={"quality": {"max_overlap_ratio": 0.1}}), "E-SPEC-030", "spec.data.quality.overlap_with"),
        (body(data={"quality": {"max_duplicate_ratio": 1.5}}), "E-SPEC-014", "spec.data.quality.max_duplicate_ratio"),
        (body(hyperparams={"lr": float("nan")}), "E-SPEC-018", "spec.hyperparams.lr"),
        (body(hyperparams={"lr": {1}}), "E-SPEC-018", "spec.hyperparams.lr"),
        (body(hyperparams={"a": "b\x00"}), "E-SPEC-016", "spec.hyperparams.a"),
        (body(hyperparams={"a\nb": 1}), "E-SPEC-016", "spec.hyperparams"),
        (body(lifecycle={"on_success": "export"}), "E-SPEC-013", "spec.lifecycle.on_success"),
        (body(lifecycle={"requeue_on": ["always"]}), "E-SPEC-013", "spec.lifecycle.requeue_on[0]"),
        (body(lifecycle={"max_attempts": 0}), "E-SPEC-014", "spec.lifecycle.max_attempts"),
        (
            body(evaluation={"suites": ["a", "b"], "gates": [{"metric": "x", "min": 1}]}),
            "E-SPEC-032",
            "spec.evaluation.gates[0].metric",
        ),
        (
            body(evaluation={"suites": ["a"], "gates": [{"metric": "b/x", "min": 1}]}),
            "E-SPEC-032",
            "spec.evaluation.gates[0].metric",
        ),
        (body(evaluation={"gates": [{"metric": "x", "min": 1}]}), "E-SPEC-032", "spec.evaluation.gates[0].metric"),
        (body(evaluation={"suites": ["a"], "gates": [{"min": 1}]}), "E-SPEC-011", "spec.evaluation.gates[0].metric"),
        (
            body(evaluation={"suites": ["a"], "gates": [{"metric": "x", "min": True}]}),
            "E-SPEC-013",
            "spec.evaluation.gates[0].min",
        ),
        (
            body(evaluation={"suites": ["a"], "gates": [{"metric": "x", "min": 2, "max": 1}]}),
            "E-SPEC-031",
            "spec.evaluation.gates[0]",
        ),
        (
            body(evaluation={"suites": ["a"], "gates": [{"metric": "x", "max_regression": -0.1}]}),
            "E-SPEC-014",
            "spec.evaluation.gates[0].max_regression",
        ),
        (
            body(evaluation={"on_checkpoint": {"suites": ["a"]}}),
            "E-SPEC-011",
            "spec.evaluation.on_checkpoint.every_steps",
        ),
        (body(plugins=[{"id": "x", "version": "1", "digest": "sha256:1"}]), "E-SPEC-028", "spec.plugins[0].id"),
        (body(plugins=[{"id": "a/x", "version": " ", "digest": "sha256:1"}]), "E-SPEC-015", "spec.plugins[0].version"),
        (body(slurm={"time": "0"}), "E-SPEC-040", "spec.slurm.time"),
        (body(slurm={"mem_per_gpu": "1G", "mem": "2G"}), "E-SPEC-050", "spec.slurm.mem_per_gpu"),
        (
            body(
                slurm={"gpu_bind": "none"},
                resources={"pools": [{"name": "a", "gpus_per_node": 0, "cpus": 1, "memory_gb": 1}]},
            ),
            "E-SPEC-050",
            "spec.slurm.gpu_bind",
        ),
        (
            body(slurm={"array": "0-3"}, resources={"pools": [{"name": "a"}, {"name": "b"}]}),
            "E-SPEC-050",
            "spec.slurm.array",
        ),
    ],
)
def test_one_fault_gives_one_refusal(value: dict[str, Any], code: str, field: str) -> None:
    assert [(r.code, r.field) for r in refused(value)] == [(code, field)]


@pytest.mark.parametrize(
    ("value", "path", "kept"),
    [
        (
            body(plugins=[{"id": "a/x", "version": "1", "digest": "sha256:"}]),
            "plugins",
            [{"id": "a/x", "version": "1", "digest": "sha256:"}],
        ),
        (body(hyperparams={"prompt": "one\n\ttwo"}), "hyperparams", {"prompt": "one\n\ttwo"}),
        (body(lifecycle={"requeue_on": []}), "lifecycle", {"requeue_on": []}),
        (
            body(lifecycle={"requeue_on": ["error"], "max_attempts": 1}),
            "lifecycle",
            {"requeue_on": ["error"], "max_attempts": 1},
        ),
        (body(lifecycle={"requeue_on": ["preempted", "node_fail", "timeout"], "max_attempts": 5}), "lifecycle", None),
        (body(slurm={"time": "90", "exclusive": False}), "slurm", {"time": "01:30:00", "exclusive": False}),
        (body(slurm={}), "slurm", None),
        (body(slurm={"partition": "", "cpus_per_task": 0}), "slurm", None),
        (body(data={"train": {"dataset": "", "split": "", "path": ""}}), "data", None),
        (
            body(data={"train": {"path": "/data/x.jsonl"}, "validation": {}}),
            "data",
            {"train": {"path": "/data/x.jsonl"}},
        ),
        (body(data={"train": {"dataset": "a/x@1"}, "validation": {"dataset": "a/x@1", "split": "test"}}), "data", ...),
        (body(model={"base": "hub://hf/org/m"}), "model", {"base": "hf:org/m"}),
        (body(evaluation={"suites": ["g"], "gates": [{"metric": "g/a,strict-match", "min": 0}]}), "evaluation", ...),
    ],
)
def test_accepted_spellings_and_what_becomes_of_them(value: dict[str, Any], path: str, kept: Any) -> None:
    expected = value["spec"][path] if kept is ... else kept
    assert parse(value).normalised()["spec"].get(path) == expected


def test_ranks_and_cards_follow_from_the_shape() -> None:
    pools = [
        {"name": "a", "nodes": 2, "gpus_per_node": 8},
        {"name": "b", "gpus_per_node": 0, "cpus": 4, "memory_gb": 8, "ranks_per_node": 3},
    ]
    spec = parse(body(resources={"pools": pools, "roles": {"actor": "a"}}))
    assert [pool.ranks for pool in spec.spec.resources.pools] == [8, 3]
    assert spec.gpus == 16


def test_deep_nesting_is_a_refusal() -> None:
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    assert [r.code for r in refused(body(hyperparams={"a": deep}))] == ["E-SPEC-018"]


def test_every_refusal_has_a_code_of_the_catalogue_and_a_mend() -> None:
    for case in CASES:
        if case["verdict"] == "refuse":
            for refusal in refused(case["input"]):
                assert refusal.code in CATALOGUE
                assert refusal.hint


def test_the_schema_describes_the_canonical_spelling() -> None:
    schema = json_schema()
    assert schema["required"] == ["apiVersion", "kind", "metadata", "spec", "provenance"]
    assert schema["additionalProperties"] is False
    assert set(schema["$defs"]["Body"]["properties"]) >= {"recipe", "resources", "slurm", "evaluation"}


STRINGS = [
    ("metadata", "display_name"),
    ("metadata", "owner"),
    ("metadata", "labels", "a"),
    ("spec", "framework", "image"),
    ("spec", "framework", "observability_url"),
    ("spec", "recipe", "digest"),
    ("spec", "recipe", "version"),
    ("spec", "data", "train", "path"),
    ("spec", "data", "train", "split"),
    ("spec", "data", "quality", "group_key"),
    ("spec", "model", "base"),
    ("spec", "evaluation", "runner"),
    ("spec", "evaluation", "baseline"),
    ("spec", "resources", "roles", "actor"),
    ("provenance", "git_commit"),
    ("provenance", "model_name"),
]


@pytest.mark.parametrize("path", STRINGS, ids=".".join)
@settings(max_examples=40, deadline=None)
@given(text=st.text(max_size=8), control=st.sampled_from("\x00\n\r\t\x1b\x7f\x85\u2028\u2029\ud800"))
def test_p01_no_string_of_a_spec_carries_a_control_character(path: tuple[str, ...], text: str, control: str) -> None:
    value = copy.deepcopy(MINIMAL)
    holder = value
    for key in path[:-1]:
        holder = holder.setdefault(key, {})
    holder[path[-1]] = f"/{text}{control}"
    assert ("E-SPEC-016", ".".join(path)) in {(r.code, r.field) for r in refused(value)}


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 2000)
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["a/x", "a/x@v1", "sha256:1", "tcp"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)
PATHS = [tuple(p.split(".")) for p in (
    "metadata", "spec", "spec.recipe", "spec.source", "spec.framework", "spec.resources", "spec.resources.pools", "spec.resources.roles",
    "spec.resources.leases", "spec.resources.network", "spec.model", "spec.model.peft", "spec.model.init_from", "spec.data", "spec.data.train",
    "spec.data.volumes", "spec.data.quality", "spec.hyperparams", "spec.lifecycle", "spec.evaluation", "spec.evaluation.gates",
    "spec.evaluation.on_checkpoint", "spec.plugins", "spec.slurm", "spec.slurm.array", "provenance",
)]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(PATHS), JSON)
def test_any_json_anywhere_is_a_stable_spec_or_refusals(path: tuple[str, ...], value: object) -> None:
    document = copy.deepcopy(MINIMAL)
    holder = document
    for key in path[:-1]:
        holder = holder.setdefault(key, {})
    holder[path[-1]] = value
    try:
        spec = parse(document)
    except Refusals as refusals:
        found = {r.code for r in refusals.items} - CATALOGUE.keys()
    else:
        found = set()
        assert parse(spec.normalised()) == spec
        assert isinstance(spec, JobSpec)
    assert found == set()
