"""One node from verification to its end record, and what the batch step makes of it, with real processes and real files."""

from __future__ import annotations

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
from types import SimpleNamespace
from typing import Any

import pytest
from tuneplane.launch.environ import tracker_variables
from tuneplane.launch.finish import finish
from tuneplane.launch.node import Slot, rank_environment, slot_of, visible_gpus
from tuneplane.launch.place import read_place
from tuneplane.launch.rendezvous import Meeting
from tuneplane.launch.verify import LaunchRefused
from tuneplane.record.digest import digest_bytes
from tuneplane.record.events import read_all
from tuneplane.record.files import read_json

from hpc.submit.kernelzip import archive


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    path = tmp_path / "verifier.zip"
    path.write_bytes(archive("verifier"))
    return path


def start(kernel: Path, env: dict[str, str]) -> subprocess.Popen[str]:
    """As the batch script does: isolated, from the archive, nothing but the handed-in environment."""
    return subprocess.Popen(
        [sys.executable, "-I", str(kernel), "node"],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(kernel: Path, made: Any, attempt: int = 0, **more: str) -> tuple[int, str]:
    child = start(kernel, made.env(attempt, **more))
    text, _ = child.communicate(timeout=60)
    return child.returncode, text


def finished(made: Any, attempt: int = 0, **more: str) -> tuple[str, dict[str, Any]]:
    env = made.env(attempt, **more)
    word = finish(read_place(env), env)
    return word, read_json(made.run.attempt(attempt).end)


def test_a_run_ends_done_with_a_report_and_joined_chains(make_run: Callable, kernel: Path) -> None:
    made = make_run(
        'echo "rank $RANK of $WORLD_SIZE says $SITE_WORD"; mkdir -p "$TUNEPLANE_OUT_DIR/final"; echo w > "$TUNEPLANE_OUT_DIR/final/w.bin"\n'
    )
    code, text = run(kernel, made)
    assert code == 0, text
    word, end = finished(made)
    assert (word, end["class"], end["requeue"]) == ("done", "done", False)
    log = made.run.attempt(0).rank_log(0).read_text()
    assert log.endswith("Z rank 0 of 1 says hello\n")
    report = read_json(made.run.report)
    assert report["artifacts"] == [
        {"kind": "exports", "path": "final/w.bin", "size": 2, "sha256": digest_bytes(b"w\n")}
    ]
    chains = {c.writer: c for c in read_all(made.run.events)}
    assert {c.status for c in chains.values()} == {"verified"}
    last = chains["batch-0"].events[-1]
    assert last["details"]["report_sha256"] == digest_bytes(made.run.report.read_bytes())
    assert last["details"]["heads"] == {"launch-0": {"hash": chains["launch-0"].head, "count": 2}}


def test_finishing_twice_changes_nothing(make_run: Callable, kernel: Path) -> None:
    made = make_run()
    run(kernel, made)
    finished(made)
    before = {p: p.read_bytes() for p in made.run.root.rglob("*") if p.is_file()}
    assert finished(made)[0] == "done"
    assert {p: p.read_bytes() for p in made.run.root.rglob("*") if p.is_file()} == before


def test_a_finish_that_was_killed_before_its_last_event_is_completed_by_the_next(
    make_run: Callable, kernel: Path
) -> None:
    made = make_run()
    run(kernel, made)
    finished(made)
    closing = made.run.events / "batch-0.jsonl"
    before = closing.read_bytes()
    closing.unlink()
    assert finished(made)[0] == "done"
    again = {c.writer: c for c in read_all(made.run.events)}["batch-0"].events
    assert len(again) == len(before.splitlines()) == 1
    assert again[0]["details"]["report_sha256"] == digest_bytes(made.run.report.read_bytes())


def test_an_attempt_that_was_taken_for_dead_leaves_the_run_to_the_next_one(make_run: Callable, kernel: Path) -> None:
    made = make_run()
    run(kernel, made)
    made.env(1)
    made.run.attempt(1).claim.write_text("41 1 nonce\n")
    before = {p: p.read_bytes() for p in made.run.root.rglob("*") if p.is_file()}
    env = made.env(0)
    assert finish(read_place(env), env) == "superseded"
    assert {p: p.read_bytes() for p in made.run.root.rglob("*") if p.is_file()} == before
    assert not made.run.report.exists()


def test_a_tampered_package_never_starts(make_run: Callable, kernel: Path) -> None:
    made = make_run("touch $TUNEPLANE_OUT_DIR/ran\n")
    made.unlock()
    (made.run.work / "experiments/exp/train.sh").write_text("touch /tmp/evil\n")
    code, text = run(kernel, made)
    assert code == 2
    assert "E-JOB-002" in text
    word, end = finished(made, TP_STEP_CODE="2")
    assert (word, end["class"], end["message"][:9]) == ("failed", "refused", "E-JOB-002")
    assert not (made.run.attempt(0).out / "ran").exists()


def test_a_crash_is_an_error_and_stays_one(make_run: Callable, kernel: Path) -> None:
    made = make_run("exit 7\n")
    assert run(kernel, made)[0] == 7
    word, end = finished(made, TP_STEP_CODE="7")
    assert (word, end["class"], end["exit_code"], end["message"]) == (
        "failed",
        "error",
        7,
        "rank 0 ended with exit code 7",
    )
    assert not made.run.report.exists()


def test_p27_p28_a_warning_saves_and_asks_for_another_attempt(make_run: Callable, kernel: Path) -> None:
    made = make_run("trap 'exit 85' USR2\necho up\nwhile :; do sleep 0.05; done\n")
    child = start(kernel, made.env())
    log = made.run.attempt(0).rank_log(0)
    for _ in range(400):
        if log.exists() and "up" in log.read_text():
            break
        time.sleep(0.02)
    child.send_signal(signal.SIGUSR2)
    assert child.wait(timeout=30) == 0
    word, end = finished(made, TP_WARNED="USR2")
    assert (word, end["class"], end["requeue"]) == ("requeue", "preempted", True)
    assert read_json(made.run.attempt(0).requeue)["attempt"] == 0


def test_a_stopped_run_is_not_requeued(make_run: Callable, kernel: Path) -> None:
    made = make_run("exit 85\n")
    run(kernel, made)
    (made.run.root / "stop_requested").write_text("{}")
    word, end = finished(made, TP_WARNED="TERM")
    assert (word, end["class"]) == ("failed", "cancelled")


def test_a_lost_node_waits_for_slurm_first(make_run: Callable) -> None:
    made = make_run(policies={"node_grace_s": 10})
    env = made.env(TP_STEP_CODE="137", TP_WAITED_S="5")
    (made.run.attempt(0).nodes / "0.start.json").write_text("{}")
    assert finish(read_place(env), env) == "wait"
    assert not made.run.attempt(0).end.exists()
    word, end = finished(made, TP_STEP_CODE="137", TP_WAITED_S="10")
    assert (word, end["class"]) == ("requeue", "node_fail")


@pytest.mark.parametrize(("more", "foreign"), [({"plan": "sha256:0"}, True), ({}, False)])
def test_a_framework_that_crashes_beside_a_silent_node_waits_for_slurm_s_word(
    make_run: Callable, more: dict[str, str], foreign: bool
) -> None:
    """Its program ends with 1 where its peer is gone; ours would say so by its exit code."""
    entry = {"kind": "node", "argv": ["/bin/bash", "train.sh"], **more}
    made = make_run(policies={"node_verdict_s": 10}, launch_data={"entry": entry})
    env = made.env(TP_STEP_CODE="1", TP_HOSTS="a,b", TP_WAITED_S="5")
    nodes = made.run.attempt(0).nodes
    for name in ("0.start.json", "1.start.json"):
        (nodes / name).write_text("{}")
    ranks = [{"rank": 0, "exit_code": 1, "signal": 0, "by_us": False}]
    (nodes / "0.end.json").write_text(json.dumps({"ranks": ranks}))
    if foreign:
        assert finish(read_place(env), env) == "wait"
        assert not made.run.attempt(0).end.exists()
    word, end = finished(made, TP_STEP_CODE="1", TP_HOSTS="a,b", TP_WAITED_S="10" if foreign else "0")
    assert (word, end["class"], end["message"]) == ("failed", "error", "rank 0 ended with exit code 1")


def test_the_time_limit_ends_the_wait_for_slurm_s_word(make_run: Callable) -> None:
    """Else the script would be gone before the end was written, and no later attempt writes it."""
    entry = {"kind": "node", "argv": ["/bin/bash", "train.sh"], "plan": "sha256:0"}
    made = make_run(policies={"node_verdict_s": 10}, launch_data={"entry": entry})
    more = {"TP_STEP_CODE": "1", "TP_HOSTS": "a,b", "TP_ENDED_BY": "TIME LIMIT", "TP_JOB_STATE": "COMPLETING"}
    made.env(**more)
    nodes = made.run.attempt(0).nodes
    for name in ("0.start.json", "1.start.json"):
        (nodes / name).write_text("{}")
    ranks = [{"rank": 0, "exit_code": 1, "signal": 0, "by_us": False}]
    (nodes / "0.end.json").write_text(json.dumps({"ranks": ranks}))
    word, end = finished(made, **more)
    assert (word, end["class"]) == ("failed", "error")


def test_a_step_that_never_started_is_an_error_without_a_wait(make_run: Callable) -> None:
    made = make_run(policies={"node_grace_s": 10})
    word, end = finished(made, TP_STEP_CODE="1")
    assert (word, end["class"], end["message"]) == (
        "failed",
        "error",
        "the step did not start on any node (exit code 1)",
    )


def test_p30_an_attempt_that_died_with_its_node_gets_its_end_from_the_next_one(
    make_run: Callable, kernel: Path
) -> None:
    made = make_run()
    made.env(0)
    code, text = run(kernel, made, attempt=1)
    assert code == 0, text
    before = read_json(made.run.attempt(0).end)
    assert (before["class"], before["requeue"], before["attempt"]) == ("node_fail", True, 0)
    assert read_json(made.run.attempt(1).start)["previous_end"] == "node_fail"


def test_p48_p52_the_allocation_is_checked_against_the_shape(make_run: Callable, kernel: Path) -> None:
    made = make_run()
    code, text = run(kernel, made, TP_HOSTS="a,b")
    assert code == 2
    assert "E-JOB-011 the job does not start: the spec asks for 1 nodes, the allocation has 2: a,b" in text
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "0,1,2"}) == 3
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}) == 0
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}) == 0


