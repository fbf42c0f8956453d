"""Taking up a checkpoint with all ranks: which one, whether this run continues it, and whether what is in memory then is what was saved."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuneplane.contract.continuity import SAMPLES
from tuneplane.contract.reshaping import SHAPE_SETTINGS, shape_faults
from tuneplane.record.canonical import pretty_bytes
from tuneplane.record.digest import digest_bytes
from tuneplane.record.files import read_json
from tuneplane.training import checkpoint as disk
from tuneplane.training import continuity
from tuneplane.training.continuity import Certificate
from tuneplane.training.engine import SHARDS, Engine, seed_all
from tuneplane.training.going import size_below
from tuneplane.training.method import Method
from tuneplane.training.peers import Peers
from tuneplane.training.randomness import random_state, set_random_state
from tuneplane.training.refusals import Reason, Refused
from tuneplane.training.reshape import universal
from tuneplane.training.start import start_of, taken_from
from tuneplane.training.writing import rank_file


@dataclass(frozen=True)
class Resumed:
    """Where a run goes on: the step that is done, and the checkpoint's name, attempt and file count."""

    step: int
    name: str
    attempt: int
    files: int
    tokens: int
    certificate: Certificate

    @property
    def own(self) -> bool:
        """It is this run's own checkpoint, not that of the run which it was begun from."""
        return self.certificate.from_run == self.certificate.run_id


class Resuming:
    """One resume. `now` is the manifest that this run would write before its first step; `notes` is what rank 0 has to say afterwards."""

    def __init__(self, root: Path, engine: Engine, method: Method, peers: Peers, now: dict[str, Any]) -> None:
        self.root, self.engine, self.method, self.peers, self.now = root, engine, method, peers, now
        self.notes: list[str] = []
        self.unsound: frozenset[int] = frozenset()
        """Steps of checkpoints that were passed over."""

    def resume(self) -> Resumed | None:
        """Go on from the newest checkpoint that verifies; None where there is none yet. Raises Refused; never starts again in silence."""
        place, peers = self.peers.place, self.peers
        if peers.first and (left := disk.clear_leftovers(self.root)):
            self.notes.append(f"removed half-written checkpoints of earlier attempts: {', '.join(left)}")
        choice = disk.choose(
            self.root, share=place.rank, of=place.world_size, together=self._together, moved=peers.moves
        )
        self.notes += [f"checkpoint {name} is passed over: {why}" for name, why in choice.passed_over]
        self.unsound = frozenset(s for s in disk.steps(self.root) if disk.name_of(s) in dict(choice.passed_over))
        if choice.lost:
            raise Refused(
                Reason(
                    "E-TRAIN-040",
                    "no checkpoint of this run can be used",
                    field=str(self.root),
                    found="; ".join(f"{name}: {why}" for name, why in choice.passed_over),
                )
            )
        if choice.checkpoint is not None:
            return self._take_up(choice.checkpoint, own=True)
        if not (start := start_of(place.work_dir)):
            return None
        found = taken_from(start, share=place.rank, of=place.world_size, together=self._together, moved=peers.moves)
        return self._take_up(found, own=False)

    def _together(self, work: Callable[[], Any]) -> list[Any]:
        """Files are read by all ranks, some of which are done long before others."""
        return self.peers.together("reading checkpoints", work, self.peers.policies.start_timeout_s)

    def _take_up(self, found: disk.Checkpoint, *, own: bool) -> Resumed:
        manifest, place = found.manifest, self.peers.place
        now = self.now if own else self.now | {"run_id": manifest["run_id"]}
        if reasons := differences(manifest, now, found.path.name):
            raise Refused(reasons)
        if (before := manifest.get("versions")) != versions():
            self.notes.append(
                f"the libraries are others than at the save: numbers may differ ({before} then, {versions()} now)"
            )
        then = self._load(found) if manifest["world_size"] == place.world_size else self._load_reshaped(found)
        held = self.engine.contents()
        if then:  # last: nothing may be drawn between this and the first step
            set_random_state(then["random"], self.peers.device)
        else:
            seed_all(_seed(self.engine.settings.seed, found.step, place.world_size, place.rank))
        self.method.resume(manifest["state"], found.step)
        certificate = self._certify(found, then.get("continuity") or {}, held)
        self.notes.append(certificate.text())
        attempt, tokens = int(manifest["attempt"]), int(manifest["tokens"])
        return Resumed(found.step, found.path.name, attempt, len(found.files), tokens, certificate)

    def _load(self, found: disk.Checkpoint) -> dict[str, Any]:
        """Weights and optimiser of this rank; what else it saved."""
        self.engine.load(found.path)
        return dict(read_json(found.path / rank_file(self.peers.place.rank)))

    def _load_reshaped(self, found: disk.Checkpoint) -> dict[str, Any]:
        """The same from a checkpoint of another number of ranks (P34), made anew by one rank; no rank's random numbers are those of another shape."""
        if not self.engine.settings.zero_stage:
            self.engine.load(found.path)  # every rank has everything
            return {}
        target = self.root / f".new-universal-{found.path.name}-{found.manifest_sha256[7:19]}"
        bound = self.peers.policies.start_timeout_s

        def convert() -> str:
            began = time.monotonic()
            universal(found.path / SHARDS, target, bound)
            return f"{time.monotonic() - began:.0f} s"

        took = self.peers.once("reshape", convert, bound, by=0, seen=lambda: size_below(target))
        self.engine.load_universal(target)
        self.peers.barrier()
        if self.peers.first:
            shutil.rmtree(target, ignore_errors=True)
            self.notes.append(
                f"checkpoint of {found.manifest['world_size']} ranks made over for {self.peers.place.world_size} in {took}"
            )
        return {}

    def _certify(self, found: disk.Checkpoint, then: dict[str, Any], held: dict[str, str]) -> Certificate:
        """Compare on every rank, tell all, record on rank 0. A collective."""
        place, manifest = self.peers.place, found.manifest
        now = held | {"random": digest_bytes(pretty_bytes(random_state(self.peers.device)))}
        compared = [kind for kind in continuity.KINDS if kind in then]
        told = self.peers.gather([now, compared, continuity.differences(then, now, place.rank)])
        state = self.method.state(found.step)
        differs = [text for _, _, texts in told for text in texts]
        if state != manifest["state"]:
            differs.append(SAMPLES)
        certificate = Certificate(
            attempt=place.attempt,
            run_id=place.run_id,
            from_run=str(manifest["run_id"]),
            from_attempt=int(manifest["attempt"]),
            step=found.step,
            checkpoint=found.path.name,
            ranks_then=int(manifest["world_size"]),
            ranks_now=place.world_size,
            compared=(*told[0][1], SAMPLES) if told[0][1] or not then else (),
            differs=tuple(differs),
            digests=continuity.joined([part for part, _, _ in told]) | {SAMPLES: continuity.samples(state)},
        )
        if self.peers.first:
            continuity.write(certificate, place.out_dir)
        return certificate


