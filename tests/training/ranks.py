"""Real rank processes, started as the job's launcher starts them: the rank contract's environment, a launch.json, one log a rank."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml
from warm import WarmProcess, WarmServer

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "recipes" / "deepspeed"
ENTRY = RECIPES / "sft" / "template" / "train.py"
RUN_ID = "run-4f2a91c0"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Attempt:
    """The ranks of one attempt, running or ended."""

    def __init__(self, root: Path, number: int, processes: list[subprocess.Popen[bytes] | WarmProcess]) -> None:
        self.root, self.number, self.processes = root, number, processes
        self.out = root / "attempts" / str(number) / "out"
        self.logs = root / "attempts" / str(number) / "logs"

    def wait(self, timeout_s: float = 120.0) -> list[int]:
        """Exit codes by rank. Kills everything and raises AssertionError past the time."""
        end = time.monotonic() + timeout_s
        try:
            return [p.wait(max(0.1, end - time.monotonic())) for p in self.processes]
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"ranks still run after {timeout_s} s\n{self.log(0)[-3000:]}") from None

    def kill(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()

    def log(self, rank: int) -> str:
        return (self.logs / f"rank-{rank:05d}.log").read_text(errors="replace")

    def last_line(self, rank: int) -> str:
        lines = [line for line in self.log(rank).splitlines() if line.strip()]
        return lines[-1] if lines else ""

    def metrics(self) -> list[dict[str, Any]]:
        """Step lines of metrics.jsonl; a line that is still being written is left out."""
        try:
            lines = (self.out / "metrics.jsonl").read_text().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        values = [json.loads(line) for line in lines if line.endswith("\n")]
        return [v for v in values if "loss" in v]

    def losses(self) -> dict[int, float]:
        return {m["step"]: m["loss"] for m in self.metrics()}

    def result(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.out / "result.json").read_text())
        return value

    def until_step(self, step: int, timeout_s: float = 90.0) -> None:
        self.until(lambda: any(m["step"] >= step for m in self.metrics()), timeout_s, f"step {step}")

    def until(self, seen: Callable[[], bool], timeout_s: float = 90.0, what: str = "it") -> None:
        end = time.monotonic() + timeout_s
        while not seen():
            dead = [p.returncode for p in self.processes if p.poll() is not None]
            assert len(dead) < len(self.processes), f"all ranks ended ({dead}) before {what}\n{self.log(0)[-3000:]}"
            assert time.monotonic() < end, f"{what} did not come\n{self.log(0)[-3000:]}"
            time.sleep(0.02)

    def weights(self) -> dict[str, str]:
        """Digests of the artefact's weight files."""
        files = sorted((self.out / "final").glob("*.safetensors"))
        return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in files}

    def signal(self, number: signal.Signals) -> None:
        for process in self.processes:
            process.send_signal(number)


def assert_continues(attempt: Attempt, whole: Attempt, done: int) -> None:
    """`attempt` began after step `done` and computed the rest exactly as `whole` did."""
    free = ("time", "elapsed_s", "tokens_per_s")

    def lines(of: Attempt) -> dict[int, dict[str, Any]]:
        return {m["step"]: {k: v for k, v in m.items() if k not in free} for m in of.metrics()}

    steps = whole.result()["steps"]
    assert lines(attempt) == {step: line for step, line in lines(whole).items() if step > done}
    assert attempt.weights() == whole.weights()
    assert len(attempt.weights()) == 1
    kept = {"final_loss", "tokens", "steps", "samples_sha256", "parameters_trainable"}
    kept |= {k for k in whole.result() if k.startswith("validation_")}
    assert {k: attempt.result()[k] for k in kept} == {k: whole.result()[k] for k in kept}
    assert f"at step {done} of {steps}: step-{done:09d} verified" in attempt.log(0)
    certificate = json.loads((attempt.out / "continuity.json").read_text())
    assert (certificate["verified"], certificate["differs"]) == (True, [])
    assert certificate["compared"] == ["parameters", "optimiser", "random", "samples"]
    assert certificate["continues"]["step"] == done


def put_together(attempt: Attempt, step: int, out: Path) -> tuple[dict[str, str], dict[str, str]]:
    """(digests of the model that one process makes of the checkpoint of `step`, those of the attempt's own artefact) by file."""
    from tuneplane.record.digest import digest_file
    from tuneplane.training.consolidating import write_model

    checkpoint = attempt.root / "checkpoints" / f"step-{step:09d}"
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    base = json.loads((attempt.root / "work/.tuneplane/launch.json").read_text())["inputs"]["model"]["path"]
    made = write_model(checkpoint, manifest, Path(base), out)
    final = {p.name: digest_file(p) for p in (attempt.out / "final").iterdir()}
    return {f["path"]: f["sha256"] for f in made["files"]}, final


