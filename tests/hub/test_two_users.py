"""Two real users and one cache: one download, both can use it, and neither can change what the other fetched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakehub import FakeHub
from tuneplane.contract.layout import StorageRoot

from hpc.data.assets import assets, verify
from hpc.data.hub_names import HubCache, Repo
from hpc.site.layout import init_root
from hpc.site.users import User, find_group, find_user
from tests.accounts import accounts
from tests.hub.conftest import MODEL

pytestmark = [pytest.mark.two_users, pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become two users")]
NAMES, GROUP = ("tphub_a", "tphub_b"), "tphub_users"
TINY = Repo("model", "org/tiny")
CODE = """
import json, sys, time
from pathlib import Path
from tuneplane.contract.layout import StorageRoot
from hpc.data.hub_client import HuggingFace
from hpc.data.hub_names import HubCache, Repo
from hpc.data.prefetch import Clockwork, Watch, prefetch
from hpc.errors import Refusal
said = []
try:
    done = prefetch(HubCache(StorageRoot(Path(sys.argv[1]))), HuggingFace(sys.argv[2]), Repo("model", "org/tiny"), sys.argv[4], user=sys.argv[3],
                    time=Clockwork(time.monotonic, time.sleep, "2026-01-02T03:04:05Z"), watch=Watch(said.append))
    print(json.dumps({"fetched": done.fetched, "adopted": done.adopted, "said": said}))
except Refusal as fault:
    print(json.dumps({"code": fault.code, "field": fault.field}))
"""


@pytest.fixture(scope="module")
def people() -> Iterator[tuple[User, User]]:
    with accounts(NAMES, group=GROUP):
        yield find_user(NAMES[0]), find_user(NAMES[1])


@pytest.fixture
def shared(scratch: Path, people: tuple[User, User]) -> StorageRoot:
    """A root of root's whose users' group are the two."""
    return init_root(scratch / "shared", name="lab", users_group=GROUP).root


def start(root: StorageRoot, hub: FakeHub, who: User, revision: str = "", umask: int = 0o077) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CODE, str(root.path), hub.endpoint, who.name, revision], user=who.uid, group=who.gid,
        extra_groups=[find_group(GROUP)], umask=umask, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"}, cwd="/",
    )  # fmt: skip


def end(process: subprocess.Popen[str]) -> dict[str, object]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    value: dict[str, object] = json.loads(out)
    return value


def as_user(who: User, script: str) -> int:
    return subprocess.run(
        ["bash", "-ceu", script], user=who.uid, group=who.gid, extra_groups=[find_group(GROUP)], check=False, capture_output=True
    ).returncode  # fmt: skip


def test_two_users_at_the_same_moment_make_one_download_that_both_can_read(
    shared: StorageRoot, hub: FakeHub, people: tuple[User, User]
) -> None:
    weights = os.urandom(1 << 20)
    hub.repo("org/tiny").commit(MODEL | {"model.safetensors": weights})
    hub.fail("/cdn/", pause_s=1.5)  # whoever comes first is held up, so that the other meets the claim
    both = [end(p) for p in [start(shared, hub, who) for who in people]]
    assert hub.sent("/cdn/") == len(weights)
    assert sorted((int(str(b["adopted"])), bool(b["said"])) for b in both) in (
        [(0, False), (4, True)],
        [(0, False), (4, False)],
    )
    cache = HubCache(shared)
    (asset,) = assets(cache)
    assert asset.users == NAMES
    assert next(iter(verify(cache, [asset])))[1] == []
    weights_file = cache.snapshot(TINY, asset.commit) / "model.safetensors"
    assert [as_user(who, f"cat {weights_file} > /dev/null") for who in people] == [0, 0]


def test_the_second_user_adds_a_commit_to_the_firsts_repository_and_moves_main(
    shared: StorageRoot, hub: FakeHub, people: tuple[User, User]
) -> None:
    old = hub.repo("org/tiny").commit(MODEL)
    end(start(shared, hub, people[0]))
    new = hub.repo("org/tiny").commit(MODEL | {"config.json": b'{"x": 1}'})
    assert end(start(shared, hub, people[1]))["fetched"] == 8
    cache = HubCache(shared)
    assert cache.ref(TINY, "main").read_text() == new
    assert [f for _, f in verify(cache, assets(cache))] == [[], []]
    assert sorted(p.name for p in (cache.repo(TINY) / "snapshots").iterdir()) == sorted([old, new])


def test_neither_can_change_or_remove_what_the_other_fetched(
    shared: StorageRoot, hub: FakeHub, people: tuple[User, User]
) -> None:
    commit = hub.repo("org/tiny").commit(MODEL)
    end(start(shared, hub, people[0], umask=0))
    cache = HubCache(shared)
    folder = cache.snapshot(TINY, commit)
    blob = os.path.realpath(folder / "config.json")
    for attack in (
        f"echo x > {blob}", f"chmod 666 {blob}", f"rm -f {blob}", f"mv {blob} {blob}.old", f"ln -sf /etc/passwd {folder}/config.json",
        f"rm -rf {folder}", f"mv {cache.repo(TINY)} {cache.hub}/gone", f"rm -f {cache.assets}/{TINY.folder}/*",
    ):  # fmt: skip
        as_user(people[1], attack)
    assert next(iter(verify(cache, assets(cache))))[1] == []
    assert (folder / "config.json").read_bytes() == MODEL["config.json"]


def test_another_users_damaged_file_is_named_and_not_used(
    shared: StorageRoot, hub: FakeHub, people: tuple[User, User]
) -> None:
    commit = hub.repo("org/tiny").commit(MODEL)
    end(start(shared, hub, people[0]))
    blob = Path(os.path.realpath(HubCache(shared).snapshot(TINY, commit) / "config.json"))
    data = blob.read_bytes()
    blob.chmod(0o644)
    blob.write_bytes(data[:-1] + b"x")
    assert end(start(shared, hub, people[1])) == {"code": "E-HUB-022", "field": str(blob)}
    assert end(start(shared, hub, people[0]))["fetched"] == len(data)  # its owner's next prefetch mends it


def test_a_claim_of_a_killed_user_does_not_stop_the_other(
    shared: StorageRoot, hub: FakeHub, people: tuple[User, User]
) -> None:
    hub.repo("org/tiny").commit(MODEL)
    hub.fail("/cdn/", pause_s=30)
    first = start(shared, hub, people[0])
    while hub.faults[0].times:  # until it waits for the weights, with its claim
        assert first.poll() is None, first.communicate()
    first.kill()
    first.wait()
    assert end(start(shared, hub, people[1]))["said"] == []
    assert list(HubCache(shared).claims.iterdir()) == []


def test_whoever_is_not_in_the_group_is_told_so(shared: StorageRoot, hub: FakeHub) -> None:
    hub.repo("org/tiny").commit(MODEL)
    nobody = find_user("nobody")
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, str(shared.path), hub.endpoint, "nobody", ""], user=nobody.uid, group=nobody.gid, extra_groups=[],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"}, cwd="/",
    )  # fmt: skip
    assert end(process)["code"] == "E-HUB-024"
    assert hub.sent() == 0
