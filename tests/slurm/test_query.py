"""Rows of squeue and sacct: named columns, lenient reading (P16, P18, P21)."""

from __future__ import annotations

import pytest
from fakeslurm import FakeSlurm
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc.errors import Refusal
from hpc.slurm import query
from hpc.slurm.commands import Slurm
from hpc.slurm.query import SEPARATOR, JobRow, by_name, history, jobs, moment, parse_sacct, parse_squeue

# One row as squeue 22.05 printed it, fields padded to their size.
SQUEUE = {
    "JobArrayID": "3+0", "JobID": "3", "State": "PENDING", "Reason": "Dependency", "SubmitTime": "2026-11-29T17:45:05",
    "StartTime": "N/A", "EndTime": "N/A", "NumNodes": "2", "NodeList": "", "Partition": "batch", "Account": "lab", "QOS": "normal",
    "UserName": "alice", "Cluster": "lab", "RestartCnt": "0", "TimeLimit": "1:00:00", "Dependency": "afterok:1(unfulfilled)",
    "Name": "tp-c", "Comment": "(null)",
}  # fmt: skip


def squeue_line(**changes: str) -> str:
    return "".join(f"{value:<20}{SEPARATOR}" for value in (SQUEUE | changes).values()) + "\n"


def slurm_of(fake: FakeSlurm) -> Slurm:
    return Slurm(bin_dir=str(fake.bin), conf=fake.conf)


def test_a_squeue_row_is_read() -> None:
    (row,) = parse_squeue(squeue_line()).rows
    assert (row.job_id, row.raw_id, row.base_id, row.cls, row.reason) == ("3+0", 3, 3, "pending", "Dependency")
    assert (row.submitted_at, row.started_at, row.nodes, row.node_list, row.comment) == (1795974305, None, 2, "", "")
    assert (row.restarts, row.dependency, row.source, row.active) == (0, "afterok:1(unfulfilled)", "squeue", True)


def test_p30_a_pending_job_that_ran_before_is_requeued() -> None:
    assert parse_squeue(squeue_line(RestartCnt="1")).rows[0].cls == "requeued"


def test_p21_null_fields_of_a_pending_job_do_no_harm() -> None:
    nulls = {
        "NodeList": "(null)",
        "StartTime": "NONE",
        "RestartCnt": "",
        "QOS": "(null)",
        "NumNodes": "2-4",
        "EndTime": "NONE",
    }
    (row,) = parse_squeue(squeue_line(**nulls)).rows
    assert (row.node_list, row.started_at, row.restarts, row.qos, row.nodes) == ("", None, None, "", 0)


def test_p80_banners_and_broken_rows_are_left_out_and_counted() -> None:
    text = (
        "Welcome to the cluster!\n"
        + squeue_line()
        + "CLUSTER: lab\n\n"
        + squeue_line(JobArrayID="x")
        + squeue_line()[:40]
        + "\n"
    )
    found = parse_squeue(text)
    assert len(found.rows) == 1
    assert found.skipped == 4


def test_a_comment_with_pipes_blanks_and_unicode_survives() -> None:
    assert parse_squeue(squeue_line(Comment="a|b, ü  c")).rows[0].comment == "a|b, ü  c"


def test_a_comment_that_holds_the_separator_costs_its_own_row_only() -> None:
    found = parse_squeue(squeue_line(Comment=f"a{SEPARATOR}b") + squeue_line())
    assert (len(found.rows), found.skipped) == (1, 1)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=200))
def test_no_text_makes_the_reader_fail(text: str) -> None:
    assert parse_squeue(text).skipped + len(parse_squeue(text).rows) <= text.count("\n") + 1
    assert parse_sacct(text).skipped + len(parse_sacct(text).rows) <= text.count("\n") + 1


def test_a_sacct_row_is_read() -> None:
    cells = ["2_1", "5", "CANCELLED by 1001", "None", "2026-11-29T17:45:05", "2026-11-29T17:45:06", "Unknown", "2", "None assigned",
             "batch", "lab", "normal", "alice", "lab", "01:00:00", "1:15", "tp-b", "tp n=1"]  # fmt: skip
    (row,) = parse_sacct(SEPARATOR.join(cells) + "\n").rows
    assert (row.job_id, row.raw_id, row.base_id, row.cls) == ("2_1", 5, 2, "cancelled")
    assert (row.exit_code, row.signal, row.node_list, row.ended_at, row.comment) == (1, 15, "", None, "tp n=1")
    assert row.restarts is None


def test_accounting_that_does_not_know_the_name_yet_says_nothing() -> None:
    cells = [
        "7",
        "7",
        "FAILED",
        "",
        *["Unknown"] * 3,
        "1",
        "n1",
        "",
        "",
        "",
        "alice",
        "lab",
        "",
        "1:0",
        "allocation",
        "",
    ]
    assert parse_sacct(SEPARATOR.join(cells)).rows[0].name == ""


def test_a_sacct_step_keeps_its_name() -> None:
    cells = [
        "7.batch",
        "7.batch",
        "OUT_OF_MEMORY",
        "",
        *["Unknown"] * 3,
        "1",
        "n1",
        "",
        "",
        "",
        "",
        "lab",
        "",
        "0:125",
        "batch",
        "",
    ]
    (row,) = parse_sacct(SEPARATOR.join(cells)).rows
    assert (row.job_id, row.raw_id, row.state, row.signal) == ("7.batch", 7, "OUT_OF_MEMORY", 125)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-29T17:45:05", 1795974305),
        ("N/A", None),
        ("Unknown", None),
        ("NONE", None),
        ("", None),
        ("1795974305", 1795974305),
    ],
)
def test_times_are_utc_seconds(text: str, expected: int | None) -> None:
    assert moment(text) == expected


