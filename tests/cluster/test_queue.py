"""What Slurm would swallow in silence: dependencies that can never be met, reasons that never clear, logs that cannot be opened."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab import Lab, Person
from labcluster import until

pytestmark = pytest.mark.cluster

HELD = ("--begin", "now+1hour")


def test_p10_the_log_can_be_opened_before_the_job_starts(lab: Lab, alice: Person) -> None:
    run = lab.submit(alice, "own", *HELD, "--label", "log=there")
    job = lab.cluster.job(run.job_id)
    log = Path(job["StdOut"])
    assert log == run.paths.batch / "0.log" == Path(job["StdErr"])
    assert (log.parent.is_dir(), log.exists(), lab.root.path in log.parents) == (True, False, True)
    assert job["WorkDir"] == str(run.paths.root)
    lab.slurm(alice, "scancel", run.job_id)


def test_p13_an_array_past_the_sites_limit_is_refused_with_the_limit(lab: Lab, alice: Person) -> None:
    assert "MaxArraySize            = 10001" in lab.cluster.tool("scontrol", "show", "config")
    (error,) = lab.tp(alice, "submit", "own", "--array", "5-10001", "--json", code=1).json["errors"]
    assert (error["code"], error["allowed"]) == ("E-SUBMIT-064", "indices below 10001")
    checks = lab.tp(alice, "doctor", "--json", code=None).json["checks"]
    assert [c["message"] for c in checks if c["name"] == "slurm.arrays@main"] == ["array indices go up to 10000"]


def test_p15_a_dependency_that_dies_takes_the_job_with_it_if_asked(lab: Lab, alice: Person) -> None:
    parent = lab.submit(alice, "own", *HELD, "--label", "place=parent")
    after = ("--dependency", f"afterok:{parent.job_id}")
    killed = lab.submit(alice, "own", *after, "--kill-on-invalid-dep", "--label", "place=killed")
    stuck = lab.submit(alice, "own", *after, "--no-kill-on-invalid-dep", "--label", "place=stuck")
    assert lab.tp(alice, "job", "status", stuck.id, "--json").json["runs"][0]["state"] == "queued"
    lab.tp(alice, "job", "stop", parent.id)
    assert lab.cluster.wait_state(killed.job_id, "CANCELLED") == "CANCELLED"
    until(
        "Slurm sees that the dependency is dead",
        lambda: lab.cluster.job(stuck.job_id)["Reason"] == "DependencyNeverSatisfied",
    )
    assert lab.tp(alice, "job", "wait", killed.id, "--timeout", "60", "--json", code=1).json["state"] == "cancelled"
    why = lab.tp(alice, "job", "why", stuck.id, "--json").json["why"]
    assert why["verdict"] == "hopeless"
    assert any(parent.job_id in fact["text"] for fact in why["facts"]), why
    refused = lab.tp(alice, "submit", "own", *after, "--label", "place=late", "--json", code=1).json["errors"]
    assert [e["code"] for e in refused] == ["E-SUBMIT-063"]
    assert f"afterok:{parent.job_id} can never be met" in refused[0]["message"]
    lab.tp(alice, "job", "stop", stuck.id)


def test_p25_a_reason_that_never_clears_is_told_apart_from_waiting(lab: Lab, alice: Person) -> None:
    run = lab.submit(alice, "own", "--partition", "short", "--time", "20")
    until("Slurm gives its reason", lambda: lab.cluster.job(run.job_id)["Reason"] == "PartitionTimeLimit")
    why = lab.tp(alice, "job", "why", run.id, "--json").json["why"]
    assert why["verdict"] == "user"
    assert "PartitionTimeLimit" in str(why["facts"])
    assert why["mend"] != []
    held = lab.submit(alice, "own", *HELD, "--label", "waits=well")
    assert lab.tp(alice, "job", "why", held.id, "--json").json["why"]["verdict"] == "wait"
    for job in (run, held):
        lab.tp(alice, "job", "stop", job.id)


def test_the_sites_limit_and_slurms_refusal_name_the_field(lab: Lab, alice: Person) -> None:
    cases = {
        ("--time", "2:00:00"): ("E-SUBMIT-060", "spec.slurm.time"),
        ("--partition", "nosuch"): ("E-SLURM-010", "spec.slurm.partition"),
        ("--account", "nosuch"): ("E-SLURM-011", "spec.slurm.account"),
        ("--constraint", "nosuch"): ("E-SLURM-015", "spec.slurm.constraint"),
    }
    before = lab.runs(alice, "own")
    for flags, wanted in cases.items():
        errors = lab.tp(alice, "submit", "own", *flags, "--json", code=1).json["errors"]
        assert [(e["code"], e["field"]) for e in errors] == [wanted]
    assert lab.runs(alice, "own") == before
