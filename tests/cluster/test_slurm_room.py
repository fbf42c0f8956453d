"""The slurm room against the real commands: what it reads, what it cancels, and what the words of a real refusal mean."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from lab import Lab, Person
from labcluster import until

from hpc.errors import Refusal
from hpc.slurm import query, site_facts
from hpc.slurm.commands import Slurm
from hpc.slurm.query import JobRow
from hpc.slurm.reasons import explain
from hpc.slurm.verdicts import classify, refusal

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def slurm(lab: Lab) -> Slurm:
    """Slurm's commands as root uses them on the login node."""
    return Slurm(bin_dir="/usr/bin", conf=lab.cluster.conf)


class Jobs:
    """Jobs that a test submits as alice; all are cancelled at its end."""

    def __init__(self, lab: Lab, who: Person) -> None:
        self._lab, self._who = lab, who
        self.ids: list[str] = []

    def submit(self, name: str, *options: str, script: str = "sleep 60") -> str:
        words = ("sbatch", "--parsable", f"--job-name={name}", "--output=/dev/null", *options, f"--wrap={script}")
        self.ids.append(self._lab.slurm(self._who, *words).out.strip())
        return self.ids[-1]


@pytest.fixture
def jobs(lab: Lab, alice: Person) -> Iterator[Jobs]:
    made = Jobs(lab, alice)
    yield made
    if made.ids:
        lab.slurm(alice, "scancel", *made.ids, code=None)


def row_of(slurm: Slurm, who: Person, name: str) -> JobRow:
    (row,) = query.jobs(slurm, who.name, name=name).rows
    return row


def test_a_running_job_with_every_column(lab: Lab, slurm: Slurm, alice: Person, jobs: Jobs) -> None:
    job = jobs.submit("columns", "--comment=tp:run-0001:abc|d e", "--nodes=2", "--partition=calm", "--time=7")
    lab.cluster.wait_state(job, "RUNNING")
    row = row_of(slurm, alice, "columns")
    assert (row.job_id, row.raw_id, row.cls, row.comment) == (job, int(job), "running", "tp:run-0001:abc|d e")
    assert (row.nodes, row.partition, row.account, row.user, row.restarts, row.time_limit) == (
        2,
        "calm",
        "lab",
        alice.name,
        0,
        "7:00",
    )
    assert row.submitted_at is not None
    assert row.started_at is not None
    assert abs(row.submitted_at - time.time()) < 3600  # UTC, whatever the machine's zone is
    assert row.submitted_at <= row.started_at
    assert row.node_list.startswith(lab.cluster.prefix)


@pytest.mark.parametrize(
    ("options", "reason", "outlook"),
    [
        (("--partition=short", "--time=2:00:00"), "PartitionTimeLimit", "user"),
        (("--partition=calm", "--nodes=4"), "PartitionNodeLimit", "user"),
        (("--begin=now+1hour",), "BeginTime", "wait"),
        (("--hold",), "JobHeldUser", "user"),
    ],
)
def test_p25_real_pending_reasons_are_explained(
    slurm: Slurm, alice: Person, jobs: Jobs, options: tuple[str, ...], reason: str, outlook: str
) -> None:
    name = f"waits-{reason}"
    jobs.submit(name, *options)
    found = until(f"reason {reason}", lambda: (row := row_of(slurm, alice, name)).reason == reason and row)
    assert isinstance(found, JobRow)
    assert (found.cls, explain(found.reason).outlook) == ("pending", outlook)


def test_p15_a_dependency_that_cannot_be_met_any_more(lab: Lab, slurm: Slurm, alice: Person, jobs: Jobs) -> None:
    parent = jobs.submit("parent", script="false")
    child = jobs.submit("child", f"--dependency=afterok:{parent}")
    lab.cluster.wait_state(parent, "FAILED")
    found = until(
        "the dependency is given up",
        lambda: (row := row_of(slurm, alice, "child")).reason == "DependencyNeverSatisfied" and row,
    )
    assert isinstance(found, JobRow)
    assert (found.job_id, explain(found.reason).outlook) == (child, "hopeless")
    assert found.dependency.startswith(f"afterok:{parent}(")


def test_p14_array_tasks_have_their_own_rows(slurm: Slurm, alice: Person, jobs: Jobs) -> None:
    job = jobs.submit("array", "--array=0-5%1", "--begin=now+1hour")
    row = row_of(slurm, alice, "array")
    assert (row.job_id, row.base_id) == (f"{job}_[0-5%1]", int(job))


