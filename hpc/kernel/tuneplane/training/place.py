"""Where this rank stands: the launcher's environment and `launch.json`, read strictly. Standard library only."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tuneplane.contract.sweeps import variant_of
from tuneplane.record.files import read_json
from tuneplane.training.refusals import Reason, Refused, refuse

NEEDS = ("model", "train")
"""Inputs of a training method."""
_POLICIES: dict[str, float] = {
    "peer_timeout_s": 300.0,
    "lead_s": 120.0,
    "rendezvous_timeout_s": 300.0,
    "start_timeout_s": 1800.0,
    "save_timeout_s": 1800.0,
}


@dataclass(frozen=True)
class Policies:
    """Bounds in seconds; other keys of `launch.json`'s policies belong to the launcher.

    peer_timeout_s: how long a silent peer is borne while training. lead_s: from the warning to the kill. rendezvous_timeout_s: until all
    ranks have met. start_timeout_s: loading and the first step. save_timeout_s: a save or export that no warning hurries.
    """

    peer_timeout_s: float
    lead_s: float
    rendezvous_timeout_s: float
    start_timeout_s: float
    save_timeout_s: float


@dataclass(frozen=True)
class Place:
    """This rank among the others, and the folders of the run."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    node_rank: int
    master_addr: str
    master_port: int
    work_dir: Path
    run_dir: Path
    out_dir: Path
    exp_dir: Path
    checkpoint_dir: Path
    run_id: str
    attempt: int

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Place:
        """Read the rank contract. Raises Refused, which names every variable that is missing or wrong."""
        wrong: list[Reason] = []

        def text(name: str) -> str:
            if not env.get(name):
                wrong.append(Reason("E-TRAIN-001", "the launcher did not set it", field=name, allowed="a value"))
            return env.get(name, "")

        def whole(name: str, low: int) -> int:
            value = text(name)
            if value and not (value.isascii() and value.isdecimal() and int(value) >= low):
                wrong.append(Reason("E-TRAIN-001", "not a whole number in range", name, value, f"an integer >= {low}"))
                return low
            return int(value) if value else low

        place = cls(
            rank=whole("RANK", 0),
            local_rank=whole("LOCAL_RANK", 0),
            world_size=whole("WORLD_SIZE", 1),
            local_world_size=whole("LOCAL_WORLD_SIZE", 1),
            node_rank=whole("NODE_RANK", 0),
            master_addr=text("MASTER_ADDR"),
            master_port=whole("MASTER_PORT", 1),
            work_dir=Path(text("TUNEPLANE_WORK_DIR")),
            run_dir=Path(text("TUNEPLANE_RUN_DIR")),
            out_dir=Path(text("TUNEPLANE_OUT_DIR")),
            exp_dir=Path(text("TUNEPLANE_EXP_DIR")),
            checkpoint_dir=Path(text("TUNEPLANE_CHECKPOINT_DIR")),
            run_id=text("TUNEPLANE_RUN_ID"),
            attempt=whole("TUNEPLANE_ATTEMPT", 0),
        )
        if not wrong and (place.rank >= place.world_size or place.local_rank >= place.local_world_size):
            wrong.append(
                Reason(
                    "E-TRAIN-002",
                    "the rank lies outside its world",
                    field="RANK",
                    found=f"rank {place.rank} of {place.world_size}, local {place.local_rank} of {place.local_world_size}",
                )
            )
        if wrong:
            raise Refused(wrong)
        return place


@dataclass(frozen=True)
class Launch:
    """What the package says: `.tuneplane/launch.json`. Keys that are not read here belong to others."""

    hyperparams: dict[str, Any]
    peft: dict[str, Any] | None
    inputs: dict[str, dict[str, Any]]
    gpus_per_node: int
    policies: Policies
    config: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, place: Place, needs: Sequence[str] = NEEDS) -> Launch:
        """Read and check it against this rank's world (P48); `needs` are the inputs that must be given. Raises Refused.

        An element of a sweep has its own hyperparameters over the package's.
        """
        path = place.work_dir / ".tuneplane" / "launch.json"
        try:
            value, own = read_json(path), variant_of(place.work_dir, os.environ)
        except (OSError, ValueError) as exc:
            raise refuse("E-TRAIN-003", f"cannot be read: {exc}", field=str(path)) from exc
        found = cls.parse(value, place, needs)
        return replace(found, hyperparams=found.hyperparams | own)

    @classmethod
    def parse(cls, value: Any, place: Place, needs: Sequence[str] = NEEDS) -> Launch:
        if not isinstance(value, dict):
            raise refuse("E-TRAIN-003", "not an object", field="launch.json")
        wrong: list[Reason] = []

        def part(name: str) -> dict[str, Any]:
            got = value.get(name) or {}
            if not isinstance(got, dict):
                wrong.append(Reason("E-TRAIN-003", "not an object", field=f"launch.json: {name}"))
                return {}
            return got

        shape, inputs = part("shape"), part("inputs")
        _check_shape(shape, place, wrong)
        policies = _policies(part("policies"), wrong)
        for name in needs:
            if not isinstance(inputs.get(name), dict) or not inputs[name].get("path"):
                wrong.append(Reason("E-TRAIN-004", "no path is given", field=f"launch.json: inputs.{name}.path"))
        launch = cls(
            hyperparams=part("hyperparams"),
            peft=part("peft") or None,
            inputs={k: v for k, v in inputs.items() if isinstance(v, dict) and v.get("path")},
            gpus_per_node=int(shape.get("gpus_per_node") or 0) if not wrong else 0,
            policies=policies,
            config=part("config"),
        )
        if wrong:
            raise Refused(wrong)
        return launch

    def input_path(self, name: str, place: Place) -> Path | None:
        """The absolute path of an input (`model`, `train`, `validation`); a relative one is meant from the work folder."""
        entry = self.inputs.get(name)
        return None if entry is None else place.work_dir / str(entry["path"])


def _check_shape(shape: dict[str, Any], place: Place, wrong: list[Reason]) -> None:
    said = shape.get("world_size", place.world_size)
    per_node = [p.get("ranks_per_node") for p in shape.get("pools") or [] if isinstance(p, dict)]
    per_node = per_node or [shape.get("ranks_per_node", place.local_world_size)]
    for name, here, allowed in (
        ("world_size", place.world_size, [said]),
        ("ranks_per_node", place.local_world_size, per_node),
    ):
        if here not in allowed:
            wrong.append(
                Reason(
                    "E-TRAIN-005",
                    "the package's shape is not what was started",
                    field=f"launch.json: shape.{name}",
                    found=f"started {here}",
                    allowed=" or ".join(str(a) for a in allowed),
                )
            )
    gpus = shape.get("gpus_per_node", 0)
    if type(gpus) is not int or gpus < 0:
        wrong.append(Reason("E-TRAIN-003", "not a number of GPUs", "launch.json: shape.gpus_per_node", repr(gpus)))


def _policies(given: dict[str, Any], wrong: list[Reason]) -> Policies:
    values = {}
    for name, default in _POLICIES.items():
        value = given.get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e7:
            wrong.append(
                Reason(
                    "E-TRAIN-003", "not a time in seconds", f"launch.json: policies.{name}", repr(value), "0 < s < 1e7"
                )
            )
            value = default
        values[name] = float(value)
    return Policies(**values)


def process_age_s() -> float:
    """Seconds since the kernel started this process (P72: from interpreter to first batch). Linux; resolution 10 ms."""
    with open("/proc/self/stat", "rb") as stream:
        ticks = int(stream.read().rpartition(b")")[2].split()[19])
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
