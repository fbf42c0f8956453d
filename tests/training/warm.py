"""Rank processes that are forked from one that has imported the heavy libraries already: the same entry and environment, three seconds less.

Used where many runs are compared with each other; the tests of signals and ends start every rank from nothing.
As a program: JSON requests a line on stdin, `{"pid": …}` and `{"ended": pid, "code": …}` lines on stdout.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any


class WarmProcess:
    """What the tests use of subprocess.Popen, for a process that the server forked."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.ended = threading.Event()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if not self.ended.wait(timeout):
            raise subprocess.TimeoutExpired("rank", timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class WarmServer:
    """The process that imports once, seen from the tests."""

    def __init__(self, env: dict[str, str]) -> None:
        self._server = subprocess.Popen(
            [sys.executable, __file__], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._known: dict[int, WarmProcess] = {}
        self._answer: list[WarmProcess] = []
        self._answered = threading.Semaphore(0)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._server.stdout is not None
        for line in self._server.stdout:
            said = json.loads(line)
            if "pid" in said:
                self._known[said["pid"]] = WarmProcess(said["pid"])
                self._answer.append(self._known[said["pid"]])
                self._answered.release()
            else:
                process = self._known.pop(said["ended"])
                process.returncode = said["code"]
                process.ended.set()

    def start(self, entry: Path, cwd: Path, env: dict[str, str], log: Path) -> WarmProcess:
        assert self._server.stdin is not None
        request = {"entry": str(entry), "cwd": str(cwd), "env": env, "log": str(log)}
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        assert self._answered.acquire(timeout=120), "the warm server does not answer"
        return self._answer.pop()

    def close(self) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait(30)


def _become(request: dict[str, Any]) -> None:
    """In the child: be the rank."""
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = [request["entry"]]
    runpy.run_path(request["entry"], run_name="__main__")


def _import_what_is_heavy() -> None:
    from tuneplane.training.model import quiet_libraries

    quiet_libraries()
    import deepspeed
    import peft
    import torch
    import transformers
    import trl

    torch.set_num_threads(1)
    for module in (
        deepspeed.zero,
        peft.LoraConfig,
        transformers.LlamaForCausalLM,
        transformers.AutoTokenizer,
        trl.SFTTrainer,
        trl.GRPOTrainer,
    ):
        assert module is not None


def _say(out: IO[str], value: dict[str, int]) -> None:
    out.write(json.dumps(value) + "\n")
    out.flush()


def _reap(out: IO[str]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _say(out, {"ended": pid, "code": os.waitstatus_to_exitcode(status)})


def main() -> None:
    """Serve until stdin closes."""
    import select

    _import_what_is_heavy()
    waiting = True
    while waiting:
        _reap(sys.stdout)
        if not select.select([sys.stdin], [], [], 0.05)[0]:
            continue
        line = sys.stdin.readline()
        waiting = bool(line)
        if line:
            pid = os.fork()
            if pid == 0:
                _become(json.loads(line))
                os._exit(0)
            _say(sys.stdout, {"pid": pid})


if __name__ == "__main__":
    main()
