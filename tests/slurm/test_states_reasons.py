"""States and pending reasons (P25, P28)."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc.slurm.reasons import explain, words
from hpc.slurm.states import canonical, state_class

REASONS = (Path(__file__).parent.parent / "data/slurm/reasons-22.05.txt").read_text().split()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PENDING", "pending"), ("CONFIGURING", "pending"), ("RUNNING", "running"), ("COMPLETING", "running"), ("CG", "running"),
        ("REQUEUED", "requeued"), ("REQUEUE_HOLD", "requeued"), ("COMPLETED", "done"), ("PREEMPTED", "preempted"),
        ("TIMEOUT", "timeout"), ("DEADLINE", "timeout"), ("NODE_FAIL", "node_fail"), ("BOOT_FAIL", "node_fail"),
        ("CANCELLED by 1001", "cancelled"), ("CANCELLED+", "cancelled"), ("FAILED", "error"), ("OUT_OF_MEMORY", "error"),
        ("OUT_OF_ME+", "unknown"), ("", "unknown"), ("NEW_STATE", "unknown"), ("completed", "done"), ("R", "running"),
    ],
)  # fmt: skip
def test_p28_states_have_classes(text: str, expected: str) -> None:
    assert state_class(text) == expected


def test_canonical_is_idempotent_and_keeps_the_unknown() -> None:
    assert canonical("CANCELLED by 1001") == "CANCELLED"
    assert canonical("MYSTERY") == "MYSTERY"
    assert canonical(canonical("CD")) == "COMPLETED"


@pytest.mark.parametrize("word", REASONS)
def test_p25_every_reason_of_slurm_has_an_outlook_and_a_mend(word: str) -> None:
    reason = explain(word)
    assert reason.outlook in {"wait", "user", "admin", "hopeless"}
    assert reason.meaning
    assert reason.mend


@pytest.mark.parametrize(
    ("word", "outlook"),
    [
        ("Priority", "wait"), ("Resources", "wait"), ("(ReqNodeNotAvail, UnavailableNodes:n[1-2])", "wait"),
        ("PartitionTimeLimit", "user"), ("PartitionNodeLimit", "user"), ("BadConstraints", "hopeless"),
        ("DependencyNeverSatisfied", "hopeless"), ("JobHeldUser", "user"), ("JobHeldAdmin", "admin"), ("PartitionDown", "admin"),
        ("AssocGrpCpuLimit", "wait"), ("AssocGrpGRES", "wait"), ("AssocGrpCPUMinutesLimit", "admin"), ("AssocGrpGRESMinutes", "admin"),
        ("AssocGrpCPURunMinutesLimit", "wait"), ("QOSMaxJobsPerUserLimit", "wait"), ("QOSMaxGRESPerUser", "wait"),
        ("QOSMaxWallDurationPerJobLimit", "user"), ("QOSMaxGRESPerJob", "user"), ("QOSMaxCpuMinutesPerJobLimit", "user"),
        ("QOSMinGRES", "user"), ("QOSUsageThreshold", "admin"), ("MaxGRESPerAccount", "wait"),
        ("Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions", "wait"),
        ("Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions", "wait"),
    ],
)  # fmt: skip
def test_p25_reasons(word: str, outlook: str) -> None:
    assert explain(word).outlook == outlook


def test_p25_an_unknown_reason_is_said_to_be_unknown() -> None:
    assert explain("SiteSpecificThing").outlook == "unknown"
    assert explain("SiteSpecificThing").word == "SiteSpecificThing"


def test_the_table_has_no_reason_twice() -> None:
    lowered = [w.lower() for w in words()]
    assert len(lowered) == len(set(lowered))
