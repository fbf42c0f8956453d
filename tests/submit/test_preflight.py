"""What Slurm would accept and never start."""

from __future__ import annotations

import getpass

import pytest

from hpc.slurm.commands import Slurm
from hpc.spec.arrays import parse_array
from hpc.submit.preflight import array_chunks, check_array, check_dependency, dependency_refusals


@pytest.mark.parametrize(
    ("text", "states", "messages"),
    [
        ("afterok:7", {"7": "running"}, []),
        ("afterok:7", {"7": "done"}, []),
        ("afterok:7", {"7": "error"}, ["afterok:7 can never be met: that job ended error"]),
        ("afterok:7", {}, ["nobody knows job 7"]),
        ("afternotok:7", {"7": "done"}, ["afternotok:7 can never be met: that job succeeded"]),
        (
            "afterany:7,afterok:8",
            {"7": "error", "8": "timeout"},
            ["afterok:8 can never be met: that job ended timeout"],
        ),
        ("afterok:7_3", {"7": "pending"}, []),
        ("singleton", {}, []),
    ],
)
def test_p15_a_dependency_that_can_never_be_met_is_refused(
    text: str, states: dict[str, str], messages: list[str]
) -> None:
    assert [r.message for r in dependency_refusals(text, states)] == messages


def test_p15_parents_are_looked_up_in_the_queue_and_in_accounting(fake_slurm) -> None:
    slurm = Slurm(bin_dir=str(fake_slurm.bin), conf=fake_slurm.conf, deadline_s=10)
    me = getpass.getuser()
    running = fake_slurm.add(name="a", user=me)
    failed = fake_slurm.add(name="b", user=me)
    fake_slurm.start(running)
    fake_slurm.start(failed)
    fake_slurm.finish(failed, "FAILED", 1)
    fake_slurm.purge(failed)
    assert check_dependency(slurm, me, {"dependency": f"afterok:{running}"}) == []
    assert [r.message for r in check_dependency(slurm, me, {"dependency": f"afterok:{failed}"})] == [
        f"afterok:{failed} can never be met: that job ended error"
    ]
    assert [r.code for r in check_dependency(slurm, me, {"dependency": "afterok:999999"})] == ["E-SUBMIT-063"]


@pytest.mark.parametrize(
    ("text", "limit", "chunks"),
    [
        ("0-9", 1001, [(0, "0-9")]),
        ("0-1000%4", 1001, [(0, "0-1000%4")]),
        ("0-1001", 1001, [(0, "0-1000"), (1001, "0")]),
        ("1500,2-3%2", 1000, [(0, "2-3%2"), (1000, "500%2")]),
    ],
)
def test_p13_the_limit_bounds_the_index_not_the_count(text: str, limit: int, chunks: list[tuple[int, str]]) -> None:
    assert array_chunks(text, limit) == chunks
    assert sorted(offset + i for offset, part in chunks for i in parse_array(part)) == sorted(parse_array(text))


def test_p13_an_array_past_the_sites_limit_is_refused_with_the_split(make_fake_slurm) -> None:
    fake = make_fake_slurm("s", MaxArraySize="11")
    slurm = Slurm(bin_dir=str(fake.bin), conf=fake.conf, deadline_s=10)
    assert check_array(slurm, {"array": "0-10"}) == []
    (fault,) = check_array(slurm, {"array": "0-12"})
    assert (fault.code, fault.allowed) == ("E-SUBMIT-064", "indices below 11")
    assert fault.hint == "submit --array=0-10 (add 0 in your script); --array=0-1 (add 11 in your script)"
