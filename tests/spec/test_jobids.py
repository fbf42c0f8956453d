"""Job ids in every spelling that Slurm's commands print."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc.errors import Refusal
from hpc.spec.jobids import JobId


@pytest.mark.parametrize(
    ("text", "job"),
    [
        ("123", JobId(123)),
        ("123_4", JobId(123, task=4)),
        ("123_0", JobId(123, task=0)),
        ("123_[1-9]", JobId(123, tasks="1-9")),
        ("123_[1,3-5%2]", JobId(123, tasks="1,3-5%2")),
        ("123_[1,3,...]", JobId(123, tasks="1,3,...")),
        ("123+1", JobId(123, het=1)),
        ("123;alpha", JobId(123, cluster="alpha")),
        ("123_4.batch", JobId(123, task=4, step="batch")),
        ("123.0", JobId(123, step="0")),
        ("123+1.0;beta", JobId(123, het=1, step="0", cluster="beta")),
    ],
)
def test_spellings(text: str, job: JobId) -> None:
    assert JobId.parse(text) == job
    assert str(job) == text


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "123 ", "123\n", "12a", "123_", "123_[", "123;", "4294967296", "123_4_5", "1;a b"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(Refusal) as caught:
        JobId.parse(text)
    assert caught.value.code == "E-SPEC-066"


def test_p14_an_array_task_is_addressed_by_itself() -> None:
    assert JobId.parse("123_4.batch;alpha").target == "123_4"
    assert JobId.parse("123").target == "123"
    assert JobId.parse("123_[1-9]").target == "123_[1-9]"


def test_p16_the_cluster_is_part_of_the_id() -> None:
    assert JobId.parse("123;alpha") != JobId.parse("123;beta")


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, (1 << 32) - 1),
    st.none() | st.integers(0, 4_000_000),
    st.sampled_from(["", "batch", "extern", "0"]),
    st.sampled_from(["", "alpha", "c-1"]),
)
def test_what_is_written_reads_back(job: int, task: int | None, step: str, cluster: str) -> None:
    one = JobId(job, task=task, step=step, cluster=cluster)
    assert JobId.parse(str(one)) == one
