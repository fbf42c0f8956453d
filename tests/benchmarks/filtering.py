"""jsonl-filter against a bare loop that reads and hashes each line, and what it holds in memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from report import Figure, bound, ratio
from scene import REPO
from timing import Samples, in_turn

SHORT = 1_000_000
LARGE = 10_000_000
_CALL = """
import hashlib, json, resource, sys, tempfile, time
from pathlib import Path
kernel, source, path, what = sys.argv[1:]
sys.path[:0] = [kernel, source]
begin = time.perf_counter()
if what == "filter":
    from tuneplane.contract.transforms import TransformRequest
    from tuneplane_jsonl_filter import transform
    with tempfile.TemporaryDirectory(dir=Path(path).parent) as out:
        request = TransformRequest({"documents": Path(path)}, Path(out), {"min_length": 10})
        count = transform(request).records
else:
    count = 0
    with open(path, "rb", buffering=1 << 20) as lines:
        for line in lines:
            hashlib.sha256(line).digest()
            count += 1
took = time.perf_counter() - begin
print(json.dumps([took, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, count]))
"""


def _records(path: Path, count: int) -> Path:
    """Short records, one in ten a repetition of an earlier one."""
    with open(path, "w", encoding="ascii", buffering=1 << 20) as out:
        for n in range(count):
            number = n if n % 10 else n // 2
            out.write(f'{{"id": {number}, "text": "record number {number} says something short", "score": 0.5}}\n')
    return path


def _run(path: Path, what: str) -> tuple[float, float, int]:
    """(seconds, peak MiB, records) in an interpreter of its own, without its start."""
    places = (REPO / "hpc/kernel", REPO / "hpc/plugins/sources/jsonl_filter", path)
    done = subprocess.run([sys.executable, "-I", "-c", _CALL, *map(str, places), what], check=True, capture_output=True)
    seconds, peak, count = json.loads(done.stdout)
    return seconds, peak, count


def filtering(folder: Path, *, large: bool) -> list[Figure]:
    """A million short records; with `large` also ten million, for which memory must be the same."""
    path = _records(folder / "short.jsonl", SHORT)
    peaks: list[float] = []

    def ours(n: int) -> float:
        seconds, peak, count = _run(path, "filter")
        assert SHORT * 0.85 < count < SHORT
        peaks.append(peak)
        return seconds

    mine, bare = in_turn(3, ours, lambda n: _run(path, "bare")[0])
    name = f"jsonl-filter, {SHORT:,} short records"
    figures = [
        bound(name, mine, "s", 60),
        ratio(name, mine, bare, "reading and hashing each line", unit="s"),
        bound(f"peak memory of jsonl-filter, {SHORT:,} records", Samples(tuple(peaks)), "MiB"),
    ]
    path.unlink()
    if large:
        peak = _run(_records(folder / "large.jsonl", LARGE), "filter")[1]
        (folder / "large.jsonl").unlink()
        name = f"peak memory of jsonl-filter, {LARGE:,} records"
        figures.append(ratio(name, Samples((peak,)), Samples((max(peaks),)), f"{SHORT:,} records", 1.5, "MiB"))
    return figures
