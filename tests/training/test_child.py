"""Programs that a rank starts: a warning in the meantime is a warning, whoever got it, and nothing of them is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tuneplane.training import child

PREAMBLE = """
import os, sys
from pathlib import Path
from tuneplane.training import warning
warning.install()
from tuneplane.training import gguf, reshape
from tuneplane.training.refusals import Refused
program, folder = sys.argv[1], Path(sys.argv[2])
try:
    {work}
except warning.Warned as exc:
    print("warned", exc)
except Refused as exc:
    print("refused", exc)
else:
    print("went on")
"""
WORK = {
    "reshape": "reshape.sys.executable = program; reshape.universal(folder, folder / 'out', 60.0)",
    "gguf": "gguf.write_gguf(folder, folder / 'out.gguf', {'PATH': os.environ['PATH'], gguf.VARIABLE: program})",
}


@pytest.mark.parametrize("who", ["the rank's group", "the rank and its program"])
@pytest.mark.parametrize("work", sorted(WORK))
def test_a_warning_while_a_program_runs_is_no_fault_of_the_program(work: str, who: str, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho $$ >{tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid\nsleep 60\n")
    program.chmod(0o755)
    rank = subprocess.Popen(
        [sys.executable, "-c", PREAMBLE.format(work=WORK[work]), str(program), str(tmp_path)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(child.__file__).parents[2])},
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        for _ in range(500):
            if (tmp_path / "pid").exists():
                break
            time.sleep(0.02)
        pid = int((tmp_path / "pid").read_text())
        if who == "the rank and its program":
            os.killpg(os.getpgid(pid), signal.SIGTERM)
        os.killpg(rank.pid, signal.SIGTERM)
        assert rank.communicate(timeout=30)[0] == "warned SIGTERM\n"
        assert not Path(f"/proc/{pid}").exists()
    finally:
        rank.kill()


def test_a_program_that_takes_too_long_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    with open(tmp_path / "said", "w+b") as said:
        code = child.run(["/bin/sh", "-c", "sleep 60 & echo $!; wait"], os.environ, 1.0, stdout=said, stderr=said)
    assert code is None
    state = Path(f"/proc/{int((tmp_path / 'said').read_text())}/stat")
    for _ in range(100):
        if not state.exists() or state.read_text().split()[2] == "Z":
            return
        time.sleep(0.02)
    raise AssertionError("what it started is still there")


def test_the_exit_code_is_the_program_s(tmp_path: Path) -> None:
    with open(tmp_path / "said", "w+b") as said:
        assert child.run(["/bin/sh", "-c", "exit 3"], os.environ, 30.0, stdout=said, stderr=said) == 3
        with pytest.raises(FileNotFoundError):
            child.run([str(tmp_path / "nothing")], os.environ, 30.0, stdout=said, stderr=said)
