"""Saves that go on behind the training, with ranks that are threads: agreed on without a collective, published once, failing aloud."""

from __future__ import annotations

import errno
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace as Plain
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import free_port
from tuneplane.training import checkpoint as disk
from tuneplane.training import going
from tuneplane.training.peers import PeerLost, Peers
from tuneplane.training.randomness import random_state
from tuneplane.training.refusals import Refused
from tuneplane.training.shards import Part
from tuneplane.training.writing import Taken, Writing

MANIFEST = {
    "step": 8,
    "attempt": 1,
    "world_size": 2,
    "zero_stage": 2,
    "method": "sft",
    "settings": {},
    "fingerprint": {},
    "state": {},
}


class Threads(Peers):
    """A rank that has met no process group: what it says goes through the store."""

    def __init__(self, rank: int, store: Any) -> None:
        self.place: Any = Plain(rank=rank, world_size=2, attempt=1, local_world_size=2)
        self.policies: Any = Plain(peer_timeout_s=5)
        self._store = store


@pytest.fixture
def peers() -> list[Peers]:
    port = free_port()
    return [
        Threads(rank, dist.TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False)) for rank in (0, 1)
    ]


class Odd(Part):
    """A part whose write does something first."""

    first: Callable[[], None] = staticmethod(lambda: None)
    pieces = 0

    def write(self, moved: Callable[[], None] = lambda: None) -> Any:
        type(self).first()
        for _ in range(type(self).pieces):
            time.sleep(0.3)
            moved()
        return super().write(moved)


def begin(
    root: Path,
    peers: list[Peers],
    bound_s: float = 20.0,
    hurried: bool = False,
    pieces: int = 0,
    **first: Callable[[], None],
) -> list[Writing]:
    """Both ranks' halves of the save of step 8; `rank1=` is what rank 1 does before it writes."""
    temp = disk.temp_path(root, 8, 1)
    temp.mkdir(parents=True)
    out = []
    for rank, peer in enumerate(peers):
        kind = type(
            "Rank", (Odd,), {"first": staticmethod(first.get(f"rank{rank}", lambda: None)), "pieces": rank * pieces}
        )
        state = {"module": {"w": torch.full((4,), float(rank))}, "optimizer": None}
        part = kind(temp, [(str(temp / "deepspeed" / f"rank{rank}.pt"), state)], True)
        taken = Taken(8, part, random_state(torch.device("cpu")), MANIFEST, 2, bound_s, "every save_steps", hurried)
        out.append(Writing(root, peer, taken, time.monotonic()))
    return out


def ended(writings: list[Writing]) -> list[Any]:
    out: list[Any] = []
    for writing in writings:
        writing.join()
        try:
            out.append(writing.result())
        except (Refused, PeerLost) as exc:
            out.append(exc)
    return out


def test_p05_an_attempt_that_was_taken_for_dead_publishes_nothing(tmp_path: Path, peers: list[Peers]) -> None:
    """Slurm gave the run to attempt 2 while the ranks of attempt 1 lived on: two of them must not write one folder."""
    (tmp_path / "attempts" / "2").mkdir(parents=True)
    (tmp_path / "attempts" / "2" / "claim").write_text("41 1 nonce\n")
    first, other = ended(begin(tmp_path / "checkpoints", peers))
    assert isinstance(first, Refused)
    assert [(reason.code, reason.message) for reason in first.reasons] == [
        ("E-TRAIN-048", "attempt 2 of the run has begun")
    ]
    assert isinstance(other, PeerLost)
    assert disk.steps(tmp_path / "checkpoints") == []


