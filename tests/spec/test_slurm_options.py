"""The slurm block as a whole."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc.errors import Refusals
from hpc.spec.slurm_options import SlurmOptions, parse_slurm
from hpc.spec.text import CONTROL

FULL = {
    "time": "12:00:00",
    "partition": "gpu,long",
    "account": "proj7",
    "qos": "high",
    "constraint": "h200&nvlink",
    "reservation": "maint",
    "exclusive": True,
    "dependency": "afterok:123",
    "array": "0-15%4",
    "requeue": False,
    "signal": "USR2@300",
    "nice": 10,
    "mail_type": "END,FAIL",
    "mail_user": "alice@example.org",
    "comment": "nightly-7",
    "exclude": "gpu[01-02]",
    "nodelist": "gpu03",
    "mem": "64G",
    "cpus_per_task": 8,
    "licenses": "matlab:1",
    "switches": "1@01:00:00",
    "begin": "now+1hour",
    "clusters": "alpha",
    "gpu_bind": "closest",
    "kill_on_invalid_dep": True,
}
TEXT_FIELDS = [name for name, field in SlurmOptions.model_fields.items() if field.annotation is str]


def test_every_word_of_the_documents_is_a_field() -> None:
    assert set(SlurmOptions.model_fields) == {*FULL, "mem_per_gpu"}


def test_a_full_block_is_its_own_sparse_form() -> None:
    assert parse_slurm(FULL).sparse() == FULL


def test_spellings_of_one_value_become_one() -> None:
    block = {
        "time": 720,
        "mem": "65536M",
        "mail_type": ["end", "fail"],
        "partition": ["gpu", "long"],
        "signal": "SIGUSR2@300",
        "array": 5,
    }
    assert parse_slurm(block).sparse() == {
        "time": "12:00:00",
        "mem": "64G",
        "mail_type": "END,FAIL",
        "partition": "gpu,long",
        "signal": "USR2@300",
        "array": "5",
    }


def test_nothing_stated_is_an_empty_block() -> None:
    assert parse_slurm({"time": None, "partition": "", "exclusive": None, "cpus_per_task": 0}).sparse() == {}


def test_false_is_stated_and_null_is_not() -> None:
    assert parse_slurm({"exclusive": False, "requeue": False, "nice": 0}).sparse() == {
        "exclusive": False,
        "requeue": False,
        "nice": 0,
    }


def test_all_faults_at_once_with_their_fields() -> None:
    block = {
        "time": "12h",
        "partion": "gpu",
        "mem": "4G",
        "mem_per_gpu": "1G",
        "requeue": "no",
        "nice": 1.5,
        "array": "1,1",
    }
    with pytest.raises(Refusals) as caught:
        parse_slurm(block)
    assert {(r.code, r.field) for r in caught.value.items} == {
        ("E-SPEC-040", "spec.slurm.time"),
        ("E-SPEC-012", "spec.slurm.partion"),
        ("E-SPEC-050", "spec.slurm.mem_per_gpu"),
        ("E-SPEC-013", "spec.slurm.requeue"),
        ("E-SPEC-013", "spec.slurm.nice"),
        ("E-SPEC-042", "spec.slurm.array"),
    }
    assert next(r for r in caught.value.items if r.code == "E-SPEC-012").hint == "did you mean 'partition'?"


def test_a_list_instead_of_a_block_is_refused() -> None:
    with pytest.raises(Refusals) as caught:
        parse_slurm(["time"])
    assert [(r.code, r.field) for r in caught.value.items] == [("E-SPEC-013", "spec.slurm")]


def test_what_is_stated_wins_over_a_sites_default() -> None:
    own = parse_slurm({"time": "1:00:00", "exclusive": False})
    merged = own.merged({"time": "2:00:00", "exclusive": True, "partition": "gpu"})
    assert merged.sparse() == {"time": "01:00:00", "exclusive": False, "partition": "gpu"}


def test_a_memory_stated_one_way_sets_aside_a_default_of_the_other_way() -> None:
    assert parse_slurm({"mem_per_gpu": "8G"}).merged({"mem": "64G", "qos": "a"}).sparse() == {
        "mem_per_gpu": "8G",
        "qos": "a",
    }


def test_a_wrong_default_is_the_sites_fault_and_says_so() -> None:
    with pytest.raises(Refusals) as caught:
        SlurmOptions().merged({"time": "12h"})
    assert [r.field for r in caught.value.items] == ["slurm.defaults.time"]


@pytest.mark.parametrize("field", TEXT_FIELDS)
@settings(max_examples=100, deadline=None)
@given(text=st.text(min_size=1, max_size=10))
def test_p01_random_text_never_carries_a_control_character_into_a_directive(field: str, text: str) -> None:
    try:
        value = getattr(parse_slurm({field: text}), field)
    except Refusals:
        return
    assert not CONTROL.search(value)
    assert value.isascii()


@pytest.mark.parametrize("field", TEXT_FIELDS)
@pytest.mark.parametrize("tail", ["\n", "\r", "\x00", "\u2028", "\x85", "\ntouch x"])
def test_p01_a_valid_value_with_a_control_character_behind_it_is_refused(field: str, tail: str) -> None:
    with pytest.raises(Refusals) as caught:
        parse_slurm({field: str(FULL.get(field, "1G")) + tail})
    assert [r.field for r in caught.value.items] == [f"spec.slurm.{field}"]
