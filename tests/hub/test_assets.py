"""`tp assets`: what is in the cache, where, and whether it is whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fakehub import FakeHub

from hpc.data.assets import assets, find, verify
from hpc.data.hub_names import HubCache
from hpc.data.prefetch import Prefetched
from hpc.errors import Refusal
from tests.hub.conftest import MODEL

TP = Path(sys.executable).parent / "tp"
Get = Callable[..., Prefetched]


def tp(cache: HubCache, *words: str) -> subprocess.CompletedProcess[str]:
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(cache.root.path),
        "TUNEPLANE_STORAGE_ROOT": str(cache.root.path),
        "LC_ALL": "C.UTF-8",
    }
    return subprocess.run([TP, *words], env=env, text=True, capture_output=True, check=False)


def test_every_commit_is_listed_with_whoever_fetched_it(hub: FakeHub, get: Get, cache: HubCache) -> None:
    old = hub.repo("org/tiny").commit(MODEL)
    get(user="ann"), get(user="ben", revision=old)
    new = hub.repo("org/tiny").commit({"config.json": b"{}", "model.safetensors": b"x"})
    get(user="ben")
    found = {a.commit: (a.users, a.requested, len(a.files)) for a in assets(cache)}
    assert found == {
        old: (("ann", "ben"), (old, "main") if old < "main" else ("main", old), 4),
        new: (("ben",), ("main",), 2),
    }
    assert find(cache, f"org/tiny@{old}").commit == old
    assert find(cache, "hf:org/tiny@main").commit == new


def test_a_model_and_a_data_set_of_one_name_ask_which(hub: FakeHub, get: Get, cache: HubCache) -> None:
    hub.repo("org/tiny").commit(MODEL)
    hub.repo("org/tiny", "dataset").commit({"x.jsonl": b"{}\n"})
    get(), get(kind="dataset")
    with pytest.raises(Refusal, match="E-HUB-007"):
        find(cache, "org/tiny")
    assert find(cache, "org/tiny", "dataset").repo.type == "dataset"


def test_e1_one_flipped_byte_is_exit_1_and_names_the_file(hub: FakeHub, get: Get, cache: HubCache) -> None:
    hub.repo("org/tiny").commit(MODEL)
    folder = get().folder
    assert tp(cache, "assets", "verify").returncode == 0
    for name in ("model.safetensors", "config.json"):
        blob = Path(os.path.realpath(folder / name))
        whole = blob.read_bytes()
        blob.chmod(0o644)
        blob.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
        done = tp(cache, "assets", "verify", "org/tiny", "--json")
        (finding,) = json.loads(done.stdout)["assets"][0]["findings"]
        assert (done.returncode, finding["path"], finding["kind"]) == (1, name, "changed")
        assert name in tp(cache, "assets", "verify").stderr
        blob.write_bytes(whole)
    assert tp(cache, "assets", "verify").returncode == 0


def test_a_file_that_is_gone_and_a_link_that_was_replaced_are_found(hub: FakeHub, get: Get, cache: HubCache) -> None:
    hub.repo("org/tiny").commit(MODEL)
    folder = get().folder
    (folder / "tokenizer.json").unlink()
    (_, (finding,)) = next(iter(verify(cache, assets(cache))))
    assert (finding.path, finding.kind) == ("tokenizer.json", "missing")
    (folder / "tokenizer.json").write_text("mine")
    (_, (finding,)) = next(iter(verify(cache, assets(cache))))
    assert finding.kind == "layout"


def test_e2_a_path_is_printed_or_the_command_that_fetches_it(hub: FakeHub, get: Get, cache: HubCache) -> None:
    missing = tp(cache, "assets", "path", "org/tiny")
    assert missing.returncode == 1
    assert "run: tp model prefetch --repo hf:org/tiny" in missing.stderr
    commit = hub.repo("org/tiny").commit(MODEL)
    folder = get().folder
    assert tp(cache, "assets", "path", "org/tiny").stdout == f"{folder}\n"
    assert json.loads(tp(cache, "assets", "ls", "--json").stdout)["assets"][0]["commit"] == commit
    assert "\r" not in tp(cache, "assets", "ls").stderr
