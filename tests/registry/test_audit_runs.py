"""How an audit runs: one at a time, within budget and deadline, in several processes, through errors of the machine; and what it prints."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tuneplane.contract.layout import StorageRoot

from hpc.errors import Refusal
from hpc.registry import content, look, workers
from hpc.registry.audit import Options, Report, audit, coverage, only_one
from hpc.registry.auditreport import as_json, prometheus, write_prometheus
from hpc.registry.kinds import Checked
from hpc.registry.publish import Published
from hpc.registry.rotation import own_folder
from hpc.registry.seal import seal
from hpc.site.sitefile import Site
from hpc.site.users import User
from tests.registry.toys import CORE, NOW, TOY

Put = Callable[..., Published]
Run = Callable[..., Report]


@pytest.fixture
def run(root: StorageRoot, site: Site, me: User) -> Run:
    def do(**options: object) -> Report:
        return audit(
            root, [TOY], site=site, user=me, options=Options(**options), core_version=CORE, now=NOW  # type: ignore[arg-type]
        )  # fmt: skip

    return do


def test_a_budget_goes_round_and_says_how_far(put: Put, run: Run) -> None:
    sizes = {version: put(version).size for version in ("1.0", "1.1", "1.2", "1.3")}
    seen = []
    for _ in range(5):
        report = run(deep=True, budget=sizes["1.0"] + 1)
        assert (report.verdict, report.exit) == ("verified", 0)
        part = coverage(report)
        seen.append((part["round"], part["up_to"].rpartition("/")[2], part["round_versions"], part["hashed_versions"]))
        assert part["total_versions"] == 4
    assert seen == [(1, "1.1", 2, 2), (1, "1.3", 4, 2), (2, "1.1", 2, 2), (2, "1.3", 4, 2), (3, "1.1", 2, 2)]


def test_a_lost_place_of_the_rotation_costs_coverage_and_nothing_else(
    put: Put, run: Run, root: StorageRoot, me: User
) -> None:
    put("1.0")
    run(deep=True)
    (own_folder(root, me) / "rotation.json").write_bytes(b"not what we wrote")
    report = run(deep=True)
    assert report.verdict == "verified"
    assert [(p.level, p.code) for p in report.problems] == [("note", "rotation")]
    assert coverage(report)["hashed_versions"] == 1
    assert run(deep=True).problems == []


def test_a_deadline_leaves_the_audit_incomplete(put: Put, run: Run) -> None:
    put("1.0")
    report = run(deep=True, deadline=time.monotonic() - 1)
    assert (report.verdict, report.exit, report.quick_complete) == ("incomplete", 1, False)
    assert {p.code for p in report.problems} == {"deadline"}


def test_several_processes_find_the_same(put: Put, run: Run) -> None:
    for name in ("a", "b", "c"):
        put("1.0", name=name)
    damaged = put("1.1", name="b").folder / "content/README.md"
    damaged.write_bytes(b"# TOY\n")
    one, two = run(deep=True), run(deep=True, jobs=2)
    assert one.problems == two.problems
    assert [p.path.rpartition("/")[2] for p in two.problems] == ["README.md"]
    assert (two.tally.versions, two.tally.hashed, two.exit) == (4, one.tally.hashed, 2)


def test_a_process_that_is_killed_costs_its_part_and_not_the_audit(
    put: Put, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        put("1.0", name=name)
    parent, real = os.getpid(), workers.check_package

    def dying(*args: object) -> object:
        if os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(workers, "check_package", dying)
    report = run(jobs=2)
    assert (report.verdict, report.exit) == ("incomplete", 1)
    assert {p.code for p in report.problems} == {"worker-died"}


def test_a_kind_that_trips_is_our_bug_and_not_the_records(put: Put, root: StorageRoot, site: Site, me: User) -> None:
    put("1.0")

    def trips(folder: Path) -> object:
        raise ZeroDivisionError

    kind = replace(TOY, check=trips)  # type: ignore[arg-type]
    report = audit(root, [kind], site=site, user=me, options=Options(deep=True), core_version=CORE, now=NOW)
    assert [(p.level, p.code) for p in report.problems] == [("incomplete", "bug")]


def fail_open(monkeypatch: pytest.MonkeyPatch, end: str, number: int, times: int = 10**6) -> None:
    """Opening a path that ends so fails with this error, so many times."""
    real, left = os.open, [times]

    def failing(path: object, *args: object, **kwargs: object) -> int:
        if str(path).endswith(end) and left[0]:
            left[0] -= 1
            raise OSError(number, os.strerror(number), str(path))
        return real(path, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", failing)


@pytest.mark.parametrize(("number", "code"), [(errno.EKEYEXPIRED, "E-STORE-022"), (errno.ENOKEY, "E-STORE-022")])
def test_p73_no_ticket_is_a_class_of_its_own(
    put: Put, run: Run, monkeypatch: pytest.MonkeyPatch, number: int, code: str
) -> None:
    put("1.0")
    with monkeypatch.context() as patch:
        fail_open(patch, "record.json", number)
        report = run()
    assert (report.verdict, report.exit, report.no_ticket) == ("incomplete", 75, 1)
    assert [(p.level, p.code) for p in report.problems] == [("incomplete", code)]
    assert as_json(report)["no_ticket"] == 1
    assert "tuneplane_registry_audit_no_ticket 1\n" in prometheus(report)


def test_p73_a_registry_that_cannot_be_entered_for_want_of_a_ticket_is_tried_again(
    run: Run, root: StorageRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.listdir

    def expired(path: object = ".") -> list[str]:
        if path == root.registry:
            raise OSError(errno.EKEYEXPIRED, os.strerror(errno.EKEYEXPIRED))
        return real(path)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "listdir", expired)
    with pytest.raises(Refusal) as caught:
        run()
    assert (caught.value.code, caught.value.exit) == ("E-STORE-022", 75)


def test_access_denied_is_incomplete_and_never_tampered(put: Put, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    put("1.0")
    fail_open(monkeypatch, "content", errno.EACCES)
    report = run(deep=True)
    assert (report.verdict, report.exit) == ("incomplete", 1)
    assert {p.code for p in report.problems} == {"E-STORE-021"}


@pytest.mark.parametrize(("times", "verdict"), [(2, "verified"), (3, "incomplete")])
def test_p69_a_stale_handle_is_opened_again(
    put: Put, run: Run, monkeypatch: pytest.MonkeyPatch, times: int, verdict: str
) -> None:
    put("1.0")
    with monkeypatch.context() as patch:
        fail_open(patch, "record.json", errno.ESTALE, times)
        report = run()
    assert report.verdict == verdict
    assert {p.code for p in report.problems} <= {"E-STORE-023"}


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSPC, errno.EDQUOT])
def test_p61_an_audit_without_locks_goes_on_and_says_so(
    root: StorageRoot, me: User, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refused(*args: object, **kwargs: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refused)
    with only_one(root, me) as why:
        assert why.startswith("other audits are not held off")


def test_p70_there_is_no_database() -> None:
    room = Path(look.__file__).parent
    words = re.compile(r"sqlite|\bdbm\b|\bshelve\b")
    assert [p.name for p in room.glob("*.py") if words.search(p.read_text("utf-8"))] == []


def test_p59_two_trees_with_one_v1_digest_are_told_apart(
    put: Put, run: Run, root: StorageRoot, site: Site, me: User
) -> None:
    """The documented digest does not see the executable bit; the record and the framed digest do."""
    done = put("1.0")
    seal(root, [TOY], site=site, user=me, now=NOW)
    (done.folder / "content/lib/toy.py").chmod(0o555)
    report = run(deep=True)
    assert report.exit == 2
    assert {p.path.rpartition("/")[2] for p in report.problems} == {"toy.py"}


def test_prometheus_gets_a_whole_file(put: Put, run: Run, scratch: Path) -> None:
    put("1.0").folder.chmod(0o755)
    report = run(deep=True)
    path = scratch / "registry.prom"
    path.write_text("old")
    write_prometheus(path, report)
    lines = path.read_text().splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert values["tuneplane_registry_audit_exit_code"] == "2"
    assert values['tuneplane_registry_audit_problems{level="tampered"}'] == "1"
    assert values["tuneplane_registry_audit_versions"] == "1"
    assert all(re.fullmatch(r"(# (HELP|TYPE) )?tuneplane_registry_audit_\w+.*", line) for line in lines)
    assert os.listdir(scratch).count("registry.prom") == 1


def tp(root: StorageRoot, *words: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).parent / "tp"
    env = {**os.environ, "TUNEPLANE_STORAGE_ROOT": str(root.path)}
    return subprocess.run([program, "registry", *words], capture_output=True, text=True, check=False, env=env)


def test_the_command_ends_with_the_documented_codes(root: StorageRoot, me: User) -> None:
    assert tp(root, "audit").returncode == 0
    lock = own_folder(root, me)
    from hpc.store.locks import held

    with held(lock / "audit.lock"):
        busy, idle = tp(root, "audit", "--json"), tp(root, "audit", "--if-idle")
    assert (busy.returncode, idle.returncode, idle.stdout + idle.stderr) == (75, 0, "")
    assert "E-REG-030" in busy.stdout + busy.stderr
    (root.registry / "strange").mkdir()
    done = tp(root, "audit", "--deep", "--json")
    assert done.returncode == 2
    found = json.loads(done.stdout)
    assert (found["verdict"], found["exit"], found["problems"][0]["path"]) == ("tampered", 2, "registry/strange")
    assert tp(root, "audit", "--budget", "50GB").returncode == 64


def test_deep_hashing_reads_the_v1_digest_only_where_no_seal_has(
    put: Put, run: Run, root: StorageRoot, site: Site, me: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("1.0")
    asked = []
    real = content.Hasher.__init__

    def init(self: content.Hasher, where: str, record: object, *, v1: bool, **more: object) -> None:
        asked.append(v1)
        real(self, where, record, v1=v1, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(content.Hasher, "__init__", init)
    run(deep=True)
    seal(root, [TOY], site=site, user=me, now=NOW)
    run(deep=True)
    assert asked == [True, True, False]


@pytest.mark.parametrize(
    ("readers", "level", "exit_code"), [(frozenset(), "tampered", 2), (frozenset({"E-REG-004"}), "note", 0)]
)
def test_what_only_this_reader_cannot_read_accuses_nobody(
    put: Put, root: StorageRoot, site: Site, me: User, readers: frozenset[str], level: str, exit_code: int
) -> None:
    """An older Python in cron than the publisher's: the bytes are the recorded ones, the check alone does not understand them."""

    def refuse(folder: Path) -> Checked:
        raise Refusal("E-REG-004", "is newer than this reader", field="toy.json")

    put("1.0")
    kind = replace(TOY, check=refuse, reader_codes=readers)
    report = audit(root, [kind], site=site, user=me, options=Options(deep=True), core_version=CORE, now=NOW)
    assert [(p.level, p.code) for p in report.problems] == [(level, "E-REG-004")]
    assert report.exit == exit_code
