"""A framework's launch plan in the job: words filled in, files written once a node, and a Ray that is believed only with its driver's own end."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tuneplane.contract import plans
from tuneplane.launch import framework
from tuneplane.launch.framework import checked_ends, command, driver_end, ray_environment
from tuneplane.launch.ranks import RankEnd, RankGroup
from tuneplane.launch.rendezvous import Meeting
from tuneplane.launch.verdict import Ending, runs_again
from tuneplane.launch.verify import LaunchRefused
from tuneplane.record.digest import digest_json

MEETING = Meeting("10.0.0.1", 12345)
PLAN: dict[str, Any] = {
    "schema": plans.SCHEMA, "launch_mode": "direct", "argv": ["$PYTHON", "-m", "toy", "${TUNEPLANE_OUT_DIR}/x", "${policy.lr}"],
    "env": {"TOY": "${TUNEPLANE_RUN_ID}"}, "files": {"deep/er/toy.yaml": "{out: '${TUNEPLANE_OUT_DIR}', own: '${policy.lr}'}\n"}, "summary": "",
}  # fmt: skip
ENV = {"TUNEPLANE_OUT_DIR": "/run/out", "TUNEPLANE_RUN_ID": "run-0001", "PATH": "/bin", "RANK": "1"}


def place_of(tmp_path: Path, plan: dict[str, Any] | None = None, node: int = 0) -> Any:
    for folder in ("scratch", "nodes", "work/.tuneplane"):
        (tmp_path / folder).mkdir(parents=True)
    if plan:
        (tmp_path / "work/.tuneplane/plan.json").write_text(json.dumps(plan))
    attempt = SimpleNamespace(nodes=tmp_path / "nodes")
    return SimpleNamespace(
        scratch=tmp_path / "scratch", work=tmp_path / "work", attempt=attempt, hosts=("a", "b", "c"), node=node
    )


def launch_of(kind: str, plan: dict[str, Any] | None = PLAN) -> dict[str, Any]:
    entry = {"kind": kind} | ({"plan": digest_json(plan)} if plan else {})
    return {"entry": entry, "policies": {"rendezvous_timeout_s": 300}}


def test_words_are_filled_in_in_argv_environment_and_files_and_the_framework_s_own_stay(tmp_path: Path) -> None:
    place = place_of(tmp_path, PLAN)
    argv, env = command(place, launch_of("rank"), ["python3", *PLAN["argv"][1:]], ENV, MEETING, 0)
    assert argv == ["python3", "-m", "toy", "/run/out/x", "${policy.lr}"]
    assert (env["TOY"], env["RANK"], env["TUNEPLANE_GENERATED_DIR"]) == (
        "run-0001",
        "1",
        str(tmp_path / "scratch/generated"),
    )
    written = tmp_path / "scratch/generated/deep/er/toy.yaml"
    assert written.read_text() == "{out: '/run/out', own: '${policy.lr}'}\n"
    before = written.stat().st_ino
    command(place, launch_of("rank"), ["python3"], ENV | {"RANK": "2"}, MEETING, 0)
    assert written.stat().st_ino == before, "a second rank of the node reads what the first one wrote"


def test_an_entry_without_a_plan_is_left_as_it_is(tmp_path: Path) -> None:
    argv, env = command(
        place_of(tmp_path), launch_of("rank", None), ["python3", "${TUNEPLANE_OUT_DIR}"], ENV, MEETING, 0
    )
    assert (argv, env) == (["python3", "${TUNEPLANE_OUT_DIR}"], ENV)


@pytest.mark.parametrize("plan", [None, PLAN | {"argv": ["/bin/true"]}, PLAN | {"files": {}}])
def test_another_plan_than_the_admitted_one_is_refused(tmp_path: Path, plan: dict[str, Any] | None) -> None:
    with pytest.raises(LaunchRefused) as caught:
        command(place_of(tmp_path, plan), launch_of("rank"), ["python3"], ENV, MEETING, 0)
    assert caught.value.code == "E-JOB-060"


def test_ray_is_formed_by_symmetric_run_at_the_job_s_own_port(tmp_path: Path) -> None:
    plan = PLAN | {"launch_mode": "ray-driver"}
    place = place_of(tmp_path, plan)
    argv, env = command(place, launch_of("ray", plan), ["python3", "-m", "toy"], ENV, MEETING, 8)
    cpus = str(len(os.sched_getaffinity(0)))
    assert argv[:13] == ["ray", "symmetric-run", "--address", "10.0.0.1:12345", "--min-nodes", "3", "--num-cpus", cpus, "--num-gpus", "8",
                         "--disable-usage-stats", "--", "/bin/sh"]  # fmt: skip
    assert argv[-6:] == ["ray-driver", str(driver_end(place)), "10.0.0.1:12345", "python3", "-m", "toy"]
    assert env["RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT"] == "300"
    assert env["RAY_TMPDIR"] == str(tmp_path / "scratch")


def test_ray_and_its_driver_are_no_rank_and_no_task_of_the_batch_system(tmp_path: Path) -> None:
    foreign = {
        "PMI_RANK": "0",
        "PMIX_RANK": "0",
        "MPI_X": "1",
        "OMPI_COMM_WORLD_RANK": "0",
        "SLURM_PROCID": "0",
        "MASTER_ADDR": "x",
    }
    env = ray_environment(ENV | foreign, place_of(tmp_path), 60.0)
    assert set(env) == {"PATH", "TUNEPLANE_OUT_DIR", "TUNEPLANE_RUN_ID", "RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT", "RAY_TMPDIR",
                        "RAY_USAGE_STATS_ENABLED"}  # fmt: skip


def fake_ray(tmp_path: Path, body: str) -> dict[str, str]:
    """An environment in which `ray` is a script."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ray").write_text(
        f'#!/bin/sh\n[ "$1" = stop ] && exit 0\nwhile [ "$1" != -- ]; do shift; done; shift\n{body}\n'
    )
    (folder / "ray").chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


