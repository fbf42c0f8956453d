"""One save on its way: a thread writes, agrees with the other ranks and publishes, while training goes on or while it is waited for.

The ranks agree through the store that they met in, never by a collective: collectives belong to the step loop.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuneplane.contract.checkpointed import pinned
from tuneplane.contract.layout import RunPaths
from tuneplane.contract.succession import successor
from tuneplane.record.canonical import pretty_bytes
from tuneplane.record.digest import FileEntry, digest_bytes
from tuneplane.record.files import fsync_dir, write_new
from tuneplane.training import checkpoint as disk
from tuneplane.training.continuity import joined
from tuneplane.training.peers import PeerLost, Peers
from tuneplane.training.refusals import Refused, refuse
from tuneplane.training.shards import Part

_LOOK_S = 0.5


@dataclass(frozen=True)
class Saved:
    """A finished save: seconds from the step edge to the pointer, seconds of it that the step loop stood still, bytes of all ranks."""

    step: int
    seconds: float
    blocked_s: float
    bytes: int
    reason: str


@dataclass(frozen=True)
class Taken:
    """What this rank brings to a checkpoint, taken at a step edge. `manifest` is rank 0's and lacks the files yet.

    No rank may be silent for `bound_s`; where it is `hurried`, by a warning, all must be done in that time. Checkpoints of the steps `unsound` are no
    safety: they were passed over.
    """

    step: int
    part: Part
    random: dict[str, Any]
    manifest: dict[str, Any]
    keep: int
    bound_s: float
    reason: str
    hurried: bool = False
    unsound: frozenset[int] = frozenset()


def rank_file(rank: int) -> str:
    """Name of the file with a rank's random numbers."""
    return f"rank-{rank:05d}.json"


class Writing:
    """The second half of a save. Its end is the thread's; `result` brings it to the main thread."""

    def __init__(self, root: Path, peers: Peers, taken: Taken, began: float) -> None:
        self.step, self.began, self.blocked_s = taken.step, began, 0.0
        self._root, self._peers, self._taken = root, peers, taken
        self._going = peers.going("save", taken.bound_s, fixed=taken.hurried)
        self._bytes, self._ended = 0, 0.0
        self._fault: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"save-{taken.step}", daemon=True)
        self._thread.start()

    @property
    def late(self) -> bool:
        """It goes on for longer than it may."""
        return self._thread.is_alive() and self._going.over()

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()

    def join(self, again: Callable[[], None] = lambda: None) -> None:
        """Wait for the end; the caller's watchdog bounds it, `again` says that a rank has come further."""
        last = self._going.at
        while self._thread.is_alive():
            self._thread.join(_LOOK_S)
            self._going.over()
            if self._going.at != last:
                last = self._going.at
                again()

    def result(self) -> Saved:
        """The save, once it is over. Raises what ended it: Refused (a full disk, say) or PeerLost; nothing is published then."""
        if self._fault is not None:
            raise self._fault
        return Saved(self.step, self._ended - self.began, self.blocked_s, self._bytes, self._taken.reason)

    def _run(self) -> None:
        try:
            self._bytes = self._agree(self._write())
        except BaseException as exc:  # the main thread raises it
            self._fault = exc
        self._ended = time.monotonic()

    @property
    def _name(self) -> str:
        return f"save/{self.step}"

    def _write(self) -> dict[str, Any]:
        """This rank's files, and the digests of what they hold."""
        try:
            return write_part(self._taken, self._peers.place.rank, self._going.sign)
        except BaseException as exc:
            self._peers.post(self._name, {"failed": f"{type(exc).__name__}: {exc}"})
            if isinstance(exc, OSError):
                raise unwritable(exc, self._taken.part.folder) from exc
            raise

    def _agree(self, mine: dict[str, Any]) -> int:
        """Publish on rank 0 once all have written; bytes of all. Raises PeerLost when another rank could not write its part."""
        self._peers.post(self._name, mine)
        end = f"{self._name}/end"
        if self._peers.first:
            answer: dict[str, Any] = {"failed": "rank 0 could not publish it"}
            try:
                answer = self._publish(self._peers.posted(self._name, self._going))
            finally:
                self._peers.post(end, answer)
        answer = self._peers.posted(end, self._going, ranks=[0])[0]
        if "failed" in answer:
            raise PeerLost(
                f"the checkpoint of step {self.step} was not written, the one before it stands: {answer['failed']}"
            )
        return int(answer["bytes"])

    def _publish(self, told: list[dict[str, Any]]) -> dict[str, Any]:
        if failed := [f"rank {rank}: {one['failed']}" for rank, one in enumerate(told) if "failed" in one]:
            return {"failed": failed[0]}
        later = successor(RunPaths(self._root.parent), self._peers.place.attempt)
        if later is not None:
            raise refuse("E-TRAIN-048", f"attempt {later} of the run has begun", field=str(self._root))
        taken, everyone = self._taken, [FileEntry.from_json(e) for one in told for e in one["files"]]
        manifest = taken.manifest | {"continuity": joined([one["continuity"] for one in told])}
        try:
            done = disk.publish(self._root, taken.part.folder, manifest, everyone, self._peers.place.attempt)
            size = sum(f.size for f in everyone)
            others = self._kept_for_others(size)
            disk.prune(self._root, taken.keep, done, others, taken.unsound, self._going.sign)
        except (OSError, disk.Damaged) as exc:
            raise unwritable(exc, taken.part.folder) from exc
        return {"bytes": size}

    def _kept_for_others(self, size: int) -> set[int]:
        """Steps that evaluations still read; none where the disk has no room for two more saves of `size` bytes: the training goes first."""
        steps = pinned(RunPaths(self._root.parent))
        return steps if steps and disk.room(self._root) >= 2 * size else set()


def write_part(taken: Taken, rank: int, moved: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Write one rank's part: `files` with digests, `continuity` with those of what they hold. Raises OSError.

    The contents are looked at beside the writing, on another core where there is one.
    """
    folder = taken.part.folder
    with ThreadPoolExecutor(1) as beside:
        held = beside.submit(taken.part.contents)
        files = taken.part.write(moved)
        continuity = held.result() | {"random": digest_bytes(pretty_bytes(taken.random))}
    data = pretty_bytes({"rank": rank, "step": taken.step, "random": taken.random, "continuity": continuity})
    write_new(folder / rank_file(rank), data)
    fsync_dir(folder)
    files.append(FileEntry(rank_file(rank), False, len(data), digest_bytes(data)))
    return {"files": [f.as_json() for f in files], "continuity": continuity}


def unwritable(exc: Exception, folder: Path) -> Refused:
    return refuse("E-TRAIN-045", f"the checkpoint could not be written: {exc}", field=str(folder))
