"""Whole commands, process for process: help, submit, status of ten thousand runs, and fifty at once."""

from __future__ import annotations

import getpass
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from report import Figure, bound, ratio
from scene import HERE, PYTHON, TP, Place, slurm_place, submit_words
from timing import Environment, Samples, in_turn, once

# What `tp submit` must load by design: Click for the command line, pydantic for the JobSpec, submitit to submit.
FLOOR = "import click, submitit\nfrom pydantic import BaseModel\nclass Spec(BaseModel):\n    name: str\nSpec(name='x')"


@dataclass(frozen=True)
class Own:
    """What one process cost by itself, its children left out: CPU milliseconds and peak MB; wall milliseconds of the whole."""

    cpu_ms: float
    peak_mb: float
    wall_ms: float


def own(place: Place, *words: str) -> Own:
    out = place.folder / "own.json"
    wall = once([PYTHON, str(HERE / "own.py"), str(out), *words], env=place.env, cwd=place.project)
    value = json.loads(out.read_text(encoding="ascii"))
    return Own(value["cpu_ms"], value["peak_mb"], wall)


def help_page(folder: Path, env: Environment) -> list[Figure]:
    """`tp --help` against the import of Click alone."""
    ours, peer = in_turn(
        25,
        lambda n: once([TP, "--help"], env=env, cwd=folder),
        lambda n: once([PYTHON, "-c", "import click"], env=env, cwd=folder),
    )
    return [ratio("tp --help", ours, peer, '`python -c "import click"`', 1.6)]


def submission(place: Place) -> list[Figure]:
    """`tp submit` of 200 files against a ten-line submitit script, each one job on the same cluster."""
    logs = str(place.folder / "peer-logs")

    def tp(n: int) -> float:
        return once([TP, *submit_words(place, f"turn-{n}")], env=place.env, cwd=place.project)

    def peer(n: int) -> float:
        took = once([PYTHON, str(HERE / "submitit_peer.py"), logs], env=place.env, cwd=place.project)
        place.run("scancel", f"--user={getpass.getuser()}")
        return took

    def alone(n: int) -> Own:
        cost = own(place, *submit_words(place, f"alone-{n}"))
        place.run("scancel", f"--user={getpass.getuser()}")
        return cost

    ours, theirs = in_turn(15, tp, peer)
    costs = [alone(n) for n in range(7)]
    floor, _ = in_turn(9, lambda n: once([PYTHON, "-c", FLOOR], env=place.env, cwd=place.folder), peer)
    return [
        ratio("tp submit, 200 files, whole process", ours, theirs, "submitit script", 2.0),
        bound("tp submit, own CPU time", Samples(tuple(c.cpu_ms for c in costs)), "ms", 500),
        bound("tp submit, peak memory", Samples(tuple(c.peak_mb for c in costs)), "MB", 150),
        bound("only importing Click, pydantic (one model) and submitit", floor, "ms"),
    ]


STATUS = {"tp job status": ("job", "status"), "tp job ls": ("job", "ls")}


def _finished(run: Path, number: int) -> None:
    """A run that ended well, as its records say; only what a state is decided from."""
    for part in ("submissions", "attempts/0", "work/.tuneplane"):
        (run / part).mkdir(parents=True)
    at = f"2026-01-{1 + number % 28:02d}T{number % 24:02d}:00:00.000000Z"
    common = {"run_id": run.name, "job_id": str(100_000 + number), "nonce": "0" * 16}
    name = f"{run.parent.name}.{run.name}.0"
    records = {
        "submissions/0.json": {"first_attempt": 0, "fleet": "main", "kind": "slurm", "cluster": "", "job_name": name, "submitted_at": at},
        "attempts/0/start.json": {"attempt": 0, "restart_count": 0, "started_at": at, "hosts": ["b1"]},
        "attempts/0/end.json": {"attempt": 0, "ended_at": at, "class": "done", "exit_code": 0, "signal": None, "message": "", "requeue": False},
    }  # fmt: skip
    for path, record in records.items():
        (run / path).write_text(json.dumps({**common, **record}), encoding="ascii")


def status(place: Place, runs: int = 10_000, active: int = 3) -> list[Figure]:
    """Status and list of ten thousand runs, of which a few wait in Slurm's queue."""
    for number in range(active):
        place.tp(*submit_words(place, f"active-{number}"))
    base = place.storage / "runs" / getpass.getuser()
    for number in range(runs - active):
        _finished(base / f"exp{number % 100:02d}" / f"run-{number:08x}", number)
    first = own(place, "job", "status")
    counts = json.loads(place.tp("job", "status", "--json"))["counts"]
    if counts != {"done": runs - active, "queued": active}:
        raise SystemExit(f"bench: the states of the {runs} runs are wrong: {counts}")
    costs = {name: [own(place, *words) for _ in range(9)] for name, words in STATUS.items()}
    out = [
        bound(f"{name} of {runs} runs, own CPU time", Samples(tuple(c.cpu_ms for c in found)), "ms", 150)
        for name, found in costs.items()
    ]
    out.append(bound("the first status, which builds the index, own CPU time", Samples((first.cpu_ms,)), "ms"))
    submit = [own(place, *submit_words(place, f"among-{n}")) for n in range(5)]
    out.append(
        bound(f"tp submit beside {runs} runs, own CPU time", Samples(tuple(c.cpu_ms for c in submit)), "ms", 500)
    )
    place.run("scancel", f"--user={getpass.getuser()}")
    return out


def together(folder: Path, env: Environment, callers: int = 50) -> list[Figure]:
    """Fifty `tp job status` at once against the Slurm of files, with nothing cached: the calls that reach Slurm."""
    from fakeslurm import FakeSlurm

    fake = FakeSlurm(folder / "fake")
    place = slurm_place(folder / "together", env, fake.conf, bin_dir=str(fake.bin))
    place.tp(*submit_words(place, "one"))
    before = len(fake.calls())
    command = [TP, "job", "status", "--json"]
    started = [
        subprocess.Popen(command, env=place.env, cwd=place.project, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(callers)
    ]
    answers = {(p.communicate()[0], p.returncode) for p in started}
    calls = [call["tool"] for call in fake.calls()[before:]]
    if {(json.loads(out)["counts"]["queued"], code) for out, code in answers} != {(1, 0)}:
        raise SystemExit(f"bench: {callers} callers got different answers: {answers}")
    text = f"{len(calls)} ({', '.join(sorted(set(calls)))})"
    return [Figure(f"Slurm calls of {callers} tp job status at once", text, limit="1 call", missed=len(calls) != 1)]