@pytest.mark.parametrize(
    ("body", "driver", "node", "code", "words"),
    [
        ('"$@"', "exit 0", 0, 0, ""),
        ('"$@"', "exit 7", 0, 7, ""),
        ('"$@"', 'test "$RAY_ADDRESS" = 10.0.0.1:12345', 0, 0, ""),
        ("exit 0", "exit 0", 0, 2, "E-JOB-061 Ray ended without having run its driver: it was not formed"),
        ('"$@"; exit 0', "exit 7", 0, 2, "E-JOB-061 the driver ended with 7, and Ray with 0"),
        ('"$@"; exit 1', "exit 0", 0, 0, ""),
        ('"$@"; exit 1', "exit 7", 0, 7, ""),
        ("exit 3", "exit 0", 0, 3, ""),
        ("exit 3", "exit 0", 1, 3, ""),
    ],
    ids=["done", "driver failed", "the driver knows its cluster", "not formed, and says 0", "Ray hides the driver's end",
         "Ray stumbles over its own end", "and over a bad one",
         "no driver, and says why", "a node that says why"],
)  # fmt: skip
def test_a_ray_that_says_it_is_done_is_believed_with_its_driver_s_end_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, driver: str, node: int, code: int, words: str
) -> None:
    place, said = place_of(tmp_path, node=node), list[str]()
    env = fake_ray(tmp_path, body)
    monkeypatch.setenv("PATH", env["PATH"])
    argv = framework.ray_argv(["/bin/sh", "-c", driver], place, MEETING, 0)
    group = RankGroup(lambda: "now", said.append)
    group.start(node, argv, env, tmp_path, tmp_path / "log")
    ends = checked_ends(place, group.wait(grace_s=5, save_s=5), env, said.append)
    assert ([e.exit_code for e in ends], said) == ([code], [words] if words else [])


