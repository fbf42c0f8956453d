"""Directives are typed values: what is written is what sbatch reads, whatever a user puts into a field."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc.errors import Refusal
from hpc.submit.directives import Directive, Identity, cpus_of, gpu_directive, job_directives, render

IDENTITY = Identity("exp.run-1.0", "tp:run-1:abcd", "/st/runs/a/exp/run-1/batch/0.log", "/st/runs/a/exp/run-1")
GPU_POOL = {"name": "train", "nodes": 2, "gpus_per_node": 8, "memory_gb": 0, "cpus": 0}
H200 = {"partition": "gpu", "gpu_dialect": "gres", "gres_type": "h200", "cpus_per_gpu": 12}


def lines(**options: object) -> list[str]:
    return render(job_directives(IDENTITY, [(GPU_POOL, H200)], options, signal="B:USR2@120")).split("\n")


def test_a_two_node_gpu_job() -> None:
    assert lines(time="12:00:00", account="lab", requeue=True) == [
        "#SBATCH --job-name=exp.run-1.0",
        "#SBATCH --comment=tp:run-1:abcd",
        "#SBATCH --output=/st/runs/a/exp/run-1/batch/0.log",
        "#SBATCH --open-mode=append",
        "#SBATCH --chdir=/st/runs/a/exp/run-1",
        "#SBATCH --export=NIL",
        "#SBATCH --requeue",
        "#SBATCH --signal=B:USR2@120",
        "#SBATCH --account=lab",
        "#SBATCH --time=12:00:00",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --cpus-per-task=96",
        "#SBATCH --gres=gpu:h200:8",
        "#SBATCH --partition=gpu",
    ]


def test_p49_the_site_says_the_gpu_dialect() -> None:
    assert gpu_directive({"gpu_dialect": "gpus-per-node", "gres_type": "a100"}, 4) == Directive(
        "gpus-per-node", "a100:4"
    )
    assert gpu_directive({"gpu_dialect": "gpus-per-node", "gres_type": ""}, 4) == Directive("gpus-per-node", "4")
    assert gpu_directive({"gpu_dialect": "gres", "gres_type": ""}, 1) == Directive("gres", "gpu:1")
    assert gpu_directive(H200, 0) is None


def test_p48_every_count_comes_from_the_one_shape() -> None:
    assert cpus_of({"gpus_per_node": 8, "cpus": 0}, H200, {}) == 96
    assert cpus_of({"gpus_per_node": 0, "cpus": 4}, {}, {}) == 4
    assert cpus_of({"gpus_per_node": 8, "cpus": 32}, H200, {}) == 32
    assert cpus_of({"gpus_per_node": 8, "cpus": 32}, H200, {"cpus_per_task": 7}) == 7


def test_two_pools_are_one_heterogeneous_job() -> None:
    roll = {"name": "roll", "nodes": 1, "gpus_per_node": 4, "memory_gb": 64, "cpus": 16}
    text = render(
        job_directives(IDENTITY, [(GPU_POOL, H200), (roll, {**H200, "partition": "roll"})], {"time": "10"}, signal=None)
    )
    first, second = text.split("\n#SBATCH hetjob\n")
    assert "#SBATCH --time=10" in first
    assert second.split("\n") == [
        "#SBATCH --nodes=1",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --cpus-per-task=16",
        "#SBATCH --gres=gpu:h200:4",
        "#SBATCH --partition=roll",
        "#SBATCH --mem=64G",
    ]


def test_p03_no_value_travels_in_export() -> None:
    assert [line for line in lines(comment="x") if "--export" in line] == ["#SBATCH --export=NIL"]


@pytest.mark.parametrize(
    "bad", ["a\nrm -rf /", "a b", "a'b", 'a"b', "$HOME", "a\\b", "a#b", "\u2028", "\x85", "`id`", "a;b", ""]
)
def test_p01_p02_what_bash_and_sbatch_read_differently_is_refused(bad: str) -> None:
    with pytest.raises(Refusal) as caught:
        Directive("comment", bad)
    assert caught.value.code == "E-SUBMIT-010"


def test_p08_a_line_over_1000_characters_is_refused() -> None:
    with pytest.raises(Refusal) as caught:
        Directive("nodelist", "n" * 1000)
    assert caught.value.code == "E-SUBMIT-011"


@given(st.text(max_size=40))
def test_p01_no_text_adds_a_line_or_leaves_the_directives(text: str) -> None:
    try:
        made = lines(comment=text)
    except Refusal:
        return
    assert len(made) == len(lines(comment="x"))
    assert all(line.startswith("#SBATCH --") and line.isprintable() for line in made)
