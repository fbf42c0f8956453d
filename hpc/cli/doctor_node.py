"""`tp doctor --probe`: a small batch job that asks compute nodes what they are, and the wait for its reports."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tuneplane.record.files import write_new

from hpc.errors.core import Refusal
from hpc.site.findings import Finding
from hpc.site.nodeprobe import SCRIPT, Ask, batch_script, parse_facts
from hpc.store.folders import make_private

if TYPE_CHECKING:
    from hpc.slurm.commands import Slurm

TIME_LIMIT = "00:05:00"
ASK_EVERY_S = 10.0
LOOK_EVERY_S = 0.25


@dataclass
class Answer:
    """What came back: facts by node, the batch step's own, the moments around (seconds since 1970), what went wrong."""

    job_id: str = ""
    facts: dict[str, dict[str, str]] = field(default_factory=dict)
    batch: dict[str, str] = field(default_factory=dict)
    started: float = 0.0
    ended: float = 0.0
    trouble: Finding | None = None


def submit_arguments(ask: Ask, folder: str, options: dict[str, str], gpus: list[str]) -> list[str]:
    """The sbatch command line of the probe.

    `options`: partition, account, qos, … that are stated; `gpus`: the request.
    """
    fixed = {
        "job-name": "tp-doctor",
        "time": TIME_LIMIT,
        "nodes": str(ask.nodes),
        "ntasks-per-node": "1",
        "cpus-per-task": "1",
        "output": f"{folder}/job.log",
        "chdir": "/",
        "export": "NIL",
    }
    stated = {k: v for k, v in options.items() if v}
    return ["--parsable", "--no-requeue", *(f"--{k}={v}" for k, v in (fixed | stated).items()), *gpus]


def ask_nodes(
    slurm: Slurm,
    home: Path,
    ask: Ask,
    *,
    options: dict[str, str],
    gpus: list[str],
    wait_s: float,
    tell: Callable[[str], None],
    now: Callable[[], float] = time.time,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Answer:
    """Submit the probe, wait for one report a node, clean up. `home`: the caller's state folder, seen by all nodes.

    A job that does not answer in `wait_s` seconds is cancelled, and so is one at Ctrl-C. Raises Refusal E-SLURM-* if
    Slurm does not take it, E-STORE-* if the folder cannot be made.
    """
    folder = home / f"doctor-{secrets.token_hex(4)}"
    make_private(folder)
    answer = Answer(started=now())
    try:
        write_new(folder / "probe.sh", SCRIPT.encode(), mode=0o700)
        script = batch_script(ask, str(folder), slurm.path("srun"))
        answer.job_id = _submit(slurm, submit_arguments(ask, str(folder), options, gpus), script)
        tell(f"job {answer.job_id} asks {ask.nodes} node(s)")
        try:
            _wait(slurm, folder, ask, answer, wait_s, tell, clock, sleep)
        finally:
            if len(answer.facts) < ask.nodes:
                slurm.run("scancel", [answer.job_id])
        answer.ended = now()
        answer.batch = parse_facts(_read(folder / "batch.txt"))
        if answer.trouble is not None and (log := _read(folder / "job.log").strip()):
            answer.trouble = Finding(**{**answer.trouble.as_json(), "found": log[-500:]})  # type: ignore[arg-type]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return answer


def _submit(slurm: Slurm, arguments: list[str], script: str) -> str:
    from hpc.slurm.verdicts import classify, refusal
    from hpc.submit.intents import parse_job_id

    done = slurm.run("sbatch", arguments, stdin=script)
    if classify(done) != "ok":
        raise refusal(done, "submit the probe job")
    job_id = parse_job_id(done.out)
    if job_id is None:
        raise Refusal("E-SITE-051", "sbatch printed no job id", found=done.out[:200])
    return job_id


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def _wait(
    slurm: Slurm,
    folder: Path,
    ask: Ask,
    answer: Answer,
    wait_s: float,
    tell: Callable[[str], None],
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> None:
    deadline, next_ask, gone = clock() + wait_s, clock() + ASK_EVERY_S, False
    state = "waiting"
    while True:
        # Names are listed, not looked up: a missing name would be cached by a network mount.
        for name in sorted(n for n in os.listdir(folder) if n.endswith(".facts")):
            facts = parse_facts(_read(folder / name))
            answer.facts[facts.get("host", name)] = facts
        if len(answer.facts) >= ask.nodes:
            return
        if gone or clock() >= deadline:
            text = (
                f"job {answer.job_id} ended without a report" if gone else f"no report within {wait_s:.0f} s: {state}"
            )
            mend = "see the words above" if gone else "try again with a longer --wait, or another --partition"
            answer.trouble = Finding("nodes.probe", "fail" if gone else "warn", text, mend=mend)
            return
        if clock() >= next_ask:
            next_ask = clock() + ASK_EVERY_S
            done = slurm.run("squeue", ["--noheader", f"--jobs={answer.job_id}", "--format=%T %r"])
            words = done.out.strip()
            # Not known any more: one last look at the folder, since the report may lag behind.
            gone = (done.rc == 0 and not words) or "Invalid job id" in done.err
            state = words or state
            tell(f"job {answer.job_id}: {state}")
        sleep(LOOK_EVERY_S)
