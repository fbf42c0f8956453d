"""Why a run waits or failed (P10, P15, P25, P26, P28)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from builder import RunMaker
from fakeslurm import FakeSlurm

from hpc.runs.clues import gather
from hpc.runs.diagnosis import Diagnosis
from hpc.runs.records import read_facts
from hpc.runs.state import Look, RunState, decide
from hpc.runs.waiting import Band, band, recent_waits
from hpc.runs.why import dependencies, diagnose
from hpc.slurm.commands import Slurm
from hpc.slurm.query import JobRow, Wait

Make = Callable[..., RunMaker]


def why(maker: RunMaker, state: RunState | None = None, **kwargs: object) -> Diagnosis:
    facts = read_facts(maker.run)
    state = state or decide(facts, Look(), time.time())
    return diagnose(facts, state, gather(maker.run, state.attempt), **kwargs)  # type: ignore[arg-type]


def texts(found: Diagnosis) -> dict[str, str]:
    return dict(found.facts)


def failed(make: Make, *lines: str, codes: tuple[int, int] = (1, 87), **kwargs: object) -> RunMaker:
    maker = make().package().admit().submit().start()
    if lines:
        maker.log(0, 0, *lines)
    return maker.nodes(0, *codes, **kwargs).end(0, "error", message=f"rank 0 ended with exit code {codes[0]}")


@pytest.mark.parametrize(
    ("reason", "verdict", "word"),
    [("Priority", "wait", "queued: wait"), ("PartitionTimeLimit", "user", "queued: you can mend it"),
     ("JobHeldAdmin", "admin", "queued: an admin can mend it"), ("BadConstraints", "hopeless", "queued: it will never start as it is")],
)  # fmt: skip
def test_p25_a_pending_reason_has_an_outlook_and_a_mend(make_run: Make, reason: str, verdict: str, word: str) -> None:
    maker = make_run().package().admit().submit()
    found = why(maker, RunState("queued", "squeue", "", reason=reason))
    assert (found.verdict, found.headline) == (verdict, word)
    assert texts(found)["reason"] == reason
    assert found.mend
    assert (verdict == "hopeless") == any("tp job stop" in m for m in found.mend)


def test_p15_the_chain_of_a_dead_dependency_is_shown(make_run: Make) -> None:
    maker = make_run().package().admit().submit()
    state = RunState(
        "queued", "squeue", "", reason="DependencyNeverSatisfied", dependency="afterok:7(failed),afterok:8(unfulfilled)"
    )
    found = why(maker, state, parents={"7": "FAILED", "8": "RUNNING"})
    assert [text for name, text in found.facts if name == "depends on"] == [
        "afterok job 7: FAILED",
        "afterok job 8: RUNNING",
    ]
    gone = why(maker, state)
    assert [text for name, text in gone.facts if name == "depends on"] == [
        "afterok job 7: failed",
        "afterok job 8: unfulfilled",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("afterok:1(unfulfilled)", [("afterok", "1", "unfulfilled")]),
        (
            "afterok:1(failed),afterany:2_*(unfulfilled)",
            [("afterok", "1", "failed"), ("afterany", "2_*", "unfulfilled")],
        ),
        ("afterok:12+30(unfulfilled)", [("afterok", "12", "unfulfilled")]),
        ("", []),
        ("singleton(unfulfilled)", []),
    ],
)
def test_dependencies_are_read(text: str, expected: list[tuple[str, str, str]]) -> None:
    assert dependencies(text) == expected


def test_the_first_error_line_over_all_ranks_by_time(make_run: Make) -> None:
    maker = make_run().package().admit().submit().start()
    maker.log(0, 1, "Traceback (most recent call last):", '  File "x.py", line 1', "ValueError: bad row 7")
    maker.log(0, 0, "torch.distributed.DistBackendError: NCCL error, remote process exited")
    maker.nodes(0, 1, 1).end(0, "error")
    found = why(maker)
    assert found.lines == ["rank 1: ValueError: bad row 7"]
    assert found.headline == "the job failed"


def test_warnings_are_not_the_error(make_run: Make) -> None:
    found = why(failed(make_run, "UserWarning: this is fine", "FutureWarning: soon", "KeyError: 'loss'"))
    assert found.lines == ["rank 0: KeyError: 'loss'"]


def test_words_of_failure_where_there_is_no_exception(make_run: Make) -> None:
    found = why(failed(make_run, "step 1", "train.sh: line 3: foo: command not found", codes=(127, 87)))
    assert found.lines == ["rank 0: train.sh: line 3: foo: command not found"]
    assert texts(found)["rank 0"] == "exit code 127: the program was not found"
    assert texts(found)["rank 1"] == "lost a peer (exit code 87)"


@pytest.mark.parametrize(
    ("lines", "kwargs", "say", "mend"),
    [
        (
            ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",),
            {},
            "rank 0 says",
            "GPUs with more memory",
        ),
        ((), {"signals": (9, 0)}, "SIGKILL", "--mem"),
    ],
)
def test_out_of_memory_is_named(
    make_run: Make, lines: tuple[str, ...], kwargs: dict[str, object], say: str, mend: str
) -> None:
    found = why(failed(make_run, *lines, **kwargs))  # type: ignore[arg-type]
    assert found.headline == "out of memory"
    assert say in texts(found)["memory"]
    assert mend in found.mend[0]


def test_out_of_memory_of_a_step_is_seen_in_accounting(make_run: Make) -> None:
    step = JobRow(
        "100.0",
        100,
        "OUT_OF_MEMORY",
        "",
        "srun",
        "",
        None,
        None,
        None,
        1,
        "",
        "",
        "",
        "",
        "",
        "",
        None,
        "",
        "",
        0,
        125,
        "sacct",
    )
    found = why(failed(make_run, "step 1"), steps=[step])
    assert texts(found)["memory"] == "Slurm ended 100.0 for memory"


def test_out_of_memory_of_the_batch_step_is_seen_in_its_output(make_run: Make) -> None:
    maker = failed(make_run, "step 1")
    (maker.run.batch / "0.log").write_text(
        "slurmstepd: error: Detected 1 oom_kill event in StepId=100.0. Some of the step tasks\n"
    )
    assert why(maker).headline == "out of memory"


def test_a_lost_node_is_named(make_run: Make) -> None:
    maker = make_run().package().admit().submit().start().log(0, 0, "step 1").nodes(0, 87, 0, silent=(1,))
    found = why(maker.end(0, "node_fail", message="no end record from node 1"))
    assert found.headline == "a node was lost"
    assert texts(found)["nodes without an end"] == "n2"


def test_p10_a_job_that_died_without_a_word(make_run: Make) -> None:
    maker = make_run().package().admit().submit()
    state = RunState(
        "error",
        "sacct",
        "Slurm says FAILED",
        final=True,
        end_class="error",
        job_id="100",
        started_at=100.0,
        ended_at=100.0,
    )
    found = why(maker, state)
    assert "ended at once and wrote nothing at all" in texts(found)["logs"]
    assert "storage root" in texts(found)["logs"]
    assert "tp doctor --probe" in found.mend[0]


def test_a_batch_script_that_failed_before_any_rank(make_run: Make) -> None:
    maker = make_run().package().admit().submit().claim()
    (maker.run.batch / "0.log").write_text("one\ntwo\napptainer: not found\n")
    state = RunState("error", "sacct", "", final=True, end_class="error", attempt=0, job_id="100")
    found = why(maker, state)
    assert found.lines == ["one", "two", "apptainer: not found"]
    assert "the batch script's own output" in texts(found)["logs"]


def test_a_refusal_in_the_job_is_quoted(make_run: Make) -> None:
    maker = make_run().package().admit().submit().start()
    (maker.run.attempt(0).nodes / "0.end.json").write_text(
        '{"node": 0, "ranks": [], "refused": {"code": "E-JOB-002", "message": "the package is not what was packed"}}'
    )
    found = why(maker.end(0, "refused", message="E-JOB-002 the package is not what was packed"))
    assert found.headline == "refused in the job: nothing of your code ran"
    assert texts(found)["refused"] == "E-JOB-002 the package is not what was packed"


@pytest.mark.parametrize(
    ("cls", "step", "word"),
    [
        ("timeout", 40, "resume"),
        ("timeout", None, "retry"),
        ("preempted", 40, "resume"),
        ("cancelled", None, "retry"),
        ("node_fail", 40, "resume"),
    ],
)
def test_p28_each_class_has_its_own_way_on(make_run: Make, cls: str, step: int | None, word: str) -> None:
    maker = make_run().package().admit().submit().start().log(0, 0, "x").nodes(0, 85, 85).end(0, cls, step=step)
    assert f"tp job {word} RUN" in why(maker).mend[0]


def test_a_run_that_was_packed_only(make_run: Make) -> None:
    found = why(make_run().package().admit())
    assert found.verdict == "unknown"
    assert "tp job retry" in found.mend[0]


def test_logs_that_may_not_be_read_are_no_crash(make_run: Make) -> None:
    maker = failed(make_run, "ValueError: x")
    path = maker.run.attempt(0).rank_log(0)
    path.unlink()
    path.symlink_to("/nonexistent")
    assert why(maker).lines == []


@pytest.mark.parametrize(
    ("line", "cause", "confidence"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "gpu-out-of-memory", "likely"),
        ("OSError: [Errno 122] Disk quota exceeded", "disk-full", "likely"),
        (
            "ImportError: libcudart.so.13: cannot open shared object file: No such file or directory",
            "import-error",
            "likely",
        ),
        ("PermissionError: [Errno 13] Permission denied: '/data/x'", "no-permission", "likely"),
        ("RuntimeError: Error(s) in loading state_dict: size mismatch for lm_head.weight", "wrong-shape", "likely"),
        ("E-TRAIN-023 rows.jsonl:7: it has no token to learn from", "bad-rows", "certain"),
        ("E-TRAIN-014 hyperparams.precision: this GPU has no bf16", "refused-e-train-014", "certain"),
        (
            "[rank0]:[E ProcessGroupNCCL.cpp] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7) error: timeout",
            "hung-collective",
            "likely",
        ),
        ("KeyError: 'loss'", "program-error", "likely"),
    ],
)
def test_a_line_means_its_cause(make_run: Make, line: str, cause: str, confidence: str) -> None:
    found = why(failed(make_run, line))
    assert found.cause is not None
    assert (found.cause.id, found.cause.confidence) == (cause, confidence)
    assert found.cause.evidence == (("rank 0", line),)


def test_the_program_s_error_wins_over_what_slurm_says_of_its_end(make_run: Make) -> None:
    maker = failed(make_run, "ValueError: bad row 7")
    (maker.run.batch / "0.log").write_text(
        "slurmstepd: error: *** STEP 100.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***\nsrun: error: n2: task 1: Killed\n"
    )
    found = why(maker)
    assert found.cause is not None
    assert found.cause.evidence == (("rank 0", "ValueError: bad row 7"),)


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (("aa", "HOME PATH"), "the same in the batch step and in 1 node step"),
        (("bb", "HOME PATH"), "step-0 has other values than the batch step"),
        (("bb", "HOME LD_PRELOAD"), "step-0 has also LD_PRELOAD and lacks PATH"),
    ],
)
def test_p09_the_environments_of_the_layers_are_compared(make_run: Make, step: tuple[str, str], words: str) -> None:
    maker = failed(make_run, "ValueError: x")
    folder = maker.run.attempt(0).root
    for layer, (digest, names) in {"batch": ("aa", "HOME PATH"), "step-0": step}.items():
        (folder / f"env-{layer}.sha256").write_text(f"{digest}\n")
        (folder / f"env-{layer}.names").write_text("\n".join(names.split()) + "\n")
    assert texts(why(maker))["environment"] == words


# P26: when will it start


def waits(*seconds: int, nodes: int = 2, limit: int | None = 3600) -> list[Wait]:
    return [Wait(s, nodes, limit) for s in seconds]


def test_p26_a_band_of_similar_jobs_with_how_many_they_were() -> None:
    history = waits(*range(100, 200)) + waits(9, 9, 9, nodes=64) + waits(5, limit=86_400)
    assert band(history, nodes=2, limit_s=3600) == Band(110, 150, 190, 100, 104)


def test_p26_too_few_similar_jobs_give_no_number() -> None:
    assert band(waits(1, 2, 3, 4), nodes=2, limit_s=3600) is None
    assert band(waits(*range(100)), nodes=16, limit_s=3600) is None
    assert band([], nodes=1, limit_s=None) is None


def test_p26_waits_are_asked_once_an_hour(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm = Slurm(bin_dir=str(fake_slurm.bin), conf=fake_slurm.conf)
    now = time.time()
    for n in range(6):
        job = fake_slurm.add(submit=int(now) - 1000, user="somebody")
        fake_slurm.start(job)
        fake_slurm.change(job, start=int(now) - 1000 + 10 * n)
    fake_slurm.add(user="somebody")  # still waits
    cache = tmp_path / "waits.json"
    found, problem = recent_waits(slurm, "batch", cache, now)
    assert ([w.wait_s for w in found], problem) == ([0, 10, 20, 30, 40, 50], "")
    recent_waits(slurm, "batch", cache, now + 3000)
    assert len(fake_slurm.calls("sacct")) == 1
    recent_waits(slurm, "batch", cache, now + 4000)
    assert len(fake_slurm.calls("sacct")) == 2
    cache.write_text("{")
    fake_slurm.faults("sacct fail no-accounting")
    assert recent_waits(slurm, "batch", cache, now)[0] == ()
    assert os.path.exists(cache)
