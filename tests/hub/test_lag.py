"""Two nodes that fill and clean one cache, of which one sees names up to 60 seconds late: it costs time, and nothing is lost or half visible."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from fakehub import FakeHub
from stalenames import StaleNames

from hpc.data import gc
from hpc.data.gc_marks import marks
from hpc.data.gc_survey import survey
from hpc.data.hub_cache import damage, snapshot
from hpc.data.hub_client import HuggingFace
from hpc.data.hub_manifest import manifests
from hpc.data.hub_names import HubCache, Repo
from hpc.data.hub_store import LAG_S
from hpc.data.prefetch import Clockwork, Prefetched, Watch, prefetch
from hpc.errors import Refusal
from tests.hub.conftest import CONFIG, NOW, WEIGHTS

TINY = Repo("model", "org/tiny")
FILES = {"config.json": CONFIG, "model.safetensors": WEIGHTS}
Get = Callable[..., Prefetched]


def fetch(lag: StaleNames, hub: FakeHub, cache: HubCache, said: list[str]) -> Prefetched:
    """ben's prefetch on this node, whose waiting lets time pass."""
    time, watch = Clockwork(lag.clock, lag.sleep, NOW), Watch(said.append)
    return prefetch(cache, HuggingFace(hub.endpoint), TINY, user="ben", time=time, watch=watch)


def whole(cache: HubCache, commit: str) -> list[str]:
    """The files of a commit, every byte of which is right."""
    found = snapshot(cache, TINY, commit)
    assert [damage(f) for f in found.values()] == [""] * len(found)
    return sorted(found)


def test_what_another_node_fetched_a_moment_ago_is_waited_for_and_not_fetched_twice(
    hub: FakeHub, cache: HubCache, get: Get, said: list[str]
) -> None:
    commit = hub.repo("org/tiny").commit(FILES)
    with StaleNames(cache.root.path) as lag:
        with lag.elsewhere():
            get(user="ann")
        assert fetch(lag, hub, cache, said).commit == commit
        assert lag.hidden > 0
        assert 60 <= lag.now < LAG_S
        assert "another node" in said[-1]
        assert hub.sent("/cdn/") == len(WEIGHTS)
        assert whole(cache, commit) == sorted(FILES)
        assert sorted(m.user for m in manifests(cache)) == ["ann", "ben"]
        assert os.listdir(cache.claims) == []


def test_new_files_in_folders_that_are_seen_are_fetched_again_and_stay_whole(
    hub: FakeHub, cache: HubCache, get: Get, said: list[str]
) -> None:
    """The folders are there, with a part of the files: what another node adds meanwhile costs a second download."""
    commit = hub.repo("org/tiny").commit(FILES)
    get(patterns=("*.json",))
    with StaleNames(cache.root.path) as lag:
        with lag.elsewhere():
            get(user="ann")
        fetch(lag, hub, cache, said)
        assert (lag.now, hub.sent("/cdn/")) == (0.0, 2 * len(WEIGHTS))
        assert whole(cache, commit) == sorted(FILES)
        lag.sleep(60)
        assert whole(cache, commit) == sorted(FILES)
        assert [n for n in os.listdir(cache.blobs(TINY)) if n.startswith(".")] == []


def test_a_new_commit_of_a_repository_joins_what_is_there(
    hub: FakeHub, cache: HubCache, get: Get, said: list[str]
) -> None:
    old = hub.repo("org/tiny").commit(FILES)
    get()
    new = hub.repo("org/tiny").commit(FILES | {"config.json": b"{}"})
    with StaleNames(cache.root.path) as lag:
        with lag.elsewhere():
            get(user="ann")
        fetch(lag, hub, cache, said)
        lag.sleep(60)
        assert [whole(cache, c) for c in (old, new)] == [sorted(FILES)] * 2
        assert cache.ref(TINY, "main").read_text() == new


def test_p69_a_file_that_another_node_removed_is_fetched_again(
    hub: FakeHub, cache: HubCache, get: Get, said: list[str]
) -> None:
    commit = hub.repo("org/tiny").commit(FILES)
    get()
    blob = os.path.realpath(cache.snapshot(TINY, commit) / "model.safetensors")
    with StaleNames(cache.root.path, gone="stale") as lag:
        with lag.elsewhere():
            os.unlink(blob)
        fetch(lag, hub, cache, said)
        lag.sleep(60)
        assert whole(cache, commit) == sorted(FILES)


def test_what_is_taken_up_while_another_node_cleans_is_put_back(
    hub: FakeHub, cache: HubCache, get: Get, said: list[str]
) -> None:
    """The cleaning node hides the old commit's file; this one still sees it, and links it into the new commit; a minute later both agree."""
    old = hub.repo("org/tiny").commit(FILES)
    get()
    new = hub.repo("org/tiny").commit(FILES | {"config.json": b"{}"})
    month = 40 * 86_400.0 + os.lstat(cache.snapshot(TINY, old)).st_mtime
    with StaleNames(cache.root.path) as lag:
        with lag.elsewhere():
            (item,) = [i for i in survey(cache.root, now_s=month).items if i.kind == "commit"]
            hidden = gc.hide(cache.root, item)
        fetch(lag, hub, cache, said)
        assert hub.sent("/cdn/") == len(WEIGHTS)  # the file that it still saw was taken
        lag.sleep(LAG_S)
        with lag.elsewhere():
            assert gc.finish(cache.root, hidden, marks(cache)) == len(CONFIG)
        assert whole(cache, new) == sorted(FILES)
        assert not cache.snapshot(TINY, old).exists()


def test_a_commit_that_a_run_names_by_the_second_look_is_put_back(hub: FakeHub, cache: HubCache, get: Get) -> None:
    commit = hub.repo("org/tiny").commit(FILES)
    get()
    month = 40 * 86_400.0 + os.lstat(cache.snapshot(TINY, commit)).st_mtime
    (item,) = survey(cache.root, now_s=month).items
    hidden = gc.hide(cache.root, item)
    assert not cache.snapshot(TINY, commit).exists()
    held = marks(cache)
    held.commits[commit] = "run ann/exp/run-00aa"
    with pytest.raises(Refusal) as caught:
        gc.finish(cache.root, hidden, held)
    assert caught.value.code == "E-GC-001"
    assert whole(cache, commit) == sorted(FILES)