def test_p16_scancel_with_a_name_hits_no_other_job(lab: Lab, slurm: Slurm, alice: Person, jobs: Jobs) -> None:
    job = jobs.submit("mine", "--begin=now+1hour")
    assert classify(slurm.run("scancel", [f"--user={alice.name}", "--name=another", job])) == "ok"
    assert lab.cluster.job_state(job) == "PENDING"
    assert classify(slurm.run("scancel", [f"--user={alice.name}", "--name=mine", job])) == "ok"
    assert lab.cluster.wait_state(job, "CANCELLED") == "CANCELLED"


def test_p18_accounting_tells_how_a_job_ended_with_its_steps(lab: Lab, slurm: Slurm, alice: Person, jobs: Jobs) -> None:
    job = jobs.submit("ends", script="exit 3")
    lab.cluster.wait_state(job, "FAILED")
    rows = until(
        "sacct knows the end", lambda: [r for r in query.history(slurm, ids=[job]).rows if not r.active and r.name]
    )
    assert isinstance(rows, list)
    assert [(r.job_id, r.cls, r.exit_code, r.signal, r.name) for r in rows] == [(job, "error", 3, 0, "ends")]
    assert {r.job_id for r in query.history(slurm, ids=[job], steps=True).rows} == {job, f"{job}.batch"}
    assert [
        r.job_id for r in query.history(slurm, names=["ends"], user=alice.name, since=int(time.time()) - 3600).rows
    ] == [job]


def test_p30_a_requeued_job_has_two_lives_in_accounting(lab: Lab, slurm: Slurm, alice: Person, jobs: Jobs) -> None:
    job = jobs.submit("lives")
    lab.cluster.wait_state(job, "RUNNING")
    lab.slurm(alice, "scontrol", "requeue", job)
    found = until("the second life", lambda: (row := row_of(slurm, alice, "lives")).restarts == 1 and row)
    assert isinstance(found, JobRow)
    assert found.job_id == job
    assert found.cls in ("requeued", "running")
    lives = until("both lives", lambda: len(rows := query.history(slurm, ids=[job]).rows) == 2 and rows)
    assert isinstance(lives, tuple)
    assert lives[0].ended_at is not None


@pytest.mark.parametrize(
    ("options", "code", "field"),
    [
        (("--partition=nope",), "E-SLURM-010", "spec.slurm.partition"),
        (("--account=nope",), "E-SLURM-011", "spec.slurm.account"),
        (("--qos=nope",), "E-SLURM-012", "spec.slurm.qos"),
        (("--constraint=nope",), "E-SLURM-015", "spec.slurm.constraint"),
        (("--gres=gpu:nope:1",), "E-SLURM-015", "spec.resources.pools"),
        (("--array=0-99999",), "E-SLURM-017", "spec.slurm.array"),
        (("--reservation=nope",), "E-SLURM-018", "spec.slurm.reservation"),
        (("--nope",), "E-SLURM-019", ""),
    ],
)
def test_p06_what_the_real_sbatch_refuses_is_never_tried_again(
    slurm: Slurm, options: tuple[str, ...], code: str, field: str
) -> None:
    done = slurm.run("sbatch", ["--parsable", *options, "--wrap=true", "--output=/dev/null"])
    assert classify(done) == "refuse"
    refused = refusal(done, "submit the job")
    assert (refused.code, refused.field) == (code, field)


def test_facts_and_partitions_of_the_real_site(lab: Lab, slurm: Slurm) -> None:
    facts = site_facts.read(slurm)
    assert facts.version >= (20, 11)
    assert (facts.cluster, facts.accounting, facts.stores_comments, facts.requeues) == ("lab", True, True, True)
    assert (facts.max_array_size, facts.min_job_age_s, facts.preempt_mode) == (10001, 3600, "REQUEUE")
    assert {p.name for p in site_facts.partitions(slurm)} >= {"batch", "calm", "short"}


def test_a_missing_configuration_is_told_in_our_words() -> None:
    with pytest.raises(Refusal) as caught:
        query.jobs(Slurm(bin_dir="/usr/bin", conf="/nonexistent/slurm.conf", deadline_s=3), "alice")
    assert caught.value.code in ("E-SLURM-003", "E-SLURM-005")


def test_p26_waits_of_earlier_jobs_are_read(lab: Lab, slurm: Slurm, jobs: Jobs) -> None:
    job = jobs.submit("waited", "--partition=calm", script="true")
    lab.cluster.wait_state(job, "COMPLETED")
    found = until("sacct knows the wait", lambda: query.waits(slurm, "calm", since=int(time.time()) - 3600))
    assert isinstance(found, list)
    assert all(w.wait_s >= 0 and w.nodes >= 1 for w in found)