def test_rows_survive_the_cache() -> None:
    (row,) = parse_squeue(squeue_line()).rows
    assert JobRow.from_json(row.as_json()) == row
    with pytest.raises(ValueError, match="not a job row"):
        JobRow.from_json({"job_id": "1"})


def test_p14_an_array_tasks_key_is_its_full_identity() -> None:
    one = parse_squeue(squeue_line(JobArrayID="2_1", JobID="5")).rows[0]
    again = parse_squeue(squeue_line(JobArrayID="2_1", JobID="5", RestartCnt="1")).rows[0]
    other = parse_squeue(squeue_line(JobArrayID="2_2", JobID="6")).rows[0]
    assert one.key == ("lab", "2_1", 0, 1795974305)
    assert len({one.key, again.key, other.key}) == 3


# Against the fake Slurm


def submit(slurm: Slurm, *options: str) -> str:
    return slurm.run("sbatch", ["--parsable", "--wrap=true", *options]).out.strip()


def test_jobs_of_one_user_ended_ones_too(fake_slurm: FakeSlurm) -> None:
    slurm = slurm_of(fake_slurm)
    first, second = submit(slurm, "--job-name=one", "--comment=n1"), submit(slurm, "--job-name=two")
    fake_slurm.add(user="somebody", name="alien")
    fake_slurm.start(first, "f[1-2]")
    fake_slurm.finish(second, "TIMEOUT")
    user = fake_slurm.job(first)["user"]
    rows = {r.job_id: r for r in jobs(slurm, user).rows}
    assert sorted(rows) == [first, second]
    assert (rows[first].cls, rows[first].node_list, rows[first].comment) == ("running", "f[1-2]", "n1")
    assert rows[second].cls == "timeout"


def test_history_shows_every_incarnation(fake_slurm: FakeSlurm) -> None:
    slurm = slurm_of(fake_slurm)
    job = submit(slurm, "--job-name=one")
    fake_slurm.start(job)
    fake_slurm.node_fail(job)
    assert [r.cls for r in history(slurm, ids=[job]).rows] == ["node_fail", "pending"]
    assert [r.cls for r in history(slurm, ids=[job], incarnations=False).rows] == ["pending"]


def test_p19_long_id_lists_are_asked_in_chunks(fake_slurm: FakeSlurm) -> None:
    history(slurm_of(fake_slurm), ids=[str(i) for i in range(1, 1201)])
    calls = fake_slurm.calls("sacct")
    assert len(calls) == 3
    assert [sum(a.count(",") + 1 for a in c["args"] if a.startswith("--jobs=")) for c in calls] == [500, 500, 200]


def test_history_without_ids_needs_a_start(fake_slurm: FakeSlurm) -> None:
    with pytest.raises(ValueError, match="start time"):
        history(slurm_of(fake_slurm), names=["x"])
    history(slurm_of(fake_slurm), names=["x"], since=86400)
    assert "--starttime=1970-01-02T00:00:00" in fake_slurm.calls("sacct")[0]["args"]


def test_failures_are_refusals_with_their_code(fake_slurm: FakeSlurm) -> None:
    fake_slurm.faults("squeue fail timeout\nsacct fail no-accounting")
    with pytest.raises(Refusal, match="E-SLURM-002"):
        jobs(slurm_of(fake_slurm), "alice")
    with pytest.raises(Refusal, match="E-SLURM-006"):
        history(slurm_of(fake_slurm), ids=["1"])


def test_p05_by_name_finds_a_job_whose_sbatch_timed_out(fake_slurm: FakeSlurm) -> None:
    slurm = slurm_of(fake_slurm)
    fake_slurm.faults("sbatch accept-then timeout")
    assert slurm.run("sbatch", ["--parsable", "--wrap=true", "--job-name=tp-x", "--comment=nonce"]).out == ""
    user = fake_slurm.jobs()[0]["user"]
    (row,) = by_name(slurm, user, "tp-x", since=0).rows
    assert (row.job_id, row.comment) == ("100", "nonce")
    assert by_name(slurm, user, "tp-y", since=0).rows == ()


def test_p05_by_name_looks_in_the_records_when_the_job_is_over(fake_slurm: FakeSlurm) -> None:
    slurm = slurm_of(fake_slurm)
    job = submit(slurm, "--job-name=tp-x")
    fake_slurm.finish(job)
    fake_slurm.purge(job)
    assert [r.source for r in by_name(slurm, fake_slurm.job(job)["user"], "tp-x", since=0).rows] == ["sacct"]


def test_by_name_without_accounting_trusts_the_controller(make_fake_slurm) -> None:  # type: ignore[no-untyped-def]
    fake = make_fake_slurm(accounting=False)
    assert by_name(slurm_of(fake), "alice", "tp-x", since=0) == query.Rows(())


def test_by_name_says_when_nobody_knows(fake_slurm: FakeSlurm) -> None:
    fake_slurm.faults("squeue fail refused")
    with pytest.raises(Refusal, match="E-SLURM-002"):
        by_name(slurm_of(fake_slurm), "alice", "tp-x", since=0)


def test_a_cluster_is_named_where_the_site_has_several(fake_slurm: FakeSlurm) -> None:
    jobs(Slurm(bin_dir=str(fake_slurm.bin), cluster="west"), "alice")
    assert "--clusters=west" in fake_slurm.calls("squeue")[0]["args"]


def test_p80_a_banner_in_front_of_the_rows(fake_slurm: FakeSlurm) -> None:
    slurm = slurm_of(fake_slurm)
    job = submit(slurm)
    fake_slurm.faults("squeue banner *** maintenance on Friday ***")
    found = jobs(slurm, fake_slurm.job(job)["user"])
    assert ([r.job_id for r in found.rows], found.skipped) == ([job], 1)