@pytest.mark.parametrize(
    ("appears", "after", "code", "words"),
    [
        ("ray-driver.code", 0, 0, []),
        ("ray-driver.code", 58, 0, []),
        ("0.end.json", 58, 0, []),
        ("1.end.json", 0, 87, ["E-JOB-062 Ray ended on this node, and its driver not in the 120 s after"]),
    ],
    ids=["it left after the head", "the file shows late", "the head gave up", "Ray was lost here"],
)
def test_a_node_that_joined_ends_well_only_where_the_driver_ended(
    tmp_path: Path, appears: str, after: int, code: int, words: list[str]
) -> None:
    place, said, clock = place_of(tmp_path, node=1), list[str](), [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds
        if clock[0] >= after:
            (place.attempt.nodes / appears).touch()

    if not after:
        sleep(0)
    ends = checked_ends(place, [RankEnd(1, 0, 0, False)], {}, said.append, sleep=sleep)
    assert ([e.exit_code for e in ends], said) == ([code], words)
    assert clock[0] == (framework.PATIENCE_S if code else after)


OURS = {
    "TUNEPLANE_RUN_ID": "run-0001",
    "TUNEPLANE_ATTEMPT": "0",
    "TUNEPLANE_MAIN_PROCESS_IP": "10.0.0.1",
    "TUNEPLANE_MAIN_PROCESS_PORT": "21234",
}


def test_only_what_this_attempt_s_ray_left_is_ended() -> None:
    """A second job of the same user on the node, and the same run's next attempt, keep their Ray."""
    with subprocess.Popen(
        ["/bin/sh", "-c", "env -i sleep 600 & echo $!; wait"], env=OURS, stdout=subprocess.PIPE, text=True
    ) as ours:
        assert ours.stdout is not None
        child = int(ours.stdout.readline())
        other = [subprocess.Popen(["sleep", "600"], env=OURS | {name: "x"}) for name in OURS]
        try:
            framework.end_processes({})
            assert ours.poll() is None, "without a name of its own it ends nothing"
            framework.end_processes(OURS | {"PATH": "/bin"})
            ours.wait(30)
            assert _gone(child), "a worker that wrote over its variables is found as a descendant"
            assert [one.poll() for one in other] == [None] * len(OURS)
        finally:
            for one in (*other, ours):
                one.kill()
                one.wait()


def test_a_node_whose_raylet_was_ended_waits_for_nothing(tmp_path: Path) -> None:
    """`ray start --block` takes a raylet that ended by SIGTERM for a wanted end, and stays."""
    (raylet := tmp_path / "raylet").symlink_to("/bin/sleep")
    now = [0.0]
    watch = framework.RayWatch(place_of(tmp_path, node=1), OURS, lambda: now[0])
    others = [framework.RayWatch(place_of(tmp_path / "h"), OURS, lambda: now[0])]
    others.append(framework.RayWatch(place_of(tmp_path / "i", node=1), {}, lambda: now[0]))

    def looked(at: float) -> bool:
        now[0] = at
        assert not any(other() for other in others)
        return watch()

    assert not looked(0), "it has not begun"
    assert not looked(200), "and may take its time"
    with subprocess.Popen([str(raylet), "600"], env=OURS) as running:
        assert not looked(300)
        assert not looked(400)
        running.terminate()
    assert [looked(at) for at in (405, 410, 459, 471)] == [False, False, False, True]


@pytest.mark.parametrize(("driver", "code"), [("0", 0), (None, 87)])
def test_what_was_ended_for_a_lost_raylet_counts_by_the_driver_s_end(
    tmp_path: Path, driver: str | None, code: int
) -> None:
    place, said = place_of(tmp_path, node=1), list[str]()
    if driver:
        driver_end(place).write_text(driver)
    group = RankGroup(lambda: "now", said.append)
    group.start(1, ["sleep", "600"], {"PATH": "/usr/bin:/bin"}, tmp_path, tmp_path / "log")
    ends = group.wait(grace_s=5, save_s=5, lost=lambda: True)
    assert [(e.exit_code, e.signal, e.by_us) for e in ends] == [(137, 9, True)]
    found = checked_ends(place, ends, {}, said.append, sleep=lambda _: None)
    assert [(e.exit_code, e.signal, e.by_us) for e in found] == [(code, 0, not code)]


def _gone(pid: int) -> bool:
    """Whether it ended; a zombie that nobody waits for has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_what_a_framework_saved_is_not_known_and_only_its_attempts_are_capped() -> None:
    ending, policies = Ending("preempted", 85, 0, "", False), {"requeue_on": ["preempted"], "max_attempts": 4}
    previous = [{"requeue": True, "step": None}, {"requeue": True, "step": None}]
    for counts, again in ((True, (False, "no_progress")), (False, (True, "class preempted, attempt 3 of 4"))):
        found = runs_again(
            ending, policies, attempt=2, first_attempt=0, step=None, previous=previous, counts_steps=counts
        )
        assert found == again
