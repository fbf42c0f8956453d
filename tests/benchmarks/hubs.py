"""Prefetching from a local endpoint against curl, four files at once; the endpoint is a process of its own."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from report import Figure, ratio
from timing import in_turn

SIZE = 32 << 20
FAULTS = Path(__file__).resolve().parents[1] / "faults"
SERVE = (
    "import os, sys, time; sys.path.insert(0, sys.argv[1]); import fakehub; hub = fakehub.FakeHub()\n"
    "files = {f'model-0000{n}-of-00004.safetensors': os.urandom(int(sys.argv[2])) for n in (1, 2, 3, 4)}\n"
    "print(hub.repo('org/big').commit({'config.json': b'{}', **files}), hub.endpoint, flush=True); time.sleep(3600)"
)


def prefetching(folder: Path) -> list[Figure]:
    """128 MiB in four files: fetched, hashed, made durable and linked, against curl alone and against curl, sync and sha256sum."""
    from hpc.data.hub_client import HuggingFace
    from hpc.data.hub_names import HubCache, Repo
    from hpc.data.prefetch import Clockwork, prefetch
    from hpc.site.layout import init_root

    server = subprocess.Popen([sys.executable, "-c", SERVE, str(FAULTS), str(SIZE)], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        commit, endpoint = server.stdout.readline().split()
        hub, repo, clock = (
            HuggingFace(endpoint),
            Repo("model", "org/big"),
            Clockwork(time.monotonic, time.sleep, "2026-01-01T00:00:00Z"),
        )

        def ours(n: int) -> float:
            cache = HubCache(init_root(folder / f"hub-{n}", name="bench").root)
            begin = time.perf_counter()
            prefetch(cache, hub, repo, user="bench", time=clock)
            return (time.perf_counter() - begin) * 1000

        def curl(n: int, *, whole: bool = False) -> float:
            target = folder / f"curl-{n}-{whole}"
            target.mkdir()
            names = [f"model-0000{i}-of-00004.safetensors" for i in (1, 2, 3, 4)]
            begin = time.perf_counter()
            running = [
                subprocess.Popen(["curl", "-sfLo", str(target / name), f"{endpoint}/org/big/resolve/{commit}/{name}"])
                for name in names
            ]
            assert [p.wait() for p in running] == [0, 0, 0, 0]
            if whole:
                files = [str(target / name) for name in names]
                subprocess.run(["sync", *files], check=True)
                subprocess.run(["sha256sum", *files], check=True, stdout=subprocess.DEVNULL)
            return (time.perf_counter() - begin) * 1000

        ours(-1)  # imports and connections
        mine, theirs = in_turn(7, ours, curl)
        again, both = in_turn(7, lambda n: ours(100 + n), lambda n: curl(100 + n, whole=True))
    finally:
        server.kill()
        server.wait()
    text = "prefetch of 128 MiB in four files"
    return [
        ratio(text, mine, theirs, "curl, neither durable nor compared", 1 / 0.8),
        ratio(text, again, both, "curl, sync and sha256sum"),
    ]
