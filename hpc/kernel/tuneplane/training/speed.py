"""Model FLOPs utilisation: which share of the devices' peak speed the trained model's own arithmetic took.

    mfu = tokens/s x (6 x trained + 4 x frozen) / (ranks x peak)

A weight that is trained costs 6 operations a token: 2 forward, 2 for the gradient of its input, 2 for its own; a frozen one lacks the last two.
Counted are the weights that are multiplied: not norms, biases and an input embedding that is no output head as well. Left out are attention scores,
recomputed activations, a reference's or teacher's passes and generation: the figure is a lower bound. Where the peak is not known there is none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

PEAK_FLOPS: dict[str, dict[str, float]] = {
    "NVIDIA A100-SXM4-40GB": {"bf16": 312e12, "fp32": 19.5e12},
    "NVIDIA A100-SXM4-80GB": {"bf16": 312e12, "fp32": 19.5e12},
    "NVIDIA A100-PCIE-40GB": {"bf16": 312e12, "fp32": 19.5e12},
    "NVIDIA A100 80GB PCIe": {"bf16": 312e12, "fp32": 19.5e12},
    "NVIDIA H100 80GB HBM3": {"bf16": 989.4e12, "fp32": 66.9e12},
    "NVIDIA H100 PCIe": {"bf16": 756e12, "fp32": 51.2e12},
    "NVIDIA H200": {"bf16": 989.4e12, "fp32": 66.9e12},
    "NVIDIA L40S": {"bf16": 362e12, "fp32": 91.6e12},
    "AMD Instinct MI300X": {"bf16": 1307.4e12, "fp32": 163.4e12},
}
"""Dense peaks a device by the name that torch gives it, from the makers' data sheets; fp32 without tensor cores, as torch runs it by default."""
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True)
class Speed:
    """What turns tokens/s into a share of the peak. `ranks_peak` is of all ranks together; 0 where no peak is known."""

    trained: int
    frozen: int
    ranks: int
    peak: float
    device: str
    precision: str

    @property
    def flops_per_token(self) -> float:
        return 6.0 * self.trained + 4.0 * self.frozen

    def mfu(self, tokens_per_s: float) -> float | None:
        """The share, or None where the device's peak is not known."""
        return tokens_per_s * self.flops_per_token / (self.ranks * self.peak) if self.peak else None

    def formula(self) -> str:
        """The formula with this run's numbers, or why there is no figure."""
        if not self.peak:
            return f"no mfu: no peak speed is known of {self.device} in {self.precision}"
        weights = f"6 x {self.trained / 1e6:.1f} M trained + 4 x {self.frozen / 1e6:.1f} M frozen weights"
        return f"mfu = tokens/s x ({weights}) / ({self.ranks} x {self.peak / 1e12:.0f} TFLOP/s, {self.device}, {self.precision})"


def multiplied(shapes: dict[str, tuple[int, ...]], lookups: set[str]) -> int:
    """How many weights of these are multiplied for each token. Pure."""
    return sum(math.prod(shape) for name, shape in shapes.items() if len(shape) > 1 and name not in lookups)


def speed_of(engine: Any) -> Speed:
    """The speed facts of an engine's model on this rank's device."""
    device, precision = engine.peers.device, engine.precision
    name = device.type
    if device.type == "cuda":
        import torch

        name = torch.cuda.get_device_name(device)
    every, trained = engine.shapes(trainable=False), engine.shapes(trainable=True)
    lookups = engine.lookups()
    active = multiplied(trained, lookups)
    peak = PEAK_FLOPS.get(name, {}).get(precision, 0.0)
    if any(getattr(engine.model.config, key, None) for key in _EXPERTS):
        peak, name = 0.0, f"a mixture of experts on {name}"  # a token meets some of the weights only
    elif getattr(engine.settings, "load_in_4bit", False):
        peak, name = 0.0, f"weights in 4 bits on {name}"  # packed: their shapes do not say how many there are
    return Speed(active, multiplied(every, lookups) - active, engine.peers.place.world_size, peak, name, precision)
