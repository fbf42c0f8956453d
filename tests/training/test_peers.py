"""Doing a thing once for all ranks, and telling a lost peer from a mistake. Ranks are threads here; real ones are in the train tests."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tuneplane.training import going
from tuneplane.training.peers import PeerLost, Peers, bound_groups, nccl_environment, peer_loss
from tuneplane.training.place import Launch, Place
from tuneplane.training.program import Job
from tuneplane.training.refusals import Refused, refuse
from tuneplane.training.warning import Warned

from .test_place import ENV, GOOD


def rank(number: int, store: Any, peer_timeout_s: float = 5.0) -> Peers:
    place = Place.from_env({**ENV, "RANK": str(number), "LOCAL_RANK": str(number % 2), "NODE_RANK": str(number // 2)})
    peers = object.__new__(Peers)
    peers.place = place
    peers.policies = Launch.parse({**GOOD, "policies": {"peer_timeout_s": peer_timeout_s}}, place).policies
    peers._store, peers._names = store, {}
    return peers


def all_ranks(act: Callable[[Peers], Any], **kwargs: float) -> list[Any]:
    """What `act` returned or raised on each of four ranks that run at once."""
    store, out = dist.HashStore(), list[Any]([None] * 4)

    def run(number: int) -> None:
        try:
            out[number] = act(rank(number, store, **kwargs))
        except BaseException as exc:
            out[number] = exc

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return out


def test_p65_one_rank_works_and_all_get_its_answer() -> None:
    done: list[int] = []

    def act(peers: Peers) -> list[Any]:
        def work() -> dict[str, int]:
            time.sleep(0.05)
            done.append(peers.place.rank)
            return {"by": peers.place.rank}

        return [peers.once("tokenise", work, 20), peers.once("tokenise", work, 20)]

    answers = all_ranks(act)
    assert len(done) == 2, "once for each turn, not once a rank"
    assert answers == [[{"by": done[0]}, {"by": done[1]}]] * 4


def test_a_named_rank_does_the_work() -> None:
    assert all_ranks(lambda p: p.once("export", lambda: p.place.rank, 20, by=2)) == [2] * 4


def test_the_worker_s_refusal_is_everybody_s() -> None:
    def act(peers: Peers) -> Any:
        def work() -> Any:
            raise refuse("E-TRAIN-025", "no row is left", field="rows.jsonl")

        return peers.once("tokenise", work, 20)

    ends = all_ranks(act)
    assert [type(e) for e in ends] == [Refused] * 4
    assert {str(e) for e in ends} == {"E-TRAIN-025 rows.jsonl: no row is left"}


def test_a_warning_during_the_work_ends_it_everywhere() -> None:
    def act(peers: Peers) -> Any:
        def work() -> Any:
            raise Warned("SIGUSR2")

        return peers.once("tokenise", work, 20)

    assert [type(e) for e in all_ranks(act)] == [Warned] * 4


def test_a_worker_that_fails_is_a_lost_peer_to_the_others() -> None:
    def act(peers: Peers) -> Any:
        def work() -> Any:
            raise ZeroDivisionError("a bug")

        return peers.once("tokenise", work, 20, by=0)

    ends = all_ranks(act)
    assert [type(e) for e in ends] == [ZeroDivisionError, PeerLost, PeerLost, PeerLost]
    assert str(ends[1]) == "the rank that did 'tokenise' failed: ZeroDivisionError: a bug"


def test_a_worker_that_falls_silent_is_not_waited_for() -> None:
    def act(peers: Peers) -> Any:
        return "died" if peers.place.rank == 0 else peers.once("tokenise", lambda: None, 20, by=0)

    ends = all_ranks(act, peer_timeout_s=0.3)
    assert ends[0] == "died"
    assert all(isinstance(e, PeerLost) and "has been silent for" in str(e) for e in ends[1:])


def test_a_worker_that_comes_no_further_is_not_waited_for_although_it_beats() -> None:
    def act(peers: Peers) -> Any:
        return peers.once("tokenise", lambda: time.sleep(2.5), 1.5, by=0)

    ends = all_ranks(act)
    assert ends[0] is None
    assert {str(e) for e in ends[1:]} == {"'tokenise' was not done by its rank in 2 s without a sign"}


@pytest.mark.parametrize("way", ["it says so", "what it writes grows"])
def test_a_worker_that_comes_further_may_take_as_long_as_it_needs(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(going, "LOOK_S", 0.0)
    written, heard = [0], list[int]()

    def act(peers: Peers) -> Any:
        peers.on_move = lambda: heard.append(peers.place.rank)

        def work() -> str:
            for _ in range(7):
                time.sleep(0.4)
                if way == "it says so":
                    peers.moves()
                written[0] += 1
            return "done"

        seen = None if way == "it says so" else lambda: written[0]
        return peers.once("tokenise", work, 1.6, by=0, seen=seen)

    assert all_ranks(act) == ["done"] * 4
    assert set(heard) == {0, 1, 2, 3}, "the watchdogs of all ranks hear of it"


def test_ranks_that_do_the_same_wait_for_the_slowest_as_long_as_it_comes_further() -> None:
    def act(peers: Peers) -> Any:
        def work() -> int:
            for _ in range(6 if peers.place.rank == 2 else 0):
                time.sleep(0.4)
                peers.moves()
            return peers.place.rank

        return [peers.together("read", work, 1.6), peers.together("read", lambda: "again", 1.6)]

    assert all_ranks(act) == [[[0, 1, 2, 3], ["again"] * 4]] * 4


def test_rank_0_stays_until_all_have_heard_what_all_said() -> None:
    """It keeps the store: the others would take what all agreed on, a refusal say, for a lost peer."""
    order: list[int] = []

    def act(peers: Peers) -> None:
        if peers.place.rank == 3:
            peers.posted = late(peers.posted)  # type: ignore[method-assign]
        peers.together("read", lambda: "a fault", 20)
        order.append(peers.place.rank)

    def late(posted: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        def after(*args: Any, **kwargs: Any) -> list[Any]:
            time.sleep(0.5)
            found = posted(*args, **kwargs)
            order.append(-1)
            return found

        return after

    all_ranks(act)
    assert order.index(-1) < order.index(0)


def test_a_failing_rank_leaves_a_word_for_the_others_and_the_first_one_counts() -> None:
    store = dist.HashStore()
    assert rank(1, store).heard() == ""
    rank(3, store).tell("refused: E-TRAIN-045 full disk")
    rank(2, store).tell("failed: an echo")
    assert rank(1, store).heard() == "rank 3 refused: E-TRAIN-045 full disk"


def test_a_word_is_not_waited_for_where_the_store_is_gone() -> None:
    release = threading.Event()

    class Dead:
        def check(self, _: list[str]) -> bool:
            return release.wait(60)

        def get(self, _: str) -> bytes:
            return b"waited for"

    assert rank(1, Dead()).heard() == ""
    release.set()


@pytest.mark.parametrize(
    "text",
    [
        "[/x/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:1: Connection reset by peer",
        "[/x/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 4000ms for recv operation to complete",
        "[../gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:4711",
        "writev [10.0.0.1]:4711: Broken pipe",
    ],
)
def test_the_network_s_words_for_a_lost_peer_are_known(text: str) -> None:
    wrapped = ValueError("wrapped by a library")
    wrapped.__cause__ = RuntimeError(text)
    assert peer_loss(wrapped) in text.lower()
    assert peer_loss(wrapped)


@pytest.mark.parametrize(
    "exc",
    [RuntimeError("mat1 and mat2 shapes cannot be multiplied"), OSError(28, "No space left"), KeyError("x"), None],
)
def test_a_mistake_is_no_lost_peer(exc: BaseException | None) -> None:
    assert peer_loss(exc) == ""


def test_a_store_whose_server_is_gone_is_a_lost_peer() -> None:
    with pytest.raises(dist.DistError) as caught:
        dist.TCPStore("127.0.0.1", 1, is_master=False, timeout=timedelta(seconds=0.2), wait_for_workers=False)
    assert peer_loss(caught.value)


def test_a_late_collective_is_left_to_our_watchdog_and_what_a_user_set_stays() -> None:
    policies = rank(0, None).policies
    assert nccl_environment(policies, {}) == {
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
        "TORCH_NCCL_ENABLE_MONITORING": "1",
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "5460",  # longer than anything that our watchdog lets pass
    }
    own = {"NCCL_ASYNC_ERROR_HANDLING": "3", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "9"}
    assert nccl_environment(policies, own) == {"TORCH_NCCL_ENABLE_MONITORING": "1"}


@pytest.mark.parametrize(("device", "set_before"), [("cuda", "0"), ("cpu", None)])
def test_that_environment_is_there_before_a_group_is_made(
    device: str, set_before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str | None] = []
    monkeypatch.setattr("os.environ", {})
    monkeypatch.setattr("tuneplane.training.model.quiet_libraries", lambda accelerator: None)
    monkeypatch.setattr("tuneplane.training.model.choose_device", lambda place, gpus: SimpleNamespace(type=device))

    def meet(place: Any, policies: Any, device: Any) -> Any:
        seen.append(os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING"))
        return SimpleNamespace()

    monkeypatch.setattr("tuneplane.training.peers.meet", meet)
    place = rank(0, None).place
    job = Job(place, Launch.parse(GOOD, place))
    job.connect()
    job.watchdog.stop()
    assert seen == [set_before]
    assert job.peers.on_move == job.watchdog.again


def test_a_group_that_a_library_makes_is_bounded_like_the_others() -> None:
    """One rank, Gloo: the group that is made afterwards has torch's own 30 minutes until it is bounded."""
    from torch.distributed import distributed_c10d as c10d

    def bound(group: Any) -> timedelta:
        return group._get_backend(torch.device("cpu")).options._timeout

    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1, timeout=timedelta(seconds=7))
    try:
        bound_groups(11)
        assert bound(dist.group.WORLD) == timedelta(seconds=11)
        made = dist.new_group(backend="gloo")
        bound_groups()
        assert [bound(group) for group in c10d._world.pg_map] == [timedelta(seconds=11)] * 2
        assert bound(made) == timedelta(seconds=11)
    finally:
        dist.destroy_process_group()