def test_p48_rank_numbers_run_through_the_pools() -> None:
    shape = {
        "pools": [
            {"name": "a", "nodes": 2, "gpus_per_node": 8, "ranks_per_node": 8},
            {"name": "b", "nodes": 1, "gpus_per_node": 4, "ranks_per_node": 4},
        ]
    }
    assert [
        (slot_of(shape, n).first_rank, slot_of(shape, n).ranks, slot_of(shape, n).world_size) for n in range(3)
    ] == [(0, 8, 20), (8, 8, 20), (16, 4, 20)]
    with pytest.raises(LaunchRefused):
        slot_of(shape, 3)


READ_ONLY = {"HF_HUB_CACHE", "TUNEPLANE_DATA_CACHE", "TUNEPLANE_HUB_CACHE"}
"""Caches below the storage root, where a job only reads."""


def environment_of(made: Any, kernel: Path, **more: str) -> dict[str, str]:
    """What a rank of the run sees; its script is `env -0 >"$TUNEPLANE_OUT_DIR/env"`."""
    code, text = run(kernel, made, **more)
    assert code == 0, text
    return dict(line.split("=", 1) for line in (made.run.attempt(0).out / "env").read_text().split("\0") if line)


def test_p42_p54_p66_home_and_caches_are_private_and_local(make_run: Callable, kernel: Path) -> None:
    made = make_run('env -0 >"$TUNEPLANE_OUT_DIR/env"\n')
    env = environment_of(made, kernel, HOME="/home/somebody", ACCELERATE_CONFIG_FILE="/home/somebody/x.yaml")
    scratch = str(made.root.path / "scratch")
    written = {
        n for n in env if re.search(r"(CACHE|HOME|CACHE_DIR|CACHE_PATH|EXTENSIONS_DIR|CONFIGDIR|TMPDIR)$", n)
    } - READ_ONLY
    assert written == {
        "HOME", "TMPDIR", "HF_HOME", "HF_DATASETS_CACHE", "MODELSCOPE_CACHE", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR",
        "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH", "XDG_CACHE_HOME", "MPLCONFIGDIR",
    }  # fmt: skip
    assert [name for name in written if not env[name].startswith(scratch)] == []
    assert env["ACCELERATE_CONFIG_FILE"].startswith(scratch)
    assert env["PYTHONNOUSERSITE"] == "1"
    # P36: what a tracker writes is one run of it, whatever the attempt, in the run's own folder
    tracker = {"WANDB_MODE": "offline", "WANDB_RUN_ID": made.run.run_id, "WANDB_RESUME": "allow"}
    assert {name: env[name] for name in tracker} == tracker
    assert env["WANDB_DIR"] == str(made.run.root)


