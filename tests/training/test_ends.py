"""How a rank ends when something is wrong: bounded, with the agreed exit code and a last line that says what it was."""

from __future__ import annotations

import os
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ranks import Attempt, Run

pytestmark = pytest.mark.train
Make = Callable[..., Run]


@pytest.fixture
def make(tmp_path: Path, tiny: Path, sums: Path) -> Make:
    """A run that would take long; its saves are 10 steps apart."""

    def run(**more: Any) -> Run:
        return Run(tmp_path / "run", tiny, sums, **({"max_steps": 5000, "save_steps": 10} | more))

    return run


def wait_one(attempt: Attempt, rank: int, timeout_s: float = 120.0) -> int:
    return attempt.processes[rank].wait(timeout_s)


def test_a_stopped_peer_is_noticed_within_the_bound_and_not_after_half_an_hour(make: Make) -> None:
    run, silent = make(), 0  # rank 0 keeps the store, so it is the one that could hold the others up longest
    run.policies["peer_timeout_s"] = 3
    attempt = run.start()
    try:
        attempt.until_step(3)
        attempt.processes[silent].send_signal(signal.SIGSTOP)
        assert wait_one(attempt, 1 - silent) == 87
        last = attempt.last_line(1 - silent)
        assert last.startswith(f"rank {1 - silent}: a peer was lost, in ")
        assert "timed out waiting" in last
    finally:
        attempt.kill()


def test_an_exception_is_one_traceback_and_a_lost_peer_that_says_whose(make: Make) -> None:
    run = make()
    run.before_the_loop("if job.place.rank == 1:", "    raise ZeroDivisionError('seven by nought')")
    attempt = run.start()
    assert attempt.wait() == [87, 1]
    assert "Traceback" in attempt.log(1)
    assert attempt.last_line(1) == "rank 1: failed: ZeroDivisionError: seven by nought"
    assert "Traceback" not in attempt.log(0)
    assert "(rank 1 failed: ZeroDivisionError: seven by nought)" in attempt.last_line(0)
    assert attempt.last_line(0).endswith("this rank stops (exit 87)")


def test_a_full_disk_in_a_save_is_said_and_the_checkpoint_before_stands(make: Make) -> None:
    run = make()
    attempt = run.start()
    attempt.until(lambda: (run.root / "checkpoints" / "latest.json").exists())
    resource.prlimit(attempt.processes[1].pid, resource.RLIMIT_FSIZE, (100_000, 100_000))
    assert attempt.wait() == [87, 1]
    assert "E-TRAIN-045" in attempt.log(1)
    assert "the checkpoint could not be written: [Errno 27] File too large" in attempt.last_line(1)
    assert "Traceback" not in attempt.log(1)
    assert "File too large" in attempt.last_line(0)  # it hears of it from rank 1's word or in the agreement on the save
    assert attempt.last_line(0).endswith("this rank stops (exit 87)")
    left = sorted(p.name for p in (run.root / "checkpoints").iterdir())
    assert left[0].startswith(".new-step-")
    assert left[-1] == f"step-{max(int(n[5:]) for n in left if n.startswith('step-')):09d}"
    again = run.start()
    again.until_step(int(left[-1][5:]) + 1)
    again.kill()
    assert f"removed half-written checkpoints of earlier attempts: {left[0]}" in again.log(0)
    assert f"{left[-1]} verified" in again.log(0)


def test_p33_a_save_that_hangs_is_ended_before_the_lead_time_is_over(make: Make) -> None:
    run = make(save_steps=0)
    run.policies["lead_s"] = 8
    run.before_the_loop(
        "import time",
        "if job.place.rank == 1:",
        "    deepspeed.save = lambda folder, copy: time.sleep(600)",
    )
    attempt = run.start()
    attempt.until_step(2)
    attempt.signal(signal.SIGUSR2)
    assert attempt.wait(120) == [87, 87]  # the save itself would hang for ten minutes
    assert (
        "the checkpoint before it stands) took longer than its bound; this rank stops (exit 87)" in attempt.last_line(1)
    )
    assert not (run.root / "checkpoints" / "latest.json").exists()


def test_p41_a_rank_that_never_comes_is_named(make: Make) -> None:
    run = make()
    run.policies["rendezvous_timeout_s"] = 2
    attempt = run.start(world=3, ranks=[0])
    assert attempt.wait() == [87]
    assert "after 2 s still missing: rank 1 (node 0), rank 2 (node 0)" in attempt.last_line(0)


