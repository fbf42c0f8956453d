"""The nightly visit of all runs: the quick pass over very many, and the deep one over bytes against sha256sum."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from report import Figure, bound
from timing import in_turn, times

sys.path.append(str(Path(__file__).parents[1] / "runs"))
MB = 1 << 20
NOW = "2026-01-01T00:00:00.000000Z"


def lay_out(folder: Path, count: int, weights: bytes = b"weights") -> Any:
    """A root with that many small runs that ended well, a hundred an experiment, as jobs leave them but without their fsyncs."""
    from builder import RunMaker

    from hpc.site.layout import init_root
    from hpc.site.users import real_user

    root, me, fsync = init_root(folder, name="bench", fleet="local").root, real_user().name, os.fsync
    os.fsync = lambda fd: None
    try:
        for number in range(count):
            name = f"e{number // 100:04d}"
            spec = {"apiVersion": "tuneplane/v1", "metadata": {"name": name}}
            RunMaker(root, owner=me, exp=name, run_id=f"run-{number:08x}", spec=spec, weights=weights).done()
    finally:
        os.fsync = fsync
    return root


def _visit(root: Any, *, deep: bool = False, jobs: int = 1) -> Any:
    from hpc.registry.audit import Options
    from hpc.runs.nightly import Nightly
    from hpc.site.sitefile import load_site
    from hpc.site.users import real_user

    visit = Nightly(root, site=load_site(root), user=real_user(), options=Options(deep, jobs=jobs), now=NOW)
    visit.quick()
    if deep:
        visit.deep(None)
    if visit.report.exit:
        raise SystemExit(f"bench: the audited runs are {visit.report.verdict}: {visit.report.problems[:3]}")
    return visit


def quick(folder: Path, count: int) -> Figure:
    root = lay_out(folder / "many-runs", count)

    def visit(n: int) -> float:
        begin = time.perf_counter()
        _visit(root)
        return time.perf_counter() - begin

    return bound(f"quick audit of {count} runs", times(3, visit), "s", 60 * count / 10_000)


def deep(folder: Path) -> Figure:
    """Runs of 16 MB of artifacts each, one process."""
    root = lay_out(folder / "large-runs", 24, os.urandom(16 * MB))
    files = sorted(str(p) for p in root.runs.rglob("*") if p.is_file() and ("/out/" in str(p) or "/work/" in str(p)))
    total = sum(os.stat(p).st_size for p in files) / MB

    def ours(n: int) -> float:
        begin = time.perf_counter()
        _visit(root, deep=True)
        return total / (time.perf_counter() - begin)

    def peer(n: int) -> float:
        begin = time.perf_counter()
        subprocess.run(["sha256sum", "--", *files], stdout=subprocess.DEVNULL, check=True)
        return total / (time.perf_counter() - begin)

    mine, theirs = in_turn(7, ours, peer)
    ratios, missed = mine.over(theirs), theirs.over(mine).misses(1 / 0.9)
    name = f"quick and deep audit of 24 runs, {total:.0f} MB"
    return Figure(name, mine.text("MB/s"), f"sha256sum: {theirs.text('MB/s')}", ratios.text("x", 2), "≥ 0.9 x", missed)


def runs(folder: Path, *, large: bool) -> list[Figure]:
    """Both. `large`: ten thousand runs, which take a minute to lay out."""
    return [quick(folder, 10_000 if large else 1_000), deep(folder)]
