"""scontrol show config and sinfo."""

from __future__ import annotations

import pytest
from fakeslurm import FakeSlurm

from hpc.errors import Refusal
from hpc.slurm.commands import Slurm
from hpc.slurm.site_facts import Partition, SlurmFacts, parse_config, partitions, read


def slurm_of(fake: FakeSlurm) -> Slurm:
    return Slurm(bin_dir=str(fake.bin), conf=fake.conf)


def test_the_facts_that_matter(make_fake_slurm) -> None:  # type: ignore[no-untyped-def]
    fake = make_fake_slurm(
        MaxArraySize="10001", MinJobAge="600 sec", AccountingStorageType="accounting_storage/slurmdbd", AccountingStoreFlags="job_comment",
        SchedulerParameters="bf_interval=2,defer", KillWait="5 sec", PreemptMode="GANG,SUSPEND", SLURM_VERSION="22.05.8",
    )  # fmt: skip
    facts = read(slurm_of(fake))
    assert (facts.cluster, facts.version, facts.max_array_size, facts.min_job_age_s, facts.kill_wait_s) == (
        "fake",
        (22, 5),
        10001,
        600,
        5,
    )
    assert (facts.accounting, facts.stores_comments, facts.requeues) == (True, True, True)
    assert (facts.preempt_mode, facts.preempt_type) == ("GANG,SUSPEND", "preempt/partition_prio")
    assert facts.parameters("SchedulerParameters") == {"bf_interval": "2", "defer": ""}


def test_missing_values_are_slurms_own_defaults() -> None:
    facts = SlurmFacts(parse_config("ClusterName = x\nSchedulerParameters = (null)\n"))
    assert (facts.max_array_size, facts.min_job_age_s, facts.kill_wait_s, facts.requeues) == (1001, 300, 30, True)
    assert (facts.version, facts.accounting, facts.preempt_mode) == ((0, 0), False, "OFF")
    assert facts.parameters("SchedulerParameters") == {}


def test_config_lines_with_equal_signs_and_noise() -> None:
    text = "banner!\nAuthInfo                = socket=/x,cred_expire=5\n\nCgroup Support Configuration:\nA = 1\nA = 2\nEmpty=\n"
    assert parse_config(text) == {"AuthInfo": "socket=/x,cred_expire=5", "A": "1", "Empty": ""}


def test_an_answer_that_is_no_configuration_is_refused(fake_slurm: FakeSlurm) -> None:
    fake_slurm.faults("scontrol garbage hello")
    with pytest.raises(Refusal, match="E-SLURM-007"):
        read(slurm_of(fake_slurm))
    fake_slurm.faults("scontrol fail refused")
    with pytest.raises(Refusal, match="E-SLURM-002"):
        read(slurm_of(fake_slurm))


def test_partitions(fake_slurm: FakeSlurm) -> None:
    assert partitions(slurm_of(fake_slurm)) == [
        Partition("batch", True, "7-00:00:00", 4, True),
        Partition("short", True, "10:00", 4, False),
    ]