def test_a_save_is_published_once_all_have_written_and_everyone_learns_of_it(
    tmp_path: Path, peers: list[Peers]
) -> None:
    gate = threading.Event()
    writings = begin(tmp_path, peers, rank1=gate.wait)
    time.sleep(0.3)
    assert disk.steps(tmp_path) == []
    assert not any(w.over for w in writings)
    gate.set()
    saved = ended(writings)
    found = disk.read(tmp_path / "step-000000008")
    disk.verify(found)
    assert sorted(f.path for f in found.files) == [
        "deepspeed/rank0.pt", "deepspeed/rank1.pt", "rank-00000.json", "rank-00001.json",
    ]  # fmt: skip
    assert {s.bytes for s in saved} == {sum(f.size for f in found.files)}
    assert set(found.manifest["continuity"]) == {"parameters", "optimiser", "random"}
    assert json.loads((tmp_path / "latest.json").read_text())["step"] == 8


@pytest.mark.parametrize(("room", "left"), [(1 << 30, [8, 6, 4, 2]), (100, [8, 6])], ids=["room", "full"])
def test_what_evaluations_wait_for_stays_as_long_as_the_disk_has_room(
    room: int, left: list[int], tmp_path: Path, peers: list[Peers], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, beside = tmp_path / "sums" / "run-0001", tmp_path / "sums.checkpoints" / "run-0002"
    said = {"action": "checkpoints", "run_id": "run-0002", "exp": "sums.checkpoints"}
    launch = {"follows": {"run_id": "run-0001"}, "late": {"candidate": {"steps": [2, 4]}}}
    for path, value in ((run / "followups/run-0002.json", said), (beside / "work/.tuneplane/launch.json", launch)):
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(value))
    for step in (2, 4, 6):
        (run / "checkpoints" / disk.name_of(step)).mkdir(parents=True)
    monkeypatch.setattr(disk, "room", lambda root: room)
    ended(begin(run / "checkpoints", peers))
    assert disk.steps(run / "checkpoints") == left


def test_p32_a_rank_that_cannot_write_ends_the_save_for_all_and_nothing_is_published(
    tmp_path: Path, peers: list[Peers]
) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    first, second = ended(begin(tmp_path, peers, rank1=full))
    assert isinstance(first, PeerLost)
    assert "step 8 was not written, the one before it stands: rank 1: OSError: [Errno 28] No space left" in str(first)
    assert isinstance(second, Refused)
    assert second.reasons[0].code == "E-TRAIN-045"
    assert disk.steps(tmp_path) == []
    assert not (tmp_path / "latest.json").exists()


def test_p33_a_rank_that_hangs_in_its_write_is_late_and_the_others_do_not_wait_for_ever(
    tmp_path: Path, peers: list[Peers]
) -> None:
    gate = threading.Event()
    first, second = begin(tmp_path, peers, bound_s=0.5, rank1=gate.wait)
    first.join()
    with pytest.raises(PeerLost, match=r"'save/8' was not heard of from rank 1 \(node 0\)"):
        first.result()
    for _ in range(100):
        if second.late:
            break
        time.sleep(0.05)
    assert second.late
    assert disk.steps(tmp_path) == []
    gate.set()
    second.join()


@pytest.mark.parametrize(("hurried", "saved"), [(False, [8]), (True, [])])
def test_a_write_that_comes_further_is_waited_for_unless_a_warning_hurries(
    hurried: bool, saved: list[int], tmp_path: Path, peers: list[Peers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(going, "_SIGN_S", 0.0)
    heard: list[int] = []
    writings = begin(tmp_path, peers, bound_s=1.2, hurried=hurried, pieces=6)
    for writing in writings:
        writing.join(lambda: heard.append(1))
    assert disk.steps(tmp_path) == saved
    assert bool(heard) is not hurried
    assert all(isinstance(end, PeerLost) is hurried for end in ended(writings))


def test_words_that_were_read_by_all_do_not_fill_the_store(tmp_path: Path, peers: list[Peers]) -> None:
    ended(begin(tmp_path, peers))
    store: Any = peers[0]._store
    assert not store.check(["post/save/8/0"])
    assert not store.check(["post/save/8/1"])
