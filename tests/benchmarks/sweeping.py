"""A sweep of a thousand variants: the command, what reaches Slurm, and its table."""

from __future__ import annotations

import json
from pathlib import Path

from commands import own
from report import Figure, bound
from scene import Place, slurm_place
from timing import Environment, Samples


def _words(place: Place, label: str, variants: int) -> list[str]:
    inputs = [
        "--profile",
        "cpu",
        "--time",
        "30",
        "--model",
        str(place.folder / "model"),
        "--train-data",
        str(place.folder / "train.jsonl"),
    ]
    seeds = ",".join(map(str, range(variants // 10)))
    grid = ["-g", "learning_rate=1e-5,2e-5,3e-5,4e-5,5e-5,6e-5,7e-5,8e-5,9e-5,1e-4", "-g", f"seed={seeds}"]
    return [
        "sweep",
        "big",
        *inputs,
        *grid,
        "--rungs",
        "100,300",
        "--begin",
        "now+1hour",
        "--label",
        f"turn={label}",
        "--allow-dirty",
    ]


def sweeps(folder: Path, env: Environment, conf: str, variants: int = 1000) -> list[Figure]:
    """`tp sweep` of a thousand variants on a real controller; the calls of one that is cut into three parts; `tp sweep status`."""
    from fakeslurm import FakeSlurm

    place = slurm_place(folder / "sweep", env, conf)
    costs = [own(place, *_words(place, str(n), variants)) for n in range(5)]
    run = json.loads(place.tp(*_words(place, "looked-at", variants), "--json"))["run_id"]
    looks = [own(place, "sweep", "status", run) for _ in range(5)]
    place.run("scancel", "--state=PENDING", "--me")
    fake = FakeSlurm(folder / "sliced", MaxArraySize="400")
    cut = slurm_place(folder / "cut", env, fake.conf, bin_dir=str(fake.bin))
    cut.tp(*_words(cut, "cut", variants))
    calls = [call["tool"] for call in fake.calls()]
    return [
        bound(f"tp sweep of {variants} variants, whole process", Samples(tuple(c.wall_ms for c in costs)), "ms", 2000),
        bound(f"tp sweep of {variants} variants, own CPU time", Samples(tuple(c.cpu_ms for c in costs)), "ms"),
        bound(f"tp sweep status of {variants} waiting variants, own CPU time", Samples(tuple(c.cpu_ms for c in looks)), "ms"),
        Figure(
            f"sbatch calls of {variants} variants where MaxArraySize is 400", str(calls.count("sbatch")), limit="3 calls",
            missed=calls.count("sbatch") != 3,
        ),
    ]  # fmt: skip
