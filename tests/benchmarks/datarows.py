"""Rows and bytes of data sets: the duplicate check against reading and hashing each row once, its memory, and a push against cp and sha256sum."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from report import Figure, ratio
from timing import in_turn

MB = 1 << 20
CHECK = (
    "import re, sys; from hpc.data.duplicates import exact_duplicates; from hpc.data.rows import find_sources;"
    "s = find_sources(sys.argv[1], root=None); peak = lambda: int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]);"
    "base = peak(); found = exact_duplicates(s); print(found['duplicates'], peak() - base)"
)


def rows_file(path: Path, rows: int) -> int:
    """Short rows, one in a thousand of which repeats an earlier one; how many do."""
    with open(path, "w", encoding="ascii") as stream:
        for start in range(0, rows, 1000):
            numbers = [*range(start, start + 999), start // 2 if start else 999]
            stream.write("".join(f'{{"prompt":"What is {n}+{7 * n}?","completion":"{8 * n}"}}\n' for n in numbers))
    return rows // 1000 - 1


def duplicates(folder: Path, rows: int) -> list[Figure]:
    """`exact_duplicates`, the gate of a submission, against reading the file and hashing every row once."""
    from hpc.data.duplicates import exact_duplicates
    from hpc.data.rows import find_sources

    path = folder / "rows.jsonl"
    planted = rows_file(path, rows)
    sources = find_sources(str(path), root=None)

    def ours(n: int) -> float:
        begin = time.perf_counter()
        found = exact_duplicates(sources)
        if found["duplicates"] != planted:
            raise SystemExit(f"bench: {found['duplicates']} duplicates were found, {planted} are there")
        return (time.perf_counter() - begin) * 1000

    def peer(n: int) -> float:
        begin, sha = time.perf_counter(), hashlib.sha256
        with open(path, "rb", buffering=1 << 20) as stream:
            for line in stream:
                sha(line).digest()
        return (time.perf_counter() - begin) * 1000

    mine, theirs = in_turn(5 if rows <= 1_000_000 else 4, ours, peer)
    name = f"duplicate check of {rows:,} short rows"
    figures = [ratio(name, mine, theirs, "reading and hashing each once", 2.0), memory(path, rows)]
    path.unlink()
    return figures


def memory(path: Path, rows: int) -> Figure:
    """What the same check adds to a process; the limit does not depend on the number of rows."""
    done = subprocess.run([sys.executable, "-c", CHECK, str(path)], capture_output=True, text=True, check=True)
    grown = int(done.stdout.split()[1]) / 1024
    return Figure(f"its memory, {rows:,} rows", f"{grown:.0f} MiB", limit="≤ 80 MiB", missed=grown > 80)


def pushing(folder: Path, megabytes: int) -> Figure:
    """A push with the verification that follows, against `cp` and `sha256sum` of the same bytes. Informs only: a push reads the bytes
    twice for two digests each and makes every file durable, and verifying is a third reading."""
    from tuneplane.record.times import utc_now

    from hpc.data.cards import find
    from hpc.data.push import Pusher, push_dataset
    from hpc.registry.resolve import require_content
    from hpc.site.layout import init_root
    from hpc.site.sitefile import load_site
    from hpc.site.users import real_user

    root = init_root(folder / "push-root", name="bench").root
    by = Pusher(root, load_site(root), real_user(), utc_now())
    source = folder / "push-source"
    source.mkdir()
    for number in range(megabytes // 16):
        (source / f"part-{number:03d}.bin").write_bytes(os.urandom(16 * MB))

    def ours(n: int) -> float:
        begin = time.perf_counter()
        push_dataset(by, "bench", f"1.{n}", source)
        require_content(find(root, f"{by.user.name}/bench@1.{n}"))
        return (time.perf_counter() - begin) * 1000

    def peer(n: int) -> float:
        begin = time.perf_counter()
        subprocess.run(["cp", "-r", source, folder / f"copy-{n}"], check=True)
        files = sorted(str(p) for p in (folder / f"copy-{n}").iterdir())
        subprocess.run(["sha256sum", "--", *files], stdout=subprocess.DEVNULL, check=True)
        took = (time.perf_counter() - begin) * 1000
        shutil.rmtree(folder / f"copy-{n}")
        return took

    mine, theirs = in_turn(3, ours, peer)
    return ratio(f"push and verify of {megabytes} MB", mine, theirs, "cp + sha256sum")


def datasets(folder: Path, *, large: bool) -> list[Figure]:
    """Both, with one million rows, or with ten where `large`."""
    return [*duplicates(folder, 10_000_000 if large else 1_000_000), pushing(folder, 256)]
