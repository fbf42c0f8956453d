"""The corruption matrix, without training: what counts as a checkpoint, what is passed over, and what is said."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tuneplane.record.digest import FileEntry, digest_bytes
from tuneplane.record.files import write_new
from tuneplane.training import checkpoint as disk

FACTS: dict[str, Any] = {
    "world_size": 2,
    "zero_stage": 2,
    "method": "sft",
    "settings": {},
    "fingerprint": {},
    "state": {"samples": 0},
}


def save(root: Path, step: int, attempt: int = 1) -> disk.Checkpoint:
    """A checkpoint with three small files."""
    temp = disk.temp_path(root, step, attempt)
    (temp / "deepspeed").mkdir(parents=True)
    files = []
    for name in ("deepspeed/model.pt", "deepspeed/optim.pt", "rank-00000.json"):
        data = f"{name} {step} ".encode() * 50
        write_new(temp / name, data)
        files.append(FileEntry(name, False, len(data), digest_bytes(data)))
    return disk.publish(root, temp, {**FACTS, "step": step, "attempt": attempt}, files, attempt)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Checkpoints of steps 20 and 40; 40 is the newest."""
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    save(folder, 20)
    save(folder, 40)
    return folder


def taken(root: Path) -> tuple[int | None, list[str]]:
    choice = disk.choose(root)
    return (choice.checkpoint.step if choice.checkpoint else None), [f"{n}: {w}" for n, w in choice.passed_over]


def flip(path: Path, at: int = 10) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def test_the_newest_whole_checkpoint_is_taken(root: Path) -> None:
    assert taken(root) == (40, [])
    pointer = json.loads((root / "latest.json").read_text())
    assert (pointer["step"], pointer["path"], pointer["attempt"]) == (40, "step-000000040", 1)
    manifest = (root / "step-000000040" / "manifest.json").read_bytes()
    assert pointer["manifest_sha256"] == digest_bytes(manifest)


def test_no_checkpoints_is_a_fresh_start_and_not_a_loss(tmp_path: Path) -> None:
    choice = disk.choose(tmp_path / "checkpoints")
    assert (choice.checkpoint, choice.passed_over, choice.lost) == (None, (), False)


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing file": (lambda c: (c / "deepspeed/optim.pt").unlink(), "deepspeed/optim.pt is missing"),
    "missing rank state": (lambda c: (c / "rank-00000.json").unlink(), "rank-00000.json is missing"),
    "flipped byte": (lambda c: flip(c / "deepspeed/model.pt"), "deepspeed/model.pt is not what was written"),
    "cut file": (lambda c: os.truncate(c / "deepspeed/model.pt", 9), "deepspeed/model.pt has 9 bytes instead of"),
    "grown file": (lambda c: (c / "rank-00000.json").open("ab").write(b"x") and None, "rank-00000.json has"),
    "no manifest": (lambda c: (c / "manifest.json").unlink(), "no manifest.json: its save never ended"),
    "cut manifest": (lambda c: os.truncate(c / "manifest.json", 200), "manifest.json is cut or altered"),
    "empty manifest": (lambda c: os.truncate(c / "manifest.json", 0), "manifest.json is cut or altered"),
    "another manifest": (
        lambda c: (c / "manifest.json").write_bytes((c.parent / "step-000000020/manifest.json").read_bytes()) and None,
        "manifest.json is that of step 20",
    ),
    "edited manifest": (
        lambda c: edit(c / "manifest.json", lambda v: v["state"].update(samples=7)),
        "not the one that latest.json was written for",
    ),
    "manifest of another schema": (
        lambda c: edit(c / "manifest.json", lambda v: v.update(schema="x/v1")),
        "manifest.json is not one of this release",
    ),
    "manifest without files": (lambda c: edit(c / "manifest.json", lambda v: v.update(files=[])), "lists no files"),
    "manifest with a path outside": (
        lambda c: edit(c / "manifest.json", lambda v: v["files"][0].update(path="../x")),
        "lists a wrong file",
    ),
    "manifest without a world": (
        lambda c: edit(c / "manifest.json", lambda v: v.pop("world_size")),
        "lacks world_size",
    ),
    "file replaced by a link": (
        lambda c: link(c / "rank-00000.json"),
        "rank-00000.json has",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda d: d.replace(" ", "-"))
def test_p32_a_damaged_newest_checkpoint_is_passed_over_and_said(root: Path, damage: str) -> None:
    harm, reason = DAMAGES[damage]
    harm(root / "step-000000040")
    step, said = taken(root)
    assert step == 20
    assert len(said) == 1
    assert said[0].startswith("step-000000040: ")
    assert reason in said[0]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda d: d.replace(" ", "-"))
def test_p32_when_every_checkpoint_is_damaged_the_run_is_lost_and_not_begun_again(tmp_path: Path, damage: str) -> None:
    root = tmp_path / "checkpoints"
    root.mkdir()
    if damage == "another manifest":
        save(root, 20)
    save(root, 40)
    harm, _ = DAMAGES[damage]
    harm(root / "step-000000040")
    for other in root.glob("step-000000020/*.json"):
        other.unlink()
    choice = disk.choose(root)
    assert (choice.checkpoint, choice.lost) == (None, True)


@pytest.mark.parametrize("content", [None, b"", b"{", b'{"path": "step-000000040"', b"[]"])
def test_a_lost_or_cut_pointer_does_not_cost_a_whole_checkpoint(root: Path, content: bytes | None) -> None:
    (root / "latest.json").unlink()
    if content is not None:
        (root / "latest.json").write_bytes(content)
    assert taken(root)[0] == 40


