"""Saving and resuming with all ranks: the collective half of `checkpoint`."""

from __future__ import annotations

import base64
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuneplane.record.canonical import pretty_bytes
from tuneplane.record.digest import FileEntry, digest_bytes
from tuneplane.record.files import fsync_dir, read_json, write_new
from tuneplane.record.times import utc_now
from tuneplane.training import checkpoint as disk
from tuneplane.training.engine import Engine
from tuneplane.training.method import Method
from tuneplane.training.peers import Peers
from tuneplane.training.refusals import Reason, Refused, refuse
from tuneplane.training.watchdog import Watchdog


def random_state(device: Any) -> dict[str, Any]:
    """This rank's random numbers (Python, numpy, torch, its GPU) as JSON."""
    import numpy as np
    import torch

    version, words, gauss = random.getstate()
    kind, keys, at, has_gauss, cached = np.random.get_state()
    state = {
        "python": [version, list(words), gauss],
        "numpy": [kind, [int(k) for k in keys], int(at), int(has_gauss), float(cached)],
        "torch": _text(torch.get_rng_state()),
    }
    if device.type != "cpu":
        state["device"] = _text(torch.cuda.get_rng_state(device))
    return state


def set_random_state(state: dict[str, Any], device: Any) -> None:
    import numpy as np
    import torch

    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, at, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), at, has_gauss, cached))
    torch.set_rng_state(_tensor(state["torch"]))
    if device.type != "cpu":
        torch.cuda.set_rng_state(_tensor(state["device"]), device)


def _text(tensor: Any) -> str:
    return base64.b64encode(tensor.numpy().tobytes()).decode("ascii")


def _tensor(text: str) -> Any:
    import torch

    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)


@dataclass(frozen=True)
class Saved:
    """A finished save: seconds that the step loop stood still, bytes of all ranks."""

    step: int
    seconds: float
    bytes: int


