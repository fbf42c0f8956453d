"""All runs in one nightly visit: what is damaged is named, what goes on is counted, and a budget goes round."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from builder import RunMaker
from conftest import ME
from tuneplane.contract.layout import StorageRoot

from hpc.cli import main as cli
from hpc.registry.audit import Options, Report, coverage
from hpc.registry.rotation import own_folder
from hpc.runs import nightly
from hpc.runs.nightly import Nightly, as_json
from hpc.site.layout import init_root
from hpc.site.sitefile import load_site
from hpc.site.users import real_user
from hpc.store.locks import held
from hpc.store.owners import this_process

Make = Callable[..., RunMaker]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StorageRoot:
    root = init_root(tmp_path / "root", name="lab", fleet="local").root
    monkeypatch.setenv("TUNEPLANE_STORAGE_ROOT", str(root.path))
    return root


@pytest.fixture
def make(lab: StorageRoot) -> Make:
    def do(number: int = 0, exp: str = "sft", **kwargs: object) -> RunMaker:
        return RunMaker(lab, owner=ME, exp=exp, run_id=f"run-{number:08x}", **kwargs)  # type: ignore[arg-type]

    return do


def night(root: StorageRoot, *, deep: bool = False, budget: int | None = None, **options: object) -> Report:
    visit = Nightly(
        root, site=load_site(root), user=real_user(), options=Options(deep, **options), now="2026-03-01T03:15:00.000000Z"  # type: ignore[arg-type]
    )  # fmt: skip
    visit.quick()
    if deep:
        visit.deep(budget)
    return visit.report


def told(report: Report) -> list[tuple[str, str, str]]:
    return [(p.level, p.code, p.path) for p in report.problems]


def flip(path: Path) -> None:
    data = path.read_bytes()
    path.chmod(0o644 | path.stat().st_mode)
    path.write_bytes(bytes([data[0] ^ 1]) + data[1:])


def test_runs_are_counted_and_what_goes_on_or_failed_is_no_problem(lab: StorageRoot, make: Make) -> None:
    make(1).done()
    make(2).package().admit().submit().start()
    make(3, exp="other").package().admit().submit().start().nodes(0, 1, 1).end(0, "error")
    report = night(lab)
    assert (report.verdict, report.exit, report.problems) == ("verified", 0, [])
    counts = as_json(report)["counts"]
    assert {k: counts[k] for k in ("owners", "runs", "verified", "incomplete", "tampered")} == {
        "owners": 1, "runs": 3, "verified": 1, "incomplete": 2, "tampered": 0
    }  # fmt: skip
    assert as_json(report)["coverage"] is None


def test_damage_is_named_once_by_the_pass_that_sees_it(lab: StorageRoot, make: Make) -> None:
    one, two = make(1).done(), make(2).done()
    flip(one.run.attempt(0).out / "adapter.safetensors")
    two.run.report.unlink()
    first = [("tampered", "E-RUNS-031", f"runs/{ME}/sft/run-00000002/report.json")]
    assert told(night(lab)) == first
    both = [*first, ("tampered", "E-RUNS-031", f"runs/{ME}/sft/run-00000001/attempts/0/out/adapter.safetensors")]
    assert told(night(lab, deep=True)) == both
    assert told(night(lab, deep=True, jobs=2)) == both


def test_a_budget_goes_round_over_runs_and_says_how_far(lab: StorageRoot, make: Make) -> None:
    for number in range(4):
        make(number).done()
    size = night(lab).tally.size // 4
    seen = []
    for _ in range(4):
        part = coverage(night(lab, deep=True, budget=size + 1))
        seen.append((part["round"], part["up_to"].rpartition("-")[2], part["round_versions"], part["round_share"]))
    halves = [("00000001", 2, "0.5000"), ("00000003", 4, "1.0000")]
    assert seen == [(number, *half) for number in (1, 2) for half in halves]
    (own_folder(lab, real_user()) / nightly.ROTATION).write_bytes(b"damaged")
    assert [(p.level, p.code) for p in night(lab, deep=True, budget=1).problems] == [("note", "rotation")]


def test_a_run_that_no_night_has_the_time_for_is_named_and_passed_over(
    lab: StorageRoot, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be begun every night, and nothing behind it would ever be read."""
    make(1).done()
    make(2).done()
    real = nightly.audit

    def slow(run: object, **options: object) -> object:
        if options.get("deep", True) and str(run.root).endswith("1"):  # type: ignore[attr-defined]
            options["stop"] = lambda: True
        return real(run, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(nightly, "audit", slow)
    report = night(lab, deep=True)
    assert told(report)[1:] == [("incomplete", "too-large", f"runs/{ME}/sft/run-00000001")]
    assert (report.exit, report.deep_complete) == (1, False)
    report = night(lab, deep=True)
    assert report.tally.hashed_versions == 1, "the one behind it"


def test_a_deadline_leaves_the_visit_incomplete(lab: StorageRoot, make: Make) -> None:
    make(1).done()
    report = night(lab, deep=True, deadline=time.monotonic() - 1)
    assert (report.exit, report.quick_complete, {p.code for p in report.problems}) == (1, False, {"deadline"})


def test_a_folder_under_anothers_name_is_reported_and_its_runs_are_nobodys(lab: StorageRoot, make: Make) -> None:
    make(1).done()
    RunMaker(lab, owner="daemon", exp="sft", run_id="run-0000000a").done()
    RunMaker(lab, owner="no-such-account", exp="sft", run_id="run-0000000b").done()
    report = night(lab)
    assert told(report) == [
        ("tampered", "E-SITE-020", "runs/daemon"), ("incomplete", "E-SITE-030", "runs/no-such-account"),
    ]  # fmt: skip
    assert report.tally.versions == 1


def test_p73_what_cannot_be_read_is_incomplete_and_a_missing_ticket_is_tried_again(
    lab: StorageRoot, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    from hpc.runs import evidence

    make(1).done()
    real, number = evidence.read_json, [errno.EACCES]

    def fails(path: object) -> object:
        if str(path).endswith("report.json"):
            raise OSError(number[0], os.strerror(number[0]), str(path))
        return real(path)  # type: ignore[arg-type]

    monkeypatch.setattr(evidence, "read_json", fails)
    report = night(lab)
    assert told(report) == [("incomplete", "E-STORE-021", f"runs/{ME}/sft/run-00000001/report.json")]
    assert report.exit == 1
    number[0] = errno.EKEYEXPIRED
    assert night(lab).exit == 75


def test_a_run_that_trips_the_audit_is_our_bug_and_hides_no_other(
    lab: StorageRoot, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(1).done()
    make(2).done().run.report.unlink()
    real = nightly.audit

    def trips(run: object, **options: object) -> object:
        if str(run.root).endswith("1"):  # type: ignore[attr-defined]
            raise ZeroDivisionError
        return real(run, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(nightly, "audit", trips)
    assert [(p.level, p.code) for p in night(lab).problems] == [("incomplete", "bug"), ("tampered", "E-RUNS-031")]


def tp(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main(list(argv))
    said = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, said.out, said.err


def test_one_command_covers_shelves_and_runs(
    lab: StorageRoot, make: Make, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    make(1).done()
    prom = tmp_path / "tp.prom"
    code, out, _ = tp(capsys, "registry", "audit", "--deep", "--budget", "1GB", "--json", "--prom", str(prom))
    found = json.loads(out)
    assert (code, found["verdict"], found["runs"]["verdict"], found["runs"]["counts"]["runs"]) == (
        0,
        *["verified"] * 2,
        1,
    )
    assert found["runs"]["coverage"]["round_share"] == "1.0000"
    assert "tuneplane_registry_audit_runs 1\n" in prom.read_text()
    flip(make(1).run.attempt(0).out / "adapter.safetensors")
    code, out, _ = tp(capsys, "registry", "audit", "--deep", "--prom", str(prom))
    assert (code, f"runs/{ME}/sft/run-00000001/attempts/0/out/adapter.safetensors" in out) == (2, True)
    assert "tuneplane_registry_audit_exit_code 2\n" in prom.read_text()
    assert tp(capsys, "registry", "audit")[0] == 0, "the quick pass takes bytes for right"
    code, out, _ = tp(capsys, "registry", "audit", "--no-runs", "--deep")
    assert (code, "runs: not looked at (--runs)\n" in out) == (0, True)


@pytest.mark.parametrize(("since", "code"), [("2026-11-29T03:15:00.000000Z", 75), ("", 0)])
def test_p24_an_audit_that_hangs_for_a_day_is_no_reason_to_be_silent(
    lab: StorageRoot, capsys: pytest.CaptureFixture[str], since: str, code: int
) -> None:
    holder = this_process("registry audit")
    with held(own_folder(lab, real_user()) / "audit.lock", owner=replace(holder, since=since) if since else holder):
        found, _, err = tp(capsys, "registry", "audit", "--if-idle")
    assert (found, "E-REG-030" in err) == (code, code == 75)
