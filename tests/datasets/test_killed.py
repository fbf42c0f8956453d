"""Kill -9 at every step of a push, a volume's push, a run's output and a removal; and a mount that takes no writes."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fakehub import FakeHub
from tuneplane.contract.layout import StorageRoot
from tuneplane.launch.output import publish_output

from hpc.cli.registry import _kinds
from hpc.data.hub_client import HuggingFace
from hpc.data.hub_names import HubCache, Repo
from hpc.data.kinds import DATASET, VOLUME
from hpc.data.output import make_place, plan_output
from hpc.data.prefetch import Clockwork, prefetch
from hpc.data.push import Pusher, push_dataset, push_volume
from hpc.data.remove import remove_version
from hpc.data.visibility import PUBLIC, Visibility
from hpc.data.volumes import create
from hpc.registry.audit import Options, audit
from hpc.registry.kinds import Kind
from hpc.registry.resolve import load, require_content
from hpc.registry.seal import seal
from hpc.registry.shelf import Ref, Shelf
from tests.datasets.conftest import NOW, codes, rows, write_rows
from tests.hub.test_killed import DONE, in_child

STEPS = ("open", "mkdir", "write", "fchmod", "fsync", "rename", "link", "unlink", "rmdir", "listdir")


def versions(by: Pusher, kind: Kind, name: str) -> list[str]:
    """The versions of a name; each is whole to the byte."""
    shelf = Shelf(by.root, kind, site=by.site)
    found = shelf.versions(by.user.name, name)
    for version in found:
        require_content(load(shelf, Ref(by.user.name, name, version), by.user.uid))
    return found


def bad(by: Pusher) -> list[tuple[str, str]]:
    """What an audit complains about; litter of dead writers is a note."""
    report = audit(by.root, _kinds(), site=by.site, user=by.user, options=Options(), core_version="0.4.0", now=NOW)
    return [(p.level, p.path) for p in report.problems if p.level != "note"]


def at_every_step(work: Callable[[int], Any], after: Callable[[int], None], least: int) -> None:
    """Run `work(n)` in a process that is killed before its n-th step, for every n, and look at what is left."""
    for step in itertools.count(1):
        code = in_child(lambda n=step: work(n), step, STEPS)
        after(step)
        if code == DONE:
            break
        assert code == -signal.SIGKILL
    assert step > least


def test_a_push_is_there_whole_or_not_at_all(by: Pusher, scratch: Path) -> None:
    write_rows(scratch / "d" / "train.jsonl", rows(3))
    write_rows(scratch / "d" / "deep" / "test.jsonl", rows(3, 9))

    def after(step: int) -> None:
        found = versions(by, DATASET, "sums")
        assert f"1.{step + 1}" not in found
        assert bad(by) == []

    at_every_step(lambda n: push_dataset(by, "sums", f"1.{n}", scratch / "d"), after, 30)
    assert push_dataset(by, "sums", "2", scratch / "d").files == 2


def test_a_volume_moves_on_whole_or_not_at_all(by: Pusher, scratch: Path) -> None:
    write_rows(scratch / "v" / "a.jsonl", rows(3))
    create(by, "ref", Visibility(PUBLIC))

    def after(step: int) -> None:
        numbers = versions(by, VOLUME, "ref")
        assert sorted(map(int, numbers)) == list(range(1, len(numbers) + 1))
        assert bad(by) == []

    at_every_step(lambda n: push_volume(by, "ref", scratch / "v"), after, 15)


def test_an_output_is_published_whole_or_not_at_all_and_can_be_published_later(
    by: Pusher, scratch: Path, root: StorageRoot
) -> None:
    write_rows(scratch / "made" / "train.jsonl", rows(4))
    output = plan_output(root, by.site, by.user.name, f"{by.user.name}/half@1", array=False)
    make_place(by, output)
    made_by = {"run_id": "run-00aa", "attempt": 0, "owner": by.user.name}

    def publish(number: int) -> None:
        again = output | {"version": str(number), "ref": f"{by.user.name}/half@{number}"}
        assert publish_output(root, again, scratch / "made", made_by, now=NOW, left_s=None)["state"] == "published"

    def after(step: int) -> None:
        versions(by, DATASET, "half")
        assert bad(by) == []
        publish(step)  # the same version by the next who tries

    at_every_step(publish, after, 15)


def test_a_removal_is_never_taken_for_a_deletion_by_hand(by: Pusher, scratch: Path) -> None:
    write_rows(scratch / "d" / "train.jsonl", rows(3))
    shelf = Shelf(by.root, DATASET, site=by.site)
    for number in range(1, 40):
        push_dataset(by, "sums", str(number), scratch / "d")
    assert seal(by.root, _kinds(), site=by.site, user=by.user, now=NOW).exit == 0

    def after(step: int) -> None:
        versions(by, DATASET, "sums")
        assert bad(by) == []

    at_every_step(lambda n: remove_version(shelf, Ref(by.user.name, "sums", str(n)), user=by.user, now=NOW), after, 8)


@pytest.fixture
def shut(root: StorageRoot) -> Iterator[Callable[[], None]]:
    """Call it, and the storage root takes no writes until the end of the test."""
    done = []

    def shut() -> None:
        subprocess.run(["mount", "--bind", root.path, root.path], check=True)
        done.append(root.path)
        subprocess.run(["mount", "-o", "remount,bind,ro", root.path], check=True)

    yield shut
    for path in done:
        subprocess.run(["umount", path], check=True)


@pytest.mark.two_users
def test_a_mount_that_takes_no_writes_is_said_and_nothing_changes(
    shut: Callable[[], None], by: Pusher, scratch: Path, root: StorageRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    write_rows(scratch / "d" / "train.jsonl", rows(4))
    push_dataset(by, "sums", "1", scratch / "d")
    output = plan_output(root, by.site, by.user.name, f"{by.user.name}/sums@2", array=False)
    hub = FakeHub()
    hub.repo("org/tiny").commit({"config.json": b"{}", "model.safetensors": b"x" * 50})
    clock = Clockwork(lambda: 0.0, lambda s: None, NOW)
    shut()
    try:
        assert codes(lambda: push_dataset(by, "sums", "2", scratch / "d")) == ["E-STORE-024"]
        assert codes(
            lambda: remove_version(
                Shelf(root, DATASET, site=by.site), Ref(by.user.name, "sums", "1"), user=by.user, now=NOW
            )
        ) == ["E-STORE-024"]
        assert codes(
            lambda: prefetch(
                HubCache(root), HuggingFace(hub.endpoint), Repo("model", "org/tiny"), user="ann", time=clock
            )
        ) == ["E-HUB-024"]
        done = publish_output(
            root, output, scratch / "d", {"run_id": "run-00aa", "owner": by.user.name}, now=NOW, left_s=None
        )
        assert (done["state"], "Read-only file system" in done["message"]) == ("failed", True)
    finally:
        hub.close()
    assert hub.sent() == 0
    assert versions(by, DATASET, "sums") == ["1"]
    assert os.listdir(Shelf(root, DATASET).package(by.user.name, "sums")) == ["1"]
