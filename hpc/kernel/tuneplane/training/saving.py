"""Saving and resuming with all ranks: the collective half of `checkpoint`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tuneplane.record.times import utc_now
from tuneplane.training import checkpoint as disk
from tuneplane.training import warning
from tuneplane.training.engine import Engine
from tuneplane.training.method import Method
from tuneplane.training.peers import PeerLost, Peers
from tuneplane.training.randomness import random_state
from tuneplane.training.resuming import Resumed, Resuming, versions
from tuneplane.training.watchdog import Watchdog
from tuneplane.training.writing import Saved, Taken, Writing, unwritable

__all__ = ["Resumed", "Saved", "Saver", "versions"]


class Saver:
    """Checkpoints of one run, for all ranks. `fingerprint` is what a resume must find unchanged."""

    def __init__(
        self,
        root: Path,
        engine: Engine,
        method: Method,
        peers: Peers,
        watchdog: Watchdog,
        fingerprint: dict[str, Any],
    ) -> None:
        self.root, self.engine, self.method, self.peers = root, engine, method, peers
        self._watchdog, self._fingerprint = watchdog, fingerprint
        self._writing: Writing | None = None
        self._unsound: frozenset[int] = frozenset()
        self.notes: list[str] = []
        """What the last call has to say to people; rank 0 prints it."""

    def save(self, step: int, tokens: int, bound_s: float) -> Saved:
        """Save the state after `step` on all ranks and wait for it as long as it comes further within `bound_s` seconds; else this rank ends with
        exit code 87.

        The checkpoint before stays until this one is published and verified. Raises Refused (a full disk, say) or PeerLost; nothing is
        published then. An earlier save must be settled.
        """
        self.begin(step, tokens, bound_s, reason="asked for", behind=False)
        saved = self.settle(bound_s)
        assert saved is not None
        return saved

    def begin(self, step: int, tokens: int, bound_s: float, *, reason: str, behind: bool) -> None:
        """Take the state after `step` on all ranks; it is written by a thread. An earlier save must be settled.

        `behind`: training goes on meanwhile, from a copy in CPU memory. Else, and where the node's memory has no room for the ranks' copies, the
        state itself is written and waited for. Raises Refused.
        """
        began = time.monotonic()
        self._beat(step, bound_s)
        self.peers.set_timeouts(bound_s + 5)
        temp = disk.temp_path(self.root, step, self.peers.place.attempt)
        try:
            if self.peers.first:
                self.root.mkdir(parents=True, exist_ok=True)
                temp.mkdir()
            self.peers.barrier()
            part = self.engine.save(temp, behind)
        except OSError as exc:
            raise unwritable(exc, temp) from exc
        keep, manifest = self.engine.settings.keep_checkpoints, self._manifest(step, tokens)
        hurried, self._unsound = warning.given() is not None, self._unsound - {step}
        random = random_state(self.peers.device)
        taken = Taken(step, part, random, manifest, keep, bound_s, reason, hurried, self._unsound)
        self._writing = Writing(self.root, self.peers, taken, began)
        if not part.copied:
            self._join()
        self._stood(began)
        self.peers.set_timeouts(self.peers.policies.peer_timeout_s)

    def look(self) -> Saved | None:
        """At a step edge: the save that ended since, if one did. Raises what ended it badly, and PeerLost where it takes too long."""
        if self._writing is None:
            return None
        if self._writing.late:
            raise PeerLost(f"the save of step {self._writing.step} takes longer than its bound")
        return self._end() if self._writing.over else None

    def settle(self, bound_s: float) -> Saved | None:
        """Wait for the save on its way, within `bound_s` seconds as in `save`, and give it; None where there is none. Raises as `look`."""
        if self._writing is None:
            return None
        began = time.monotonic()
        self._beat(self._writing.step, bound_s)
        self._join()
        self._stood(began)
        return self._end()

    def resume(self) -> Resumed | None:
        """Go on from the newest checkpoint that verifies; None where there is none yet. Raises Refused; never starts again in silence."""
        resuming = Resuming(self.root, self.engine, self.method, self.peers, self._manifest(0, 0))
        resumed = resuming.resume()
        self.notes, self._unsound = resuming.notes, resuming.unsound
        return resumed

    def _join(self) -> None:
        """Wait for the save: as long as it comes further, or, after a warning, as long as there is time."""
        assert self._writing is not None
        self._writing.join(self._watchdog.again if warning.given() is None else lambda: None)

    def _end(self) -> Saved:
        writing, self._writing = self._writing, None
        assert writing is not None
        return writing.result()

    def _beat(self, step: int, bound_s: float) -> None:
        self._watchdog.beat(f"saving step {step} (the checkpoint before it stands)", bound_s)

    def _stood(self, since: float) -> None:
        assert self._writing is not None
        self._writing.blocked_s += time.monotonic() - since
        self._watchdog.rest()

    def _manifest(self, step: int, tokens: int) -> dict[str, Any]:
        place = self.peers.place
        return {
            "step": step,
            "total_steps": self.method.total_steps,
            "run_id": place.run_id,
            "attempt": place.attempt,
            "saved_at": utc_now(),
            "world_size": place.world_size,
            "ranks_per_node": place.local_world_size,
            "zero_stage": self.engine.settings.zero_stage,
            "parallel": {"data": place.world_size, "tensor": 1, "pipeline": 1},
            "precision": self.engine.precision,
            "framework": self.engine.framework,
            "method": self.method.name,
            "settings": self.engine.settings.exact(),
            "fingerprint": self._fingerprint,
            "state": self.method.state(step),
            "tokens": tokens,
            "versions": versions(),
        }