@dataclass(frozen=True)
class Resumed:
    """Where a run goes on: the step that is done, and the checkpoint's name, attempt and file count."""

    step: int
    name: str
    attempt: int
    files: int
    tokens: int


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
        self.notes: list[str] = []
        """What the last call has to say to people; rank 0 prints it."""

    def save(self, step: int, tokens: int, bound_s: float) -> Saved:
        """Save the state after `step` on all ranks, in at most `bound_s` seconds; past them this rank ends with exit code 87.

        The checkpoint before stays until this one is published and verified. Raises Refused (a full disk, say); nothing is published then.
        """
        began, place = time.monotonic(), self.peers.place
        self._watchdog.beat(f"saving step {step} (the checkpoint before it stands)", bound_s)
        self.peers.set_timeouts(bound_s + 5)
        temp = disk.temp_path(self.root, step, place.attempt)
        if self.peers.first:
            self.root.mkdir(parents=True, exist_ok=True)
            temp.mkdir()
        self.peers.barrier()
        try:
            files = self._write_mine(temp, step)
        except OSError as exc:
            raise refuse("E-TRAIN-045", f"the checkpoint could not be written: {exc}", field=str(temp)) from exc
        everyone = [FileEntry.from_json(e) for part in self.peers.gather([f.as_json() for f in files]) for e in part]
        if self.peers.first:
            manifest = self._manifest(step, tokens)
            self._publish(temp, manifest, everyone)
        self.peers.barrier()
        self.peers.set_timeouts(self.peers.policies.peer_timeout_s)
        self._watchdog.rest()
        return Saved(step, time.monotonic() - began, sum(f.size for f in everyone))

    def _write_mine(self, temp: Path, step: int) -> list[FileEntry]:
        files = self.engine.save(temp)
        name = f"rank-{self.peers.place.rank:05d}.json"
        data = pretty_bytes({"rank": self.peers.place.rank, "step": step, "random": random_state(self.peers.device)})
        write_new(temp / name, data)
        fsync_dir(temp)
        return [*files, FileEntry(name, False, len(data), digest_bytes(data))]

    def _manifest(self, step: int, tokens: int) -> dict[str, Any]:
        place = self.peers.place
        return {
            "step": step,
            "run_id": place.run_id,
            "attempt": place.attempt,
            "saved_at": utc_now(),
            "world_size": place.world_size,
            "ranks_per_node": place.local_world_size,
            "zero_stage": self.engine.settings.zero_stage,
            "precision": self.engine.precision,
            "method": self.method.name,
            "settings": self.engine.settings.exact(),
            "fingerprint": self._fingerprint,
            "state": self.method.state(step),
            "tokens": tokens,
            "versions": versions(),
        }

    def _publish(self, temp: Path, manifest: dict[str, Any], files: list[FileEntry]) -> None:
        done = disk.publish(self.root, temp, manifest, files, self.peers.place.attempt)
        disk.prune(self.root, self.engine.settings.keep_checkpoints, done)

    def resume(self) -> Resumed | None:
        """Go on from the newest checkpoint that verifies; None where there is none yet. Raises Refused; never starts again in silence."""
        self.notes = []
        place, peers = self.peers.place, self.peers
        if peers.first and (left := disk.clear_leftovers(self.root)):
            self.notes.append(f"removed half-written checkpoints of earlier attempts: {', '.join(left)}")
        choice = disk.choose(self.root, share=place.rank, of=place.world_size, agree=peers.gather)
        self.notes += [f"checkpoint {name} is passed over: {why}" for name, why in choice.passed_over]
        if choice.lost:
            raise Refused(
                Reason(
                    "E-TRAIN-040",
                    "no checkpoint of this run can be used",
                    field=str(self.root),
                    found="; ".join(f"{name}: {why}" for name, why in choice.passed_over),
                )
            )
        if choice.checkpoint is None:
            return None
        return self._take_up(choice.checkpoint)

    def _take_up(self, found: disk.Checkpoint) -> Resumed:
        manifest, place = found.manifest, self.peers.place
        if reasons := self.differences(manifest, found.path.name):
            raise Refused(reasons)
        if (then := manifest.get("versions")) != versions():
            self.notes.append(
                f"the libraries are others than at the save: numbers may differ ({then} then, {versions()} now)"
            )
        self.engine.load(found.path)
        own = read_json(found.path / f"rank-{place.rank:05d}.json")
        set_random_state(own["random"], self.peers.device)
        self.method.resume(manifest["state"], found.step)
        return Resumed(found.step, found.path.name, int(manifest["attempt"]), len(found.files), int(manifest["tokens"]))

    def differences(self, manifest: dict[str, Any], name: str) -> list[Reason]:
        """Every reason why this run does not continue that checkpoint; empty when it does."""
        now = self._manifest(0, 0)
        out = []
        if manifest["world_size"] != now["world_size"]:
            out.append(
                Reason(
                    "E-TRAIN-041",
                    "the checkpoint was written by another number of ranks",
                    field=f"{name}: world_size",
                    found=f"{now['world_size']} ranks now",
                    allowed=f"{manifest['world_size']} ranks",
                )
            )
        for key in ("method", "zero_stage", "precision", "run_id"):
            if manifest.get(key) != now[key]:
                out.append(_changed("E-TRAIN-042", f"{name}: {key}", manifest.get(key), now[key]))
        then = manifest["settings"]
        for key in sorted(set(then) | set(now["settings"])):
            if then.get(key) != now["settings"].get(key) and key not in ("zero_stage", "precision"):
                out.append(_changed("E-TRAIN-042", f"{name}: {key}", then.get(key), now["settings"].get(key)))
        for key in sorted(set(manifest["fingerprint"]) | set(self._fingerprint)):
            before, here = manifest["fingerprint"].get(key), self._fingerprint.get(key)
            if before != here:
                out.append(_changed("E-TRAIN-043", f"{name}: {key}", before, here))
        return out


def _changed(code: str, field: str, then: Any, now: Any) -> Reason:
    return Reason(code, "changed since the checkpoint was written", field, found=f"{now} now", allowed=f"{then} then")


def versions() -> dict[str, str]:
    """Releases that the numbers depend on."""
    import platform
    from importlib.metadata import version

    return {"python": platform.python_version()} | {
        n: version(n) for n in ("torch", "deepspeed", "transformers", "peft")
    }
