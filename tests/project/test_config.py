"""config.yaml: defaults first, own keys over them; every wrong reference is named with its file."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc.errors import Refusal, Refusals
from hpc.project.config import config_sha, load_config, merge
from tests.project.conftest import Make

EXP = "experiments/a/config.yaml"


def load(make: Make, files: dict[str, str]) -> dict[str, Any]:
    return load_config(make(files).root / "experiments" / "a")


def refused(make: Make, files: dict[str, str]) -> tuple[str, str]:
    with pytest.raises(Refusal) as caught:
        load(make, files)
    return caught.value.code, caught.value.field


def test_defaults_merge_in_order_and_own_keys_win(make: Make) -> None:
    files = {
        EXP: "defaults: [../../configs/base.yaml, ../../configs/big.yaml]\ntraining: {lr: 3}\n",
        "configs/base.yaml": "training: {lr: 1, steps: 10}\nmodel: small\nnames: [a, b]\n",
        "configs/big.yaml": "training: {lr: 2, batch: 8}\nmodel: big\nnames: [c]\n",
    }
    assert load(make, files) == {"training": {"lr": 3, "steps": 10, "batch": 8}, "model": "big", "names": ["c"]}


def test_one_path_may_stand_alone_and_is_relative_to_its_own_file(make: Make) -> None:
    files = {
        EXP: "defaults: ../../configs/x/one.yaml\n",
        "configs/x/one.yaml": "defaults: ../two.yaml\na: 1\n",
        "configs/two.yaml": "b: 2\n",
    }
    assert load(make, files) == {"a": 1, "b": 2}


def test_override_replaces_a_section(make: Make) -> None:
    files = {
        EXP: "defaults: base.yaml\na: {_override_: true, x: 1}\nb: {_override_: false, y: 2}\nc: {new: {_override_: true, z: 3}}\n",
        "experiments/a/base.yaml": "a: {old: 1, x: 0}\nb: {old: 1}\nc: 5\n",
    }
    assert load(make, files) == {"a": {"x": 1}, "b": {"old": 1, "y": 2}, "c": {"new": {"z": 3}}}


def test_null_replaces_and_empty_files_add_nothing(make: Make) -> None:
    files = {
        EXP: "defaults: base.yaml\na:\n",
        "experiments/a/base.yaml": "defaults: empty.yaml\na: {x: 1}\n",
        "experiments/a/empty.yaml": "",
    }
    assert load(make, files) == {"a": None}


def test_one_file_may_be_named_on_two_ways(make: Make) -> None:
    files = {
        EXP: "defaults: [l.yaml, r.yaml]\n",
        "experiments/a/l.yaml": "defaults: base.yaml\nl: 1\n",
        "experiments/a/r.yaml": "defaults: base.yaml\nr: 1\n",
        "experiments/a/base.yaml": "b: 1\n",
    }
    assert load(make, files) == {"b": 1, "l": 1, "r": 1}


def test_an_experiment_without_a_config_has_an_empty_one(make: Make) -> None:
    folder = make({"experiments/a/train.sh": ""}).root / "experiments" / "a"
    assert load_config(folder) == {}
    assert config_sha(folder) == "none"


def test_the_sha_is_of_the_file_itself(make: Make) -> None:
    folder = make({EXP: "a: 1\n"}).root / "experiments" / "a"
    assert config_sha(folder) == hashlib.sha256(b"a: 1\n").hexdigest()[:12]


@pytest.mark.parametrize(
    ("files", "code", "field"),
    [
        ({EXP: "- a\n"}, "E-PROJECT-010", EXP),
        ({EXP: "a: 1\na: 2\n"}, "E-SPEC-003", f"{EXP}:2"),
        ({EXP: "defaults: 5\n"}, "E-PROJECT-011", f"{EXP}: defaults"),
        ({EXP: "defaults: [5]\n"}, "E-PROJECT-011", f"{EXP}: defaults"),
        ({EXP: "defaults: {a: b}\n"}, "E-PROJECT-011", f"{EXP}: defaults"),
        ({EXP: "defaults: ' '\n"}, "E-PROJECT-011", f"{EXP}: defaults"),
        ({EXP: "defaults: /etc/passwd\n"}, "E-PROJECT-011", f"{EXP}: defaults"),
        ({EXP: "defaults: ~/x.yaml\n"}, "E-PROJECT-011", f"{EXP}: defaults"),
        ({EXP: "defaults: ../../../x.yaml\n"}, "E-PROJECT-011", f"{EXP}: defaults"),
        ({EXP: 'defaults: "a\\nb"\n'}, "E-SPEC-016", f"{EXP}: defaults"),
        ({EXP: "defaults: none.yaml\n"}, "E-PROJECT-012", f"{EXP}: defaults"),
        ({EXP: "defaults: ../a\n"}, "E-PROJECT-012", f"{EXP}: defaults"),
        ({EXP: "defaults: config.yaml\n"}, "E-PROJECT-013", f"{EXP}: defaults"),
        (
            {EXP: "defaults: b.yaml\n", "experiments/a/b.yaml": "defaults: config.yaml\n"},
            "E-PROJECT-013",
            "experiments/a/b.yaml: defaults",
        ),
        ({EXP: "defaults: b.yaml\n", "experiments/a/b.yaml": "a: [\n"}, "E-SPEC-001", "experiments/a/b.yaml:2"),
        ({EXP: "a: {_override_: 1}\n"}, "E-PROJECT-014", f"{EXP}: _override_"),
        (
            {EXP: "defaults: [" + "b.yaml, " * 64 + "]\n", "experiments/a/b.yaml": "a: 1\n"},
            "E-PROJECT-011",
            "experiments/a/b.yaml",
        ),
    ],
)
def test_a_wrong_reference_is_refused_with_its_file(make: Make, files: dict[str, str], code: str, field: str) -> None:
    assert refused(make, files) == (code, field)


def test_a_circle_is_spelt_out(make: Make) -> None:
    with pytest.raises(Refusal) as caught:
        load(make, {EXP: "defaults: b.yaml\n", "experiments/a/b.yaml": "defaults: [./b.yaml]\n"})
    assert caught.value.message == "experiments/a/b.yaml → experiments/a/b.yaml goes in a circle"


def test_a_link_leads_nowhere(make: Make, tmp_path: Path) -> None:
    (tmp_path / "outside.yaml").write_text("a: 1\n")
    project = make({EXP: "defaults: link.yaml\n"})
    (project.root / "experiments/a/link.yaml").symlink_to(tmp_path / "outside.yaml")
    with pytest.raises(Refusal) as caught:
        load_config(project.root / "experiments/a")
    assert (caught.value.code, caught.value.message) == ("E-PROJECT-011", "leads out of the project")
    (project.root / EXP).unlink()
    (project.root / EXP).symlink_to(tmp_path / "outside.yaml")
    with pytest.raises(Refusal) as caught:
        load_config(project.root / "experiments/a")
    assert (caught.value.code, caught.value.message) == ("E-PROJECT-010", "cannot be read: it is a link")


def test_sections_of_the_job_have_their_shape_all_named_at_once(make: Make) -> None:
    text = "data: [a]\nslurm: fast\nmodel: {peft: lora}\nresources: {leases: {}}\nlabels: null\nlifecycle: {on_success: [export]}\n"
    with pytest.raises(Refusals) as caught:
        load(make, {EXP: text})
    assert [(r.code, r.field, r.found) for r in caught.value.items] == [
        ("E-PROJECT-017", "config.yaml: data", "a list"),
        ("E-PROJECT-017", "config.yaml: slurm", "text"),
        ("E-PROJECT-017", "config.yaml: model.peft", "text"),
        ("E-PROJECT-017", "config.yaml: resources.leases", "a mapping"),
    ]


def test_the_short_spellings_are_kept(make: Make) -> None:
    text = "model: Qwen/Qwen2.5\ndata: {train: rows.jsonl, volumes: acme/x}\n"
    assert load(make, {EXP: text}) == {"model": "Qwen/Qwen2.5", "data": {"train": "rows.jsonl", "volumes": "acme/x"}}


VALUES = st.recursive(
    st.none() | st.integers(0, 3),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
CONFIGS = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)


@settings(max_examples=100, deadline=None)
@given(CONFIGS, CONFIGS, CONFIGS)
def test_merging_is_associative_and_keeps_its_inputs(
    one: dict[str, Any], two: dict[str, Any], three: dict[str, Any]
) -> None:
    before = repr((one, two))
    assert merge({}, one) == one
    assert merge(one, one) == one
    assert merge(one, {}) == one
    mixed = merge(one, two)
    assert set(mixed) == set(one) | set(two)
    assert all(mixed[k] == v for k, v in two.items() if not isinstance(v, dict))
    assert merge(merge(one, two), three) == merge(one, merge(two, three)) or _a_value_hides_a_section(one, two, three)
    assert repr((one, two)) == before


def _a_value_hides_a_section(*configs: dict[str, Any]) -> bool:
    """A plain value between two sections cuts the first one off; then the grouping matters, as it must."""
    keys = {k for c in configs for k in c}
    for key in keys:
        held = [c[key] for c in configs if key in c]
        kinds = {isinstance(v, dict) for v in held}
        if len(kinds) == 2 or (kinds == {True} and _a_value_hides_a_section(*held)):
            return True
    return False