class Run:
    """One run directory; `start` makes its next attempt."""

    def __init__(self, root: Path, model: Path, train: Path, method: str = "sft", **hyperparams: Any) -> None:
        self.root, self.model, self.train = root, model, train
        self.hyperparams = {
            "max_length": 128,
            "micro_batch_size": 2,
            "learning_rate": 1e-2,
            "log_steps": 5,
            "lr_schedule": "linear",
            "seed": 3,
        } | hyperparams
        self.policies: dict[str, Any] = {"peer_timeout_s": 30, "lead_s": 60, "rendezvous_timeout_s": 60}
        self.peft: dict[str, Any] | None = None
        self.validation: Path | None = None
        self.inputs: dict[str, Any] | None = None
        self.entry = RECIPES / method / "template" / "train.py"
        self.warm: WarmServer | None = None
        self.launch_start: dict[str, Any] | None = None
        """The checkpoint of another run that this one begins with."""
        self.attempts = 0

    def before_the_loop(self, *lines: str) -> None:
        """Edit the entry as an experiment would: these lines run on every rank just before the first step."""
        self._edit(lambda mark: "".join(f"    {line}\n" for line in lines) + mark)

    def after_the_loop(self, *lines: str) -> None:
        """The same just after the last step, before the artefact is made."""
        self._edit(lambda mark: mark + "".join(f"    {line}\n" for line in lines))

    def _edit(self, change: Callable[[str], str]) -> None:
        mark = "    progress = loop.run(resumed)\n"
        text = self.entry.read_text()
        assert text.count(mark) == 1
        self.root.mkdir(parents=True, exist_ok=True)
        self.entry = self.root / "train.py"
        self.entry.write_text(text.replace(mark, change(mark)))

    def write(self, world: int) -> Path:
        work = self.root / "work"
        (work / ".tuneplane").mkdir(parents=True, exist_ok=True)
        inputs = {"model": {"path": str(self.model)}, **(self.inputs or {"train": {"path": str(self.train)}})}
        if self.validation is not None:
            inputs["validation"] = {"path": str(self.validation)}
        launch = {
            "hyperparams": self.hyperparams,
            "config": {},
            "inputs": inputs,
            "peft": self.peft,
            "shape": {"nodes": 1, "ranks_per_node": world, "gpus_per_node": 0, "world_size": world},
            "policies": self.policies,
            **({"start": self.launch_start} if self.launch_start else {}),
        }
        (work / ".tuneplane" / "launch.json").write_text(json.dumps(launch))
        return work

    def environment(self, rank: int, world: int, port: int) -> dict[str, str]:
        attempt = self.root / "attempts" / str(self.attempts)
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.root),
            "LANG": "C.UTF-8",
            "PYTHONPATH": f"{ROOT / 'hpc' / 'kernel'}:{self.root / 'work'}",
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world),
            "LOCAL_WORLD_SIZE": str(world),
            "NODE_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TUNEPLANE_WORK_DIR": str(self.root / "work"),
            "TUNEPLANE_RUN_DIR": str(self.root),
            "TUNEPLANE_OUT_DIR": str(attempt / "out"),
            "TUNEPLANE_EXP_DIR": str(self.root / "work"),
            "TUNEPLANE_CHECKPOINT_DIR": str(self.root / "checkpoints"),
            "TUNEPLANE_RUN_ID": RUN_ID,
            "TUNEPLANE_ATTEMPT": str(self.attempts),
        }

    def start(self, world: int = 2, ranks: list[int] | None = None) -> Attempt:
        """Start the next attempt; `ranks` starts only some of them."""
        self.attempts += 1
        work = self.write(world)
        attempt = self.root / "attempts" / str(self.attempts)
        (attempt / "logs").mkdir(parents=True)
        (attempt / "out").mkdir()
        port = free_port()
        started: list[subprocess.Popen[bytes] | WarmProcess] = []
        for rank in range(world) if ranks is None else ranks:
            env, log = self.environment(rank, world, port), attempt / "logs" / f"rank-{rank:05d}.log"
            if self.warm is not None:
                started.append(self.warm.start(self.entry, work, env, log))
                continue
            with open(log, "wb") as stream:
                command = [sys.executable, str(self.entry)]
                started.append(
                    subprocess.Popen(
                        command, cwd=work, env=env, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT
                    )
                )
        return Attempt(self.root, self.attempts, started)

    def complete(self, world: int = 2, timeout_s: float = 120.0) -> Attempt:
        """Start an attempt and expect it to end well."""
        attempt = self.start(world)
        codes = attempt.wait(timeout_s)
        assert codes == [0] * world, f"exit codes {codes}\n{attempt.log(0)[-4000:]}"
        self._assert_declared(attempt)
        return attempt

    def _assert_declared(self, attempt: Attempt) -> None:
        """The numbers of metrics.jsonl are those that the recipe declares, neither more nor fewer."""
        recipe = self.entry.parents[1] / "recipe.yaml"
        lines = [json.loads(line) for line in (attempt.out / "metrics.jsonl").read_text().splitlines()]
        if not recipe.is_file() or not lines:
            return  # an entry that a test edited, or an attempt that had nothing left to do
        written = {name for line in lines for name in line} - {"step", "total_steps", "time"}
        declared = {n for names in yaml.safe_load(recipe.read_text())["metrics"]["aliases"].values() for n in names}
        assert {n for n in written if not any(fnmatchcase(n, d) for d in declared)} == set()
        missing = {d for d in declared if not any(fnmatchcase(n, d) for n in written)}
        missing -= {"mfu", "kl"}  # where a device's peak is known; grpo's with beta
        assert {d for d in missing if self.validation or not d.startswith("validation_")} == set()