def test_a_pointer_to_nothing_is_a_loss_and_said(tmp_path: Path) -> None:
    (tmp_path / "latest.json").write_text('{"path": "step-000000040", "step": 40}')
    choice = disk.choose(tmp_path)
    assert choice.lost
    assert choice.passed_over == (("latest.json", "it points to step-000000040, which is not there"),)


def test_a_checkpoint_newer_than_the_pointer_counts_when_it_is_whole(root: Path) -> None:
    pointer = (root / "latest.json").read_bytes()
    save(root, 60)
    (root / "latest.json").write_bytes(pointer)  # killed between rename and pointer
    assert taken(root) == (60, [])


def test_what_is_being_written_is_never_read_and_is_cleared_away(root: Path) -> None:
    temp = disk.temp_path(root, 60, 1)
    temp.mkdir()
    (temp / "manifest.json").write_bytes((root / "step-000000040" / "manifest.json").read_bytes())
    assert taken(root) == (40, [])
    assert disk.clear_leftovers(root) == [".new-step-000000060-1"]
    assert sorted(p.name for p in root.iterdir()) == ["latest.json", "step-000000020", "step-000000040"]


def test_a_save_of_a_step_whose_folder_is_damaged_takes_its_place(root: Path) -> None:
    flip(root / "step-000000040" / "rank-00000.json")
    save(root, 40, attempt=2)
    assert taken(root) == (40, [])
    assert json.loads((root / "latest.json").read_text())["attempt"] == 2
    assert sorted(p.name for p in root.iterdir()) == ["latest.json", "step-000000020", "step-000000040"]


def test_keep_n_removes_the_oldest_first(root: Path) -> None:
    newest = save(root, 60)
    assert disk.prune(root, 2, newest) == ["step-000000020"]
    assert disk.steps(root) == [60, 40]
    assert disk.prune(root, 1, newest) == ["step-000000040"]


def test_what_an_evaluation_still_reads_stays_beside_what_is_kept(root: Path) -> None:
    newest = save(root, 60)
    assert disk.prune(root, 1, newest, {20, 60}) == ["step-000000040"]
    assert disk.steps(root) == [60, 20]
    assert disk.prune(root, 1, newest, {60}) == ["step-000000020"]


@pytest.mark.parametrize(("keep", "harm"), [(1, flip), (2, lambda p: os.truncate(p, 3))])
def test_the_checkpoint_before_stays_until_the_new_one_verifies(
    root: Path, keep: int, harm: Callable[[Path], None]
) -> None:
    newest = save(root, 60)
    harm(root / "step-000000060" / "deepspeed" / "model.pt")
    with pytest.raises(disk.Damaged):
        disk.prune(root, keep, newest)
    assert disk.steps(root) == [60, 40, 20]
    assert taken(root)[0] == 40


def test_a_newer_damaged_folder_does_not_push_out_good_ones(root: Path) -> None:
    save(root, 60)
    flip(root / "step-000000060" / "deepspeed" / "model.pt")
    newest = save(root, 50, attempt=2)
    disk.prune(root, 2, newest)
    assert disk.steps(root) == [60, 50, 40]


def test_a_checkpoint_that_was_passed_over_is_no_safety(root: Path) -> None:
    """With two to keep the newest's digests are not read back, since the one before it is there: one that is known to be damaged is not."""
    save(root, 60)
    flip(root / "step-000000060" / "deepspeed" / "model.pt")
    assert taken(root)[0] == 40
    newest = save(root, 80, attempt=2)
    assert disk.prune(root, 2, newest, unsound={60}) == ["step-000000020"]
    assert disk.steps(root) == [80, 60, 40]
    newest = save(root, 100, attempt=2)
    assert disk.prune(root, 2, newest, unsound={60}) == ["step-000000060", "step-000000040"]
    assert disk.prune(root, 1, newest, {80}, {80}) == []


def test_several_ranks_share_the_digests_and_one_fault_counts_for_all(root: Path) -> None:
    newest = disk.read(root / "step-000000040")
    flip(root / "step-000000040" / "deepspeed" / "optim.pt")
    faults = []
    for share in range(3):
        try:
            disk.verify(newest, share=share, of=3)
        except disk.Damaged as exc:
            faults.append((share, str(exc)))
    assert len(faults) == 1
    # A rank whose own share is good takes the same decision as the one that found the fault.
    others = dict.fromkeys((40,), "another rank's fault")
    answers = iter([others[40], ""])

    def together(work: Callable[[], Any]) -> list[Any]:
        mine = work()
        return [mine] if isinstance(mine, list) else [mine, next(answers)]

    choice = disk.choose(root, share=0, of=3, together=together)
    assert choice.checkpoint is not None
    assert choice.checkpoint.step == 20


def test_every_flipped_byte_of_a_manifest_is_noticed(root: Path) -> None:
    path = root / "step-000000040" / "manifest.json"
    good = path.read_bytes()
    for at in range(0, len(good), 7):
        flip(path, at)
        assert taken(root)[0] == 20, f"byte {at}"
        path.write_bytes(good)


def test_files_and_folders_can_be_read_by_others(root: Path) -> None:
    assert {oct(p.stat().st_mode & 0o777) for p in root.rglob("*") if p.is_file()} == {"0o644"}
