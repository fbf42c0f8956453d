"""The other ranks: meeting them, agreeing with them, doing a thing once for all, and noticing that one is gone.

Nothing here waits for ever: the meeting, each collective and each piece of work that others wait for has a bound.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from tuneplane.training.going import Going, Growth, beside
from tuneplane.training.place import Place, Policies
from tuneplane.training.refusals import Refused, refuse
from tuneplane.training.warning import Warned

_BEAT_S = 1.0
_ASK_S = 1.0
_READ_S = 10.0
_MARKS = (
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "broken pipe",
    "timed out waiting",
    "socket timeout",
    "socket closed",
    "operation timed out",
    "no route to host",
    "failed to recv",
    "failed to send",
    "nccl communicator was aborted",
    "gloo/transport",
    "application timeout caused pair closure",
)


class PeerLost(Exception):  # noqa: N818 - a state of the world, not a mistake
    """Another rank disappeared, fell silent, or never came."""


def peer_loss(exc: BaseException | None) -> str:
    """What the loss of a peer looked like, if that is what `exc`, or what it came from, says; else nothing."""
    import torch.distributed as dist

    while exc is not None:
        if isinstance(exc, PeerLost):
            return str(exc)
        text = str(exc).lower()
        if mark := next((m for m in _MARKS if m in text), ""):
            if isinstance(exc, RuntimeError):
                return mark
        elif isinstance(exc, dist.DistError):
            return text.splitlines()[0]
        exc = exc.__cause__ or exc.__context__
    return ""


class Peers:
    """All ranks of this attempt, met. `device` is this rank's torch device."""

    on_move: Callable[[], None] = staticmethod(lambda: None)
    """Called when this rank, or one that it waits for, has come further."""
    _going: Going | None = None

    def __init__(self, place: Place, policies: Policies, store: Any, device: Any) -> None:
        import torch.distributed as dist

        self.place, self.policies, self.device = place, policies, device
        self._store, self._dist = store, dist
        self._names: dict[str, int] = {}
        # Agreements travel over the CPU, so that they need no free GPU stream and are bounded even where NCCL hangs.
        timeout = timedelta(seconds=policies.start_timeout_s)
        self._control = dist.group.WORLD if device.type == "cpu" else dist.new_group(backend="gloo", timeout=timeout)
        self.set_timeouts(policies.start_timeout_s)

    @property
    def first(self) -> bool:
        return self.place.rank == 0

    def set_timeouts(self, seconds: float) -> None:
        """Bound every collective of every process group, DeepSpeed's clone of the world group among them."""
        bound_groups(seconds)

    def total(self, values: Sequence[float]) -> list[float]:
        """Sum over all ranks, in float64. A collective: every rank calls it at the same place."""
        import torch

        tensor = torch.tensor(list(values), dtype=torch.float64)
        self._dist.all_reduce(tensor, group=self._control)
        return [float(v) for v in tensor.tolist()]

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value (JSON), by rank. A collective."""
        out: list[Any] = [None] * self.place.world_size
        self._dist.all_gather_object(out, json.dumps(value), group=self._control)
        return [json.loads(v) for v in out]

    def barrier(self) -> None:
        self.total([0.0])

    def moves(self) -> None:
        """This rank has come further with its work: its own bound, and that of those who wait for it in `once` or `together`, starts anew."""
        if self._going is not None:
            self._going.sign()
        self.on_move()

    def once(
        self, name: str, work: Callable[[], Any], bound_s: float, by: int | None = None, seen: Callable[[], Any] | None = None
    ) -> Any:  # fmt: skip
        """Let rank `by`, or the first rank that arrives, do `work`; all ranks return its value (JSON).

        The worker's refusal or warning is raised on every rank. Raises PeerLost if the worker fails otherwise, is silent for longer than
        `peer_timeout_s` (it beats while it lives), or does not come further for `bound_s`: it does when it calls `moves`, and when what `seen` says
        (the size of what is written, say) is another than before.
        """
        key = self._turn("once", name)
        mine = self.place.rank == by if by is not None else self._store.add(f"{key}/claim", 1) == 1
        if not mine:
            return self._wait_for(key, name, bound_s)
        try:
            with self._working(key, bound_s, seen):
                answer: dict[str, Any] = {"value": work()}
        except Refused as exc:
            answer = {"refused": exc.as_json()}
            raise
        except Warned as exc:
            answer = {"warned": str(exc)}
            raise
        except BaseException as exc:
            answer = {"failed": f"{type(exc).__name__}: {exc}"}
            raise
        finally:
            self._store.set(f"{key}/done", json.dumps(answer))
            if "value" not in answer:
                self._has_read(key)
        return answer["value"]

    def together(self, name: str, work: Callable[[], Any], bound_s: float) -> list[Any]:
        """Every rank's value (JSON) of its own `work`, by rank. Raises PeerLost when no rank comes further for `bound_s`.

        A gather after the work would have one bound for all of it.
        """
        key = self._turn("together", name)
        with self._working(key, bound_s):
            self.post(key, work())
        going = self.going(key, bound_s, self.on_move)
        if self.first:
            self.post(f"{key}/all", self.posted(key, going))
        values = list(self.posted(f"{key}/all", going, ranks=[0])[0])
        self._has_read(key)  # what they say may be why all leave now
        return values

    def going(
        self, name: str, bound_s: float, heard: Callable[[], None] = lambda: None, *, fixed: bool = False
    ) -> Going:
        """The signs of a piece of work that ranks do at the same time."""
        return Going(self._store, f"{name}/moved", bound_s, heard, fixed=fixed)

    def _turn(self, kind: str, name: str) -> str:
        turn = self._names[name] = self._names.get(name, 0) + 1
        return f"{kind}/{name}/{turn}"

    @contextmanager
    def _working(self, key: str, bound_s: float, seen: Callable[[], Any] | None = None) -> Iterator[None]:
        self._going, growth = self.going(key, bound_s), Growth(seen)

        def beat() -> None:
            self._store.add(f"{key}/beat", 1)
            if growth.moved():
                self.moves()

        try:
            with beside(_BEAT_S, beat):
                yield
        finally:
            self._going = None

    def _has_read(self, key: str) -> None:
        """This rank knows what was said and may be about to leave. Rank 0 holds the store: it stays, for a short time, until all have read it."""
        self._within(lambda: self._store.add(f"{key}/read", 1))
        end = time.monotonic() + _READ_S
        while self.first and time.monotonic() < end and self._store.add(f"{key}/read", 0) < self.place.world_size:
            time.sleep(0.02)

    def _wait_for(self, key: str, name: str, bound_s: float) -> Any:
        heard, going = time.monotonic(), self.going(key, bound_s, self.on_move)
        beats, pause = 0, 0.02
        while not self._store.check([f"{key}/done"]):
            now = time.monotonic()
            count = self._store.add(f"{key}/beat", 0)
            if count != beats:
                beats, heard = count, now
            if now - heard > self.policies.peer_timeout_s:
                raise PeerLost(f"the rank that does '{name}' has been silent for {now - heard:.0f} s")
            if going.over():
                raise PeerLost(f"'{name}' was not done by its rank {going.text()}")
            time.sleep(pause)
            pause = min(0.5, pause * 1.5)
        answer = json.loads(self._store.get(f"{key}/done"))
        if "value" not in answer:
            self._has_read(key)
        if "refused" in answer:
            raise Refused.from_json(answer["refused"])
        if "warned" in answer:
            raise Warned(answer["warned"])
        if "failed" in answer:
            raise PeerLost(f"the rank that did '{name}' failed: {answer['failed']}")
        return answer["value"]

    def post(self, name: str, value: Any) -> None:
        """Leave this rank's value (JSON) under a name that is used once. No collective: any thread may do it at any time."""
        self._store.set(f"post/{name}/{self.place.rank}", json.dumps(value))

    def posted(self, name: str, going: Going, ranks: Sequence[int] | None = None) -> list[Any]:
        """The values that `ranks` (all) left under the name, by rank. Raises PeerLost when one is missing and the signs of `going` are over.

        Rank 0 takes away what it has read from all of them: it keeps the store, and a long run leaves many.
        """
        keys = {r: f"post/{name}/{r}" for r in (range(self.place.world_size) if ranks is None else ranks)}
        pause = 0.005
        while not self._store.check(list(keys.values())):
            if going.over():
                missing = [r for r, key in keys.items() if not self._store.check([key])]
                raise PeerLost(f"'{name}' was not heard of from {_ranks_text(missing, self.place)} {going.text()}")
            time.sleep(pause)
            pause = min(0.25, pause * 1.3)
        values = [json.loads(self._store.get(key)) for key in keys.values()]
        if ranks is None and self.first:
            for key in keys.values():
                self._store.delete_key(key)
        return values

    def tell(self, words: str) -> None:
        """Leave a word for the others before this rank fails; only the first one that is left counts."""
        self._within(lambda: self._store.compare_set("end", "", f"rank {self.place.rank} {words}"))

    def heard(self) -> str:
        """The word that a failing rank left; nothing when there is none, or when rank 0, who keeps it, is gone."""
        return str(self._within(lambda: self._store.get("end").decode() if self._store.check(["end"]) else "") or "")

    @staticmethod
    def _within(ask: Callable[[], Any]) -> Any:
        """The store's answer, or None: a dead or stopped rank 0 must not hold this one up."""
        answers: list[Any] = []

        def work() -> None:
            try:
                answers.append(ask())
            except Exception:  # noqa: S110 - whatever it is, there is no answer
                pass

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(_ASK_S)
        return answers[0] if answers else None

    def part(self) -> None:
        """Meet a last time and take the groups down, so that nobody mistakes an end for a loss."""
        self.barrier()
        self._dist.destroy_process_group()


