"""All runs quickly: the index is a snapshot, never truth (P19, P70)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from builder import RunMaker
from conftest import ME
from fakeslurm import FakeSlurm
from tuneplane.contract.layout import StorageRoot

from hpc.errors import Refusal
from hpc.runs import overview
from hpc.runs.asking import Asker
from hpc.runs.overview import index_path, read_index, state_of, survey
from hpc.site.sitefile import Site, parse_site

Make = Callable[..., RunMaker]


def site_of(fake: FakeSlurm) -> Site:
    return parse_site(
        f"schema: tuneplane-hpc/site/v1\nname: test\nfleets:\n  slurm: {{kind: slurm, bin_dir: {fake.bin}, conf: {fake.conf}}}\n"
    )


@pytest.fixture
def asker(root: StorageRoot, fake_slurm: FakeSlurm) -> Callable[[], Asker]:
    return lambda: Asker(root, ME, ME, site=lambda: site_of(fake_slurm), now=time.time)


def no_site() -> Site:
    raise AssertionError("the site must not be needed")


def live(fake: FakeSlurm, maker: RunMaker) -> RunMaker:
    """A run whose job is really in the fake Slurm."""
    job_id = fake.add(name=f"{maker.exp}.{maker.run_id}.0", comment=f"tp:{maker.run_id}:{maker.nonce}", user=ME)
    maker.job_id = str(job_id)
    maker.clock = time.time() - 1772366400  # builder's START
    return maker.package().admit().submit()


def test_open_and_finished_runs(
    root: StorageRoot, make_run: Make, asker: Callable[[], Asker], fake_slurm: FakeSlurm
) -> None:
    make_run("run-aa01").done()
    maker = live(fake_slurm, make_run("run-bb01", "eval"))
    fake_slurm.start(maker.job_id)
    found = survey(root, ME, asker())
    assert dict(found.counts()) == {"done": 1, "running": 1}
    assert [(r.run_id, s.cls) for r, s in found.newest()] == [("run-bb01", "running"), ("run-aa01", "done")]
    assert [r.run_id for r, _ in found.newest(1)] == ["run-bb01"]
    assert [r.run_id for r, _ in found.newest(exp="sft")] == ["run-aa01"]
    assert [r.run_id for r, _ in found.newest(cls="done")] == ["run-aa01"]
    assert [r.run_id for r, _ in found.newest(only_open=True)] == ["run-bb01"]
    assert len(fake_slurm.calls()) == 1


def test_finished_runs_come_from_the_index_and_need_neither_records_nor_site(
    root: StorageRoot, make_run: Make, asker
) -> None:  # type: ignore[no-untyped-def]
    maker = make_run("run-aa01").done()
    survey(root, ME, asker())
    assert list(read_index(index_path(root, ME, ME))) == [("sft", "run-aa01")]
    before = maker.run.root.stat()
    (maker.run.attempt(0).end).unlink()
    os.utime(maker.run.root, ns=(before.st_atime_ns, before.st_mtime_ns))
    found = survey(root, ME, Asker(root, ME, ME, site=no_site, now=time.time))
    assert [(s.cls, s.evidence) for _, s in found.newest()] == [("done", "own record")]


def test_an_entry_counts_only_while_the_folder_has_its_time(
    root: StorageRoot, make_run: Make, asker, fake_slurm: FakeSlurm
) -> None:  # type: ignore[no-untyped-def]
    maker = make_run("run-aa01").package().admit().submit().start().end(0, "error")
    assert dict(survey(root, ME, asker()).counts()) == {"error": 1}
    maker.job_id = "200"
    maker.submit(1)
    os.utime(maker.run.root)
    fake_slurm.add(id=200, name=f"sft.{maker.run_id}.1", comment=maker.nonce, user=ME)
    asker().forget("slurm")  # what a retry does
    assert dict(survey(root, ME, asker()).counts()) == {"queued": 1}
    assert read_index(index_path(root, ME, ME)) == {}


def test_p30_a_finished_run_whose_job_lives_again_is_looked_at(
    root: StorageRoot, make_run: Make, asker, fake_slurm: FakeSlurm
) -> None:  # type: ignore[no-untyped-def]
    revived = live(fake_slurm, make_run("run-aa01"))
    revived.start().end(0, "error")
    other = live(fake_slurm, make_run("run-bb01"))
    fake_slurm.finish(revived.job_id, "FAILED", 1)
    assert dict(survey(root, ME, asker()).counts()) == {"error": 1, "queued": 1}
    fake_slurm.requeue(revived.job_id)
    fake_slurm.start(other.job_id)
    (root.user_state(ME) / f"slurm-slurm-{ME}.json").unlink()
    assert dict(survey(root, ME, asker()).counts()) == {"requeued": 1, "running": 1}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"", b""),
        (b"/v2 ", b"/v1 "),
        (b"\tdone\t", b"\terror\t"),
        (b'"own record"', b'"own rec\xff\xfed"'),
        (b"\t", b" "),
        (b"\n", b""),
    ],
)
def test_p70_a_damaged_index_is_made_anew(
    root: StorageRoot, make_run: Make, asker, before: bytes, after: bytes
) -> None:  # type: ignore[no-untyped-def]
    make_run("run-aa01").done()
    survey(root, ME, asker())
    path = index_path(root, ME, ME)
    assert path is not None
    whole = path.read_bytes()
    assert before in whole
    path.write_bytes(whole.replace(before, after) if before else b"")
    assert read_index(path) == {}
    found = survey(root, ME, asker())
    assert (dict(found.counts()), path.read_bytes()) == ({"done": 1}, whole)


def test_words_of_a_damaged_record_do_not_break_the_index(root: StorageRoot, make_run: Make, asker) -> None:  # type: ignore[no-untyped-def]
    maker = make_run("run-aa01", job_id="1\t2\né").package().admit().submit().start().end(0, "error")
    survey(root, ME, asker())
    (entry,) = read_index(index_path(root, ME, ME)).values()
    assert (entry[1], entry[3]) == ("error", "")
    found = survey(root, ME, asker())
    assert [(r.run_id, s.job_id) for r, s in found.newest()] == [(maker.run_id, "1\\t2\\né")]


def test_a_run_that_was_removed_leaves_the_index(root: StorageRoot, make_run: Make, asker) -> None:  # type: ignore[no-untyped-def]
    import shutil

    maker = make_run("run-aa01").done()
    survey(root, ME, asker())
    shutil.rmtree(maker.run.root)
    assert survey(root, ME, asker()).newest() == []
    assert read_index(index_path(root, ME, ME)) == {}


def test_without_a_state_folder_it_works_and_says_so(root: StorageRoot, make_run: Make, asker) -> None:  # type: ignore[no-untyped-def]
    import shutil

    make_run("run-aa01").done()
    make_run("run-bb01").package().admit().submit()
    shutil.rmtree(root.user_state(ME))
    one = asker()
    found = survey(root, ME, one)
    assert dict(found.counts()) == {"done": 1, "queued": 1}
    assert found.index_saved is False
    assert "tp site user add" in one.polls["slurm"].error


def test_one_damaged_record_spoils_one_run_only(root: StorageRoot, make_run: Make, asker) -> None:  # type: ignore[no-untyped-def]
    make_run("run-aa01").done()
    broken = make_run("run-bb01").package().admit().submit()
    (broken.run.submissions / "0.json").write_text("{")
    found = survey(root, ME, asker())
    assert dict(found.counts()) == {"done": 1, "unknown": 1}


def test_ids_of_forgotten_jobs_of_all_runs_go_into_one_accounting_query(
    root: StorageRoot, make_run: Make, asker, fake_slurm: FakeSlurm
) -> None:  # type: ignore[no-untyped-def]
    makers = [live(fake_slurm, make_run(f"run-aa0{n}")) for n in range(3)]
    for maker in makers:
        fake_slurm.finish(maker.job_id, "TIMEOUT")
        fake_slurm.purge(maker.job_id)
    facts, state = state_of(makers[0].run, asker())
    assert (state.cls, state.evidence, len(facts.submissions)) == ("timeout", "sacct", 1)
    assert dict(survey(root, ME, asker()).counts()) == {"timeout": 3}
    assert [c["tool"] for c in fake_slurm.calls()] == ["squeue", "sacct"]


def test_a_missing_slurm_is_a_refusal(root: StorageRoot, make_run: Make, fake_slurm: FakeSlurm) -> None:
    make_run("run-aa01").package().admit().submit()
    site = parse_site(
        "schema: tuneplane-hpc/site/v1\nname: test\nfleets:\n  slurm: {kind: slurm, bin_dir: /nonexistent}\n"
    )
    with pytest.raises(Refusal, match="E-SLURM-001"):
        survey(root, ME, Asker(root, ME, ME, site=lambda: site, now=time.time))


def test_a_local_process_is_known_by_pid_start_and_host(root: StorageRoot, make_run: Make) -> None:
    from hpc.store.owners import start_ticks

    here = os.uname().nodename
    maker = make_run("run-aa01", kind="local", job_id="local-1").package().admit()
    maker.submit(pid=os.getpid(), pid_start=start_ticks(os.getpid())).start(hosts=(here,))
    one = Asker(root, ME, ME, site=no_site, now=time.time)
    assert state_of(maker.run, one)[1].cls == "running"
    elsewhere = Asker(root, ME, ME, site=no_site, now=time.time, host="another")
    assert state_of(maker.run, elsewhere)[1].evidence == "own record"
    other = make_run("run-bb01", kind="local", job_id="local-1").package().admit()
    other.submit(pid=os.getpid(), pid_start=1).start(hosts=(here,))
    assert state_of(other.run, one)[1].cls == "vanished"


def test_the_index_of_ten_thousand_runs_is_read_without_touching_a_record(
    root: StorageRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What makes it quick, counted instead of timed: one listing a folder, no record opened, no state unpacked that is not shown."""
    from hpc.runs.state import RunState

    state = RunState("done", "own record", "ended", True, "done", 0, 1, "1", "slurm", "slurm", 1.0)
    closed = {}
    for exp in range(10):
        base = root.owner_runs(ME) / f"exp{exp}"
        base.mkdir()
        for n in range(100):
            folder = base / f"run-{exp:02x}{n:06x}"
            folder.mkdir()
            closed[base.name, folder.name] = overview._entry(
                folder.stat().st_mtime_ns, replace(state, submitted_at=float(n))
            )
    assert overview._write_index(index_path(root, ME, ME), closed)
    monkeypatch.setattr(overview, "read_facts", lambda run: pytest.fail(f"{run.root} was read"))
    found = survey(root, ME, Asker(root, ME, ME, site=no_site, now=time.time))
    assert dict(found.counts()) == {"done": 1000}
    assert [s.cls for _, s in found.newest(2)] == ["done", "done"]
