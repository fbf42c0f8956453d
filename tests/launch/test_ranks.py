"""Real child processes: warnings reach them, failures end the others, output is stamped."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from tuneplane.launch.ranks import RankGroup, heeds_warnings
from tuneplane.record.times import utc_now

WAITS = "import signal,sys,time\nsignal.signal(signal.SIGUSR2, lambda *a: sys.exit(85))\nprint('up', flush=True)\nwhile True: time.sleep(0.05)\n"


def start(group: RankGroup, tmp_path: Path, programs: list[str]) -> None:
    for rank, code in enumerate(programs):
        group.start(rank, [sys.executable, "-c", code], dict(os.environ), tmp_path, tmp_path / f"rank-{rank}.log")


def wait_for(path: Path, word: str) -> None:
    for _ in range(400):
        if path.exists() and word in path.read_text():
            return
        time.sleep(0.02)
    raise AssertionError(f"{word} never came in {path}")


def test_p27_every_rank_gets_the_warning(tmp_path: Path) -> None:
    group = RankGroup(utc_now, lambda text: None)
    start(group, tmp_path, [WAITS, WAITS])
    for rank in (0, 1):
        wait_for(tmp_path / f"rank-{rank}.log", "up")
    group.warn(signal.SIGUSR2)
    assert [e.exit_code for e in group.wait(grace_s=5, save_s=5)] == [85, 85]
    assert group.warned == ["SIGUSR2"]


def test_a_crash_ends_the_others_after_the_grace(tmp_path: Path) -> None:
    group = RankGroup(utc_now, lambda text: None)
    start(group, tmp_path, ["import sys; sys.exit(3)", "import time; time.sleep(60)"])
    ends = group.wait(grace_s=0.2, save_s=5)
    assert [(e.exit_code, e.signal, e.by_us) for e in ends] == [(3, 0, False), (137, 9, True)]


def test_what_a_rank_left_behind_is_ended(tmp_path: Path) -> None:
    group = RankGroup(utc_now, lambda text: None)
    start(
        group, tmp_path, ["import subprocess; p = subprocess.Popen(['sleep', '60']); print('child', p.pid, flush=True)"]
    )
    group.wait(grace_s=1, save_s=1)
    pid = int(re.search(r"child (\d+)", (tmp_path / "rank-0.log").read_text())[1])
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2]:
            return
        time.sleep(0.02)
    raise AssertionError("the grandchild is still there")


JUDGED = """import signal, subprocess, sys
judge = subprocess.Popen(["sleep", "0.8"])
signal.signal(signal.SIGUSR2, lambda *a: None)
print("up", flush=True)
sys.exit(85 if judge.wait() == 0 else 3)
"""


@pytest.mark.parametrize(("alone", "code"), [(True, 85), (False, 3)])
def test_a_rank_that_heeds_warnings_gets_them_alone_and_what_it_started_goes_on(
    tmp_path: Path, alone: bool, code: int
) -> None:
    group = RankGroup(utc_now, lambda text: None)
    argv = [sys.executable, "-c", JUDGED]
    group.start(0, argv, dict(os.environ), tmp_path, tmp_path / "rank-0.log", alone=alone)
    wait_for(tmp_path / "rank-0.log", "up")
    group.warn(signal.SIGUSR2)
    assert [e.exit_code for e in group.wait(grace_s=5, save_s=5)] == [code]


def test_only_a_python_program_a_rank_is_taken_to_heed_warnings() -> None:
    kinds = [("rank", "$PYTHON"), ("rank", "/bin/bash"), ("node", "$PYTHON"), ("ray", "$PYTHON")]
    assert [heeds_warnings({"kind": kind, "argv": [word, "x"]}) for kind, word in kinds] == [True, False, False, False]


SAVES = """import signal, sys, time
def save(*args):
    time.sleep(0.5)
    open("saved", "w").close()
    sys.exit(0)
signal.signal(signal.SIGUSR2, save)
print("up", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(("grace", "saved"), [(1000.0, True), (0.1, False)])
def test_a_script_that_dies_of_the_warning_leaves_its_program_time_to_save(
    tmp_path: Path, grace: float, saved: bool
) -> None:
    group = RankGroup(utc_now, lambda text: None)
    (tmp_path / "program.py").write_text(SAVES)
    script = f"{sys.executable} program.py\necho never\n"
    group.start(0, ["sh", "-c", script], dict(os.environ), tmp_path, tmp_path / "rank-0.log")
    wait_for(tmp_path / "rank-0.log", "up")
    group.warn(signal.SIGUSR2)
    ends = group.wait(grace_s=grace, save_s=30)  # not all of a long grace: the test's own limit is shorter
    assert [(e.signal, e.by_us) for e in ends] == [(int(signal.SIGUSR2), False)]
    assert (tmp_path / "saved").exists() is saved


def test_lines_carry_their_time_and_stay_whole(tmp_path: Path) -> None:
    group = RankGroup(utc_now, lambda text: None)
    start(group, tmp_path, ["import sys; sys.stdout.write('one\\ntwo\\r\\nthr\\xe9e'); sys.stderr.write('')"])
    group.wait(grace_s=1, save_s=1)
    lines = (tmp_path / "rank-0.log").read_text().splitlines()
    assert [re.sub(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z ", "", line) for line in lines] == [
        "one",
        "two",
        "thr\xe9e",
    ]
