"""Kill -9 at every step of a prefetch: nothing half is ever visible, and the next one finishes."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
from collections.abc import Callable
from typing import Any

import pytest
from fakehub import FakeHub

from hpc.data.hub_cache import damage, snapshot
from hpc.data.hub_fetch import content_digest
from hpc.data.hub_names import HubCache, Repo, digest_of_blob
from hpc.data.prefetch import Prefetched
from tests.hub.conftest import CONFIG, WEIGHTS

TINY = Repo("model", "org/tiny")
FILES = {"config.json": CONFIG, "model.safetensors": WEIGHTS}
STEPS = ("rename", "link", "symlink", "unlink", "fsync", "mkdir")
DONE = 17


def in_child(work: Callable[[], Any], die_at: int = 0, steps: tuple[str, ...] = STEPS) -> int:
    """Run `work` in a process of its own that is killed before its n-th step; its exit code (−9: it was)."""
    pid = os.fork()
    if pid == 0:
        count = itertools.count(1)

        def deadly(real: Callable[..., Any]) -> Callable[..., Any]:
            def step(*args: Any, **kwargs: Any) -> Any:
                if next(count) == die_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args, **kwargs)

            return step

        try:
            for name in steps:
                setattr(os, name, deadly(getattr(os, name)))
            work()
            os._exit(DONE)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def nothing_half_is_visible(cache: HubCache, commit: str) -> None:
    """Every file that has its name has its bytes; a snapshot's files are there and whole."""
    blobs = cache.blobs(TINY)
    for name in os.listdir(blobs) if blobs.exists() else []:
        if digest := digest_of_blob(name):
            assert content_digest(blobs / name, digest) == digest
    files = snapshot(cache, TINY, commit) if cache.snapshot(TINY, commit).exists() else {}
    assert [damage(f) for f in files.values()] == [""] * len(files)
    ref = cache.ref(TINY, "main")
    if ref.exists():
        assert ref.read_text() == commit
        assert sorted(files) == sorted(FILES)


@pytest.mark.parametrize("offset", [1, 2, 3])
def test_kill_9_at_every_third_step_of_a_prefetch(
    hub: FakeHub, cache: HubCache, get: Callable[..., Prefetched], offset: int
) -> None:
    import httpx2  # noqa: F401 - loaded once, for all the children
    from huggingface_hub import HfApi, hf_hub_url  # noqa: F401
    from huggingface_hub.utils import build_hf_headers, get_session  # noqa: F401

    commit = hub.repo("org/tiny").commit(FILES)
    for step in itertools.count(offset, 3):
        code = in_child(get, step)
        if code == DONE:
            break
        assert code == -signal.SIGKILL
        nothing_half_is_visible(cache, commit)
        if step % 2:  # half of them begin anew, half go on from what was left
            assert in_child(get) == DONE
            assert len(snapshot(cache, TINY, commit)) == len(FILES)
            assert [n for n in os.listdir(cache.claims) if not n.endswith(".tmp")] == []
            assert [n for n in os.listdir(cache.blobs(TINY)) if n.endswith(".part")] == []
            for path in [*cache.hub.iterdir(), *cache.assets.iterdir()]:
                shutil.rmtree(path)
    assert step > 20
    assert get().commit == commit
