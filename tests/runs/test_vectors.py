"""The acceptance vectors about run records (H3, H4, H5, H7, H9) and the command line (I1), where they apply; C and the other H have theirs beside the
code that they are about."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from builder import RunMaker
from conftest import ME
from rows import NOW, look
from tuneplane.contract.layout import StorageRoot
from tuneplane.record.events import EventWriter, merged, read_all

from hpc.data.models import of_run
from hpc.errors import Refusal
from hpc.runs.audit import audit, timeline
from hpc.runs.records import read_facts
from hpc.runs.state import decide

Make = Callable[..., RunMaker]
TP = Path(sys.executable).parent / "tp"


def test_h3_verified_is_0_an_empty_log_or_a_dropped_completion_2_and_a_running_run_0(make_run: Make) -> None:
    done = make_run().done().run
    assert (audit(done).verdict, audit(done).exit) == ("verified", 0)
    completion = (done.events / "batch-0.jsonl").read_bytes()
    (done.events / "batch-0.jsonl").unlink()
    assert (audit(done).verdict, audit(done).exit) == ("tampered", 2)
    (done.events / "batch-0.jsonl").write_bytes(completion)
    for path in done.events.iterdir():
        path.write_bytes(b"")
    assert (audit(done).verdict, audit(done).exit) == ("tampered", 2)
    running = make_run("run-00000002").package().admit().submit().start().run
    assert (audit(running).verdict, audit(running).exit) == ("incomplete", 0)


APPEND = """
import sys
from tuneplane.record.events import EventWriter
writer = EventWriter(sys.argv[1], sys.argv[2], run_id="r1", now=lambda: "2026-01-01T00:00:01.000Z")
sys.stdin.read(1)
import socket
for n in range(8):
    writer.append("training", "running", f"{socket.gethostname()} {n}")
"""


def test_h4_24_appends_of_3_processes_on_2_hosts_are_25_events_and_verified(tmp_path: Path) -> None:
    """A shard a writer: hosts are told apart by UTS namespaces, each with a name of its own; nobody needs another one's lock."""
    assert os.getuid() == 0, "this test needs root, to give a process another host name"
    first = EventWriter(tmp_path, "submit-0", run_id="r1", now=lambda: "2026-01-01T00:00:00.000Z")
    first.append("queued", "queued", "submitted")
    children = []
    for number, host in enumerate(("node-a", "node-a", "node-b")):
        words = ["unshare", "--uts", "sh", "-c", f'hostname {host} && exec "$@"', "sh", sys.executable, "-c", APPEND]
        children.append(subprocess.Popen([*words, str(tmp_path), f"launch-{number}"], stdin=subprocess.PIPE))
    for child in children:
        child.communicate(b"x")
        assert child.returncode == 0
    chains = read_all(tmp_path)
    assert {c.writer: (c.status, len(c.events)) for c in chains} == {
        "submit-0": ("verified", 1), **{f"launch-{n}": ("verified", 8) for n in range(3)}
    }  # fmt: skip
    view = merged(chains)
    assert len(view) == 25
    for number, host in enumerate(("node-a", "node-a", "node-b")):
        told = [e["message"] for e in view if e["writer"] == f"launch-{number}"]
        assert told == [f"{host} {n}" for n in range(8)], "each writer's own order is kept"


def test_h4_the_heads_of_all_hosts_are_joined_and_none_can_lose_its_end_unseen(make_run: Make) -> None:
    run = make_run().done().run
    details = json.loads((run.events / "batch-0.jsonl").read_text())["details"]
    assert {w: h["count"] for w, h in details["heads"].items()} == {"submit-0": 1, "launch-0": 2}
    for writer in details["heads"]:
        path = run.events / f"{writer}.jsonl"
        before = path.read_bytes()
        path.write_bytes(before[: before.rstrip(b"\n").rfind(b"\n") + 1])
        assert f"events/{writer}.jsonl" in {f.path for f in audit(run).findings if f.level == "tampered"}
        path.write_bytes(before)


