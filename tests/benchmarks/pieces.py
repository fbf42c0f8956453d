"""Parts of commands: verifying a package, packing the kernel, auditing a run."""

from __future__ import annotations

import getpass
import json
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from commands import own
from report import Figure, bound
from scene import TP, Place
from timing import Environment, Samples, in_turn, once, times

MB = 1 << 20


@dataclass(frozen=True)
class Item:
    source: Path
    path: str


def verification(folder: Path) -> list[Figure]:
    """Reading a package back and comparing every byte, as admission does, against sha256sum of the same files."""
    from tuneplane.contract.layout import StorageRoot

    from hpc.submit.admission import read_package
    from hpc.submit.package import write_package

    source = folder / "verify-source"
    source.mkdir()
    items = []
    for number in range(200):
        path = source / f"{number:03d}.bin"
        path.write_bytes(os.urandom(MB))
        items.append(Item(path, f"experiments/e/{number:03d}.bin"))
    run = StorageRoot(folder / "verify").run("bench", "e", "run-0001")
    run.root.parent.mkdir(parents=True)
    records = {"jobspec.json": {}, "launch.json": {}, "recipe.json": {}}
    packed = write_package(run, items, records, max_bytes=1 << 30, created_at="2026-01-01T00:00:00.000000Z")
    files = sorted(str(path) for path in run.work.rglob("*") if path.is_file())

    def ours(n: int) -> float:
        begin = time.perf_counter()
        read_package(run)
        return packed.size / MB / (time.perf_counter() - begin)

    def peer(n: int) -> float:
        begin = time.perf_counter()
        subprocess.run(["sha256sum", "--", *files], stdout=subprocess.DEVNULL, check=True)
        return packed.size / MB / (time.perf_counter() - begin)

    mine, theirs = in_turn(7, ours, peer)
    name = f"verifying a package of {packed.files} files, {packed.size // MB} MB"
    ratios = mine.over(theirs)
    return [Figure(name, mine.text("MB/s"), f"sha256sum: {theirs.text('MB/s')}", ratios.text("x", 2))]


def kernel(folder: Path) -> list[Figure]:
    """Packing both archives of the kernel, which every submission compares with the site's."""
    from hpc.submit.kernelzip import PARTS, archive

    def pack(n: int) -> float:
        begin = time.perf_counter()
        for part in PARTS:
            archive(part)
        return (time.perf_counter() - begin) * 1000

    return [bound("packing the kernel's two archives", times(15, pack), "ms")]


def audit(folder: Path, env: Environment) -> list[Figure]:
    """`tp runs audit` of a run of the local fleet that ended well."""
    place = Place(folder / "audit", env)
    place.site("--fleet", "local")
    place.experiment("job", "custom/custom", files=20)
    (place.project / "experiments/job/train.sh").write_text("echo done\n", encoding="ascii")
    place.commit()
    run_id = json.loads(place.tp("submit", "job", "--json"))["run_id"]
    place.tp("job", "wait", run_id, "--timeout", "60")
    verdict = json.loads(place.tp("runs", "audit", run_id, "--json"))["verdict"]
    if verdict != "verified":
        raise SystemExit(f"bench: the audited run of {getpass.getuser()} is {verdict}")
    words = ["runs", "audit", run_id]
    wall = times(11, lambda n: once([TP, *words], env=place.env, cwd=place.project))
    cpu = Samples(tuple(own(place, *words).cpu_ms for _ in range(5)))
    return [
        bound("tp runs audit of one run, whole process", wall, "ms"),
        bound("tp runs audit, own CPU time", cpu, "ms"),
    ]