def test_p41_a_missing_rank_0_is_named_with_its_address(make: Make) -> None:
    run = make()
    run.policies["rendezvous_timeout_s"] = 2
    attempt = run.start(ranks=[1])
    assert attempt.wait() == [87]
    assert "rank 0 did not answer at 127.0.0.1:" in attempt.last_line(1)


def test_p39_a_port_that_is_taken_is_refused_by_number(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    import ranks

    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(ranks, "free_port", lambda: port)
        attempt = make().start(world=1)
        assert attempt.wait() == [1]
    assert "E-TRAIN-006 MASTER_PORT: rank 0 cannot listen there" in attempt.log(0)
    assert f"found    127.0.0.1:{port}" in attempt.log(0)


def test_a_warning_before_the_first_step_leaves_at_once_with_nothing_to_save(make: Make) -> None:
    attempt = make().start()
    attempt.until(lambda: "global batch" in attempt.log(0))
    attempt.signal(signal.SIGTERM)
    codes = attempt.wait()
    assert codes == [85, 85]
    assert attempt.last_line(0) in (
        "rank 0: preempted before the first step",
        *(f"rank 0: preempted; step {n} is saved" for n in range(1, 4)),
    )


def test_a_loss_that_is_no_number_stops_the_run_on_all_ranks_before_it_is_saved(
    make: Make, tiny: Path, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    broken = tmp_path / "broken"
    shutil.copytree(tiny, broken)
    weights = load_file(broken / "model.safetensors")
    weights["model.norm.weight"][0] = float("nan")
    save_file(weights, broken / "model.safetensors", {"format": "pt"})
    run = make()
    run.model = broken
    attempt = run.start()
    assert attempt.wait() == [1, 1]
    for rank in (0, 1):
        assert "E-TRAIN-046 loss: the loss is no number any more at step 1" in attempt.log(rank)
    assert not (run.root / "checkpoints").exists()


def test_rows_at_fault_are_named_on_every_rank_and_read_once(make: Make, tmp_path: Path) -> None:
    run = make()
    run.train = tmp_path / "bad.jsonl"
    run.train.write_text('{"prompt": "a", "completion": "b"}\n{"prompt": "a"}\n')
    attempt = run.start(world=3)
    assert attempt.wait() == [1, 1, 1]
    for rank in (0, 1, 2):
        assert "E-TRAIN-021 bad.jsonl:2: `prompt` and `completion` must both be text" in attempt.log(rank)
    assert list((run.root / "cache" / "tokens").iterdir()) == []


def test_settings_at_fault_are_all_named_before_anything_heavy_starts(make: Make) -> None:
    attempt = make(zero_stage=7, precision="fp16").start(world=1)
    assert attempt.wait(20) == [1]
    assert "E-TRAIN-011 hyperparams.zero_stage: too large" in attempt.log(0)
    assert "E-TRAIN-012 hyperparams.precision: fp16 is not offered" in attempt.log(0)
    assert "Traceback" not in attempt.log(0)


def test_p43_no_launcher_no_ssh_no_compiler_and_the_record_of_a_run_is_complete(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traps, called = tmp_path / "traps", tmp_path / "called"
    traps.mkdir()
    for name in ("deepspeed", "pdsh", "ssh", "mpirun", "torchrun", "g++", "gcc", "c++", "ninja", "nvcc"):
        (traps / name).write_text(f"#!/bin/sh\necho {name} $* >>{called}\nexit 1\n")
        (traps / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{traps}:{os.environ['PATH']}")
    done = make(max_steps=3, lora_rank=4).complete()
    assert not called.exists(), called.read_text()
    result = done.result()
    assert (result["steps"], result["world_size"], result["zero_stage"], result["precision"]) == (3, 2, 2, "fp32")
    assert result["final_loss"] == done.losses()[3]
    assert result["parameters_trainable"] == result["artefact"]["parameters"] < result["parameters_total"]
    assert 0 < result["first_batch_s"] < result["first_step_s"]
    assert result["tokens"] == sum(m["tokens"] for m in done.metrics())
    assert result["rows"]["kept"] == 200
    assert [f["path"] for f in result["artefact"]["files"]] == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "chat_template.jinja",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    log = done.log(0)
    assert "step 3/3  loss " in log
    assert "rows 200 of 200 (none cut or left out)" in log
    assert log.splitlines()[-1] == "rank 0: done"