def test_h5_a_timeline_of_0_5_1800_and_3605_seconds_has_stages_of_5_3600_and_0(tmp_path: Path) -> None:
    times = iter(f"2026-01-01T{s // 3600:02d}:{s // 60 % 60:02d}:{s % 60:02d}.000Z" for s in (0, 5, 1800, 3605))
    writer = EventWriter(tmp_path, "w", run_id="r1", now=lambda: next(times))
    for stage in ("queued", "training", "training", "completed"):
        writer.append(stage, "running", "")
    assert [(s.stage, s.duration_s) for s in timeline(read_all(tmp_path))] == [
        ("queued", 5.0), ("training", 3600.0), ("completed", 0.0)
    ]  # fmt: skip


def test_h7_an_evaluation_that_fails_takes_nothing_from_the_training_run(make_run: Make) -> None:
    trained = make_run().done()
    make_run("run-0000000e", exp="sft-eval").package().admit().submit().start().nodes(0, 1, 1).end(0, "error")
    found = audit(trained.run)
    assert (found.verdict, found.facts["status"]) == ("verified", "done")
    assert decide(read_facts(trained.run), look(), NOW).cls == "done"


def test_h9_a_cancelled_run_stays_cancelled_and_leaves_no_model(make_run: Make) -> None:
    """States that late writes cannot overwrite: what a rank, a node or a launcher still writes changes no end."""
    maker = make_run().package().admit().submit().start()
    maker.nodes(0, 0, 0, silent=(1,)).end(0, "cancelled")
    before = decide(read_facts(maker.run), look(), NOW)
    maker.events("launch-0").append("completed", "completed", "a rank that did not know")
    maker.events("node-1").append("training", "running", "step 400")
    late = maker.run.attempt(0)
    (late.nodes / "1.end.json").write_text('{"node": 1, "exit_code": 0, "signal": 0, "ranks": []}')
    (late.out / "result.json").write_text('{"loss": 0.1}')
    after = decide(read_facts(maker.run), look(), NOW)
    assert (before.cls, after.cls, after.final) == ("cancelled", "cancelled", True)
    found = audit(maker.run)
    assert (found.verdict, found.facts["status"]) == ("incomplete", "cancelled")
    assert ("note", "attempts/0/nodes/1.end.json") in {(f.level, f.path) for f in found.findings}
    with pytest.raises(Refusal) as refused:
        of_run(maker.run)
    assert refused.value.code == "E-MODEL-030"


def test_h9_success_after_a_failure_leaves_no_error(make_run: Make) -> None:
    maker = make_run().package().admit().submit().start().nodes(0, 1, 1).end(0, "error")
    assert decide(read_facts(maker.run), look(), NOW).cls == "error"
    maker.job_id, maker.nonce = "200", "beef0123beef0123"
    maker.submit(1).start(1, previous_end="error").nodes(1, 0, 0).end(1)
    state = decide(read_facts(maker.run), look(), NOW)
    assert (state.cls, state.end_class) == ("done", "done")
    assert "error" not in state.message
    assert audit(maker.run).verdict == "verified"


def tp(root: StorageRoot, cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "TUNEPLANE_STORAGE_ROOT": str(root.path), "HOME": str(cwd)}
    return subprocess.run([TP, *words], capture_output=True, text=True, check=False, env=env, cwd=cwd)


def test_i1_help_and_typos_do_no_work_an_ambiguous_beginning_lists_and_json_parses(
    root: StorageRoot, make_run: Make, tmp_path: Path
) -> None:
    from hpc.site.layout import init_root

    lab, work = init_root(tmp_path / "lab", name="lab", fleet="local").root, tmp_path / "work"
    work.mkdir()
    for number in (1, 2):
        RunMaker(lab, owner=ME, exp="sft", run_id=f"run-0000000{number}").package().admit().submit()
    typo = tp(lab, work, "submit", "job", "--dryrun", "--json")
    assert (typo.returncode, json.loads(typo.stdout)["errors"][0]["code"]) == (64, "E-CLI-001")
    several = tp(lab, work, "runs", "audit", "run-0000", "--json")
    fault = json.loads(several.stdout)["errors"][0]
    assert (several.returncode, fault["code"]) == (1, "E-RUNS-002")
    assert ("run-00000001" in fault["allowed"], "run-00000002" in fault["allowed"]) == (True, True)
    assert json.loads(tp(lab, work, "runs", "audit", "--all", "--json").stdout)["counts"]["incomplete"] == 2
    assert list(work.iterdir()) == [], "no command has left a file"