def test_rows_are_loaded_by_the_datasets_library_where_the_storage_root_is_read_only(
    make_run: Callable, kernel: Path, tmp_path: Path
) -> None:
    """As frameworks load them. Its cache is written even where the rows lie in a file of the node."""
    made = make_run('env -0 >"$TUNEPLANE_OUT_DIR/env"\n')
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    env = environment_of(made, kernel, TP_SCRATCH=str(scratch))
    rows = made.root.path / "rows.jsonl"
    rows.write_text('{"input": "1 + 1", "output": "2"}\n')
    load = f"import datasets; print(datasets.load_dataset('json', data_files={str(rows)!r})['train'][0])"
    locked = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && ! touch "$0/x" 2>/dev/null && exec "$@"'
    words = ["unshare", "-rm", "sh", "-c", locked, str(made.root.path), sys.executable, "-c", load]
    del env["PYTHONPATH"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout == "{'input': '1 + 1', 'output': '2'}\n", done.stderr


def test_p36_one_rank_writes_to_the_tracker_and_each_element_has_its_own_run() -> None:
    place: Any = SimpleNamespace(node=1, hosts=("a", "b"))
    first = Slot({"name": "p"}, ranks=2, first_rank=0, world_size=4)
    modes = [
        rank_environment(
            {"WANDB_MODE": "online", "GLOO_SOCKET_IFNAME": "eth0"}, place, slot, local, Meeting("10.0.0.1", 1), "lo"
        )["WANDB_MODE"]
        for slot in (first, replace(first, first_rank=2))
        for local in (0, 1)
    ]
    assert modes == ["online", "disabled", "disabled", "disabled"]
    assert tracker_variables("run-1", "/r", "")["WANDB_RUN_ID"] == "run-1"
    assert tracker_variables("run-1", "/r", "7")["WANDB_RUN_ID"] == "run-1-7"


def test_secrets_of_the_outer_environment_do_not_reach_the_ranks(make_run: Callable, kernel: Path) -> None:
    made = make_run("env\n")
    run(kernel, made, AWS_SECRET_ACCESS_KEY="canary-7f3a", HF_TOKEN="canary-7f3a")
    for path in made.run.root.rglob("*"):
        if path.is_file():
            assert b"canary-7f3a" not in path.read_bytes(), path


def test_a_place_that_is_not_handed_in_is_named() -> None:
    with pytest.raises(LaunchRefused) as caught:
        read_place({"TP_RUN_DIR": "/x"})
    assert (caught.value.code, caught.value.message) == ("E-JOB-012", "the batch script did not hand in TP_HOSTS")
    assert os.environ.get("TP_RUN_DIR") is None


def test_p30_slurm_restarting_a_job_for_ever_meets_the_cap(make_run: Callable, kernel: Path) -> None:
    made = make_run("echo ran\n", policies={"max_attempts": 2})
    code, text = run(kernel, made, attempt=2)
    assert code == 2
    assert "E-JOB-016 the job does not start: Slurm restarted the job 2 times; max_attempts is 2" in text
    word, end = finished(made, attempt=2, TP_STEP_CODE="2")
    assert (word, end["class"], end["requeue"]) == ("failed", "refused", False)
    assert not made.run.attempt(2).rank_log(0).exists()
    assert run(kernel, made, attempt=1)[0] == 0
