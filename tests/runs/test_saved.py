"""Checkpoints under audit: what was saved is what is there, the last one of an attempt by its closing event, and a pruned one accuses nobody."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from builder import RunMaker
from tuneplane.record.digest import FileEntry, digest_bytes
from tuneplane.training import checkpoint as disk

from hpc.runs.audit import audit

Make = Callable[..., RunMaker]


def save(maker: RunMaker, step: int, data: bytes = b"state") -> Path:
    root = maker.run.checkpoints
    temp = disk.temp_path(root, step, 0)
    (temp / "deepspeed").mkdir(parents=True)
    (temp / "deepspeed/model.bin").write_bytes(data)
    manifest = {
        "step": step, "attempt": 0, "world_size": 2, "zero_stage": 2, "method": "sft", "settings": {}, "fingerprint": {}, "state": {},
    }  # fmt: skip
    files = [FileEntry("deepspeed/model.bin", False, len(data), digest_bytes(data))]
    return disk.publish(root, temp, manifest, files, 0).path


def trained(make: Make) -> tuple[RunMaker, Path, Path]:
    """A preempted attempt that saved twice; the second is what its closing event names."""
    maker = make().package().admit().submit().start()
    first, last = save(maker, 20), save(maker, 40)
    maker.nodes(0, 85, 85).end(0, "preempted", requeue=True, step=40)
    return maker.start(1).nodes(1, 0, 0).end(1), first, last


def test_checkpoints_that_are_what_was_saved_are_verified_and_their_bytes_counted(make_run: Make) -> None:
    maker, _, _ = trained(make_run)
    found = audit(maker.run)
    assert (found.verdict, found.findings) == ("verified", ())
    assert audit(maker.run, deep=False).listed == found.listed


@pytest.mark.parametrize("step", [20, 40])
@pytest.mark.parametrize("damage", ["flipped", "cut", "gone", "manifest"])
def test_a_changed_checkpoint_is_found_and_named(make_run: Make, step: int, damage: str) -> None:
    maker, first, last = trained(make_run)
    folder = first if step == 20 else last
    path = folder / ("manifest.json" if damage == "manifest" else "deepspeed/model.bin")
    data = {"flipped": b"stale", "cut": b"sta", "gone": b"", "manifest": b"{"}[damage]
    path.unlink()
    if damage != "gone":
        path.write_bytes(data)
    where = f"checkpoints/{folder.name}/{path.relative_to(folder)}"
    found = audit(maker.run)
    assert (found.verdict, [f.path for f in found.findings][:1]) == ("tampered", [where])
    assert audit(maker.run, deep=False).verdict == ("verified" if damage == "flipped" else "tampered")


def test_other_weights_with_a_manifest_that_fits_are_found_where_an_attempt_ended(make_run: Make) -> None:
    """The last checkpoint of an attempt is anchored in the chain; another one is its owner's word until the attempt after it ends."""
    maker, _, last = trained(make_run)
    shutil.rmtree(last)
    save(maker, 40, b"other")
    found = audit(maker.run)
    assert [(f.level, f.path) for f in found.findings] == [("tampered", f"checkpoints/{last.name}/manifest.json")]


def test_a_pruned_checkpoint_accuses_nobody(make_run: Make) -> None:
    maker, first, last = trained(make_run)
    shutil.rmtree(first)
    shutil.rmtree(last)
    (maker.run.checkpoints / ".old-step-000000060").mkdir()
    (maker.run.checkpoints / "notes").mkdir()
    assert audit(maker.run).verdict == "verified"