_bound_s = 0.0
"""What the groups of this process were bounded to last; groups are the process's, too."""


def bound_groups(seconds: float | None = None) -> None:
    """Bound every collective of every process group, by default as they were bounded last: a group that a library makes has 10 or 30 minutes."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    global _bound_s
    _bound_s = _bound_s if seconds is None else seconds
    for group in list(c10d._world.pg_map):  # noqa: SLF001 - torch has no public list of groups
        # NCCL's own watchdog comes after ours, which leaves with the agreed exit code.
        slack = 60.0 if dist.get_backend(group) == "nccl" else 0.0
        c10d._set_pg_timeout(timedelta(seconds=_bound_s + slack), group)  # noqa: SLF001


def nccl_environment(policies: Policies, env: Mapping[str, str]) -> dict[str, str]:
    """Variables of torch by which our watchdog, and not NCCL's, ends a rank; what `env` says already stays. Pure.

    By default torch aborts the process as soon as NCCL reports an error or a collective is late: a signal, which says nothing of a lost peer. To
    abort only the communicators is no better: the kernels that wait end, and training would go on with what they left. So NCCL's error is only
    logged, the kernel waits, and the rank ends by its own bound. Torch's monitor stays on for a process in which nothing moves any more, not even
    our watchdog: it aborts this long after NCCL's error.
    """
    longest = max(3 * policies.start_timeout_s, policies.save_timeout_s, policies.peer_timeout_s)
    wanted = {
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
        "TORCH_NCCL_ENABLE_MONITORING": "1",
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": str(int(longest) + 60),
    }
    return {n: v for n, v in wanted.items() if n not in env and n.removeprefix("TORCH_") not in env}


def meet(place: Place, policies: Policies, device: Any) -> Peers:
    """Meet all ranks at MASTER_ADDR:MASTER_PORT within `rendezvous_timeout_s`; a late one is named (P41).

    Raises PeerLost when somebody does not come, Refused when rank 0 cannot have the port (P39).
    """
    import torch.distributed as dist

    bound = policies.rendezvous_timeout_s
    store = _open_store(place, bound)
    _roll_call(place, store, bound)
    dist.init_process_group(
        backend="gloo" if device.type == "cpu" else "nccl",
        store=dist.PrefixStore("group", store),
        rank=place.rank,
        world_size=place.world_size,
        timeout=timedelta(seconds=policies.start_timeout_s),
        device_id=None if device.type == "cpu" else device,
    )
    return Peers(place, policies, dist.PrefixStore("peers", store), device)


def _open_store(place: Place, bound: float) -> Any:
    import torch.distributed as dist

    try:
        return dist.TCPStore(
            place.master_addr,
            place.master_port,
            is_master=place.rank == 0,
            timeout=timedelta(seconds=bound),
            wait_for_workers=False,
        )
    except (dist.DistError, RuntimeError) as exc:
        where = f"{place.master_addr}:{place.master_port}"
        if place.rank == 0:
            raise refuse("E-TRAIN-006", f"rank 0 cannot listen there: {exc}", field="MASTER_PORT", found=where) from exc
        raise PeerLost(f"rank 0 did not answer at {where} within {bound:.0f} s") from exc


def _roll_call(place: Place, store: Any, bound: float) -> None:
    world = place.world_size
    store.set(f"here/{place.rank}", f"{socket.gethostname()} {place.node_rank}")
    arrived = store.add("here", 1)
    began, pause = time.monotonic(), 0.02
    while arrived < world:
        if time.monotonic() - began > bound:
            missing = [r for r in range(world) if not store.check([f"here/{r}"])]
            if missing:
                raise PeerLost(f"after {bound:.0f} s still missing: {_ranks_text(missing, place)}")
        time.sleep(pause)
        pause = min(0.5, pause * 1.3)
        arrived = store.add("here", 0)


def _ranks_text(ranks: list[int], place: Place) -> str:
    """`rank 4 (node 1), rank 5 (node 1)`; at most eight are named."""
    named = [f"rank {r} (node {r // place.local_world_size})" for r in ranks[:8]]
    return ", ".join(named) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