def differences(then: dict[str, Any], now: dict[str, Any], name: str) -> list[Reason]:
    """Every reason why a run of manifest `now` does not continue the checkpoint of manifest `then`; empty when it does."""
    out, reshaped = [], then["world_size"] != now["world_size"]
    if reshaped:
        for field, found, allowed in shape_faults(then, now["settings"], now["world_size"]):
            text = "the checkpoint was written by another number of ranks"
            out.append(Reason("E-TRAIN-041", text, f"{name}: {field}", found=found, allowed=allowed))
    for key in ("framework", "method", "zero_stage", "precision", "run_id"):
        if then.get(key) != now[key]:
            out.append(_changed("E-TRAIN-042", f"{name}: {key}", then.get(key), now[key]))
    before, after = then["settings"], now["settings"]
    for key in sorted(set(before) | set(after)):
        if key in ("zero_stage", "precision") or (reshaped and key in SHAPE_SETTINGS):
            continue
        if before.get(key) != after.get(key):
            out.append(_changed("E-TRAIN-042", f"{name}: {key}", before.get(key), after.get(key)))
    before, after = then["fingerprint"], now["fingerprint"]
    for key in sorted(set(before) | set(after)):
        if before.get(key) != after.get(key):
            out.append(_changed("E-TRAIN-043", f"{name}: {key}", before.get(key), after.get(key)))
    return out


def _seed(seed: int, step: int, ranks: int, rank: int) -> int:
    """A seed of its own for each rank of a shape that goes on after `step`."""
    return int.from_bytes(hashlib.sha256(f"reshaped {seed} {step} {ranks} {rank}".encode()).digest()[:4], "big")


def _changed(code: str, field: str, then: Any, now: Any) -> Reason:
    return Reason(code, "changed since the checkpoint was written", field, found=f"{now} now", allowed=f"{then} then")


def versions() -> dict[str, str]:
    """Releases that the numbers depend on."""
    import platform
    from importlib.metadata import version

    return {"python": platform.python_version()} | {
        n: version(n) for n in ("torch", "deepspeed", "transformers", "peft")
    }
