"""How much memory a rank took: the process on its machine, and torch's allocator on its GPU. Measured, to hold forecasts against.

`note_start` is called just before the model is loaded, when every library is there; what the process holds then is the price of Python and its
libraries, and not of the model.
"""

from __future__ import annotations

from typing import Any

_STATUS = "/proc/self/status"
_before: int = 0  # a fact of this process, as the kernel's own figures are


def resident(path: str = _STATUS) -> tuple[int, int]:
    """(bytes held now, the most that were ever held) by this process; Linux, resolution 1 KiB."""
    found = {"VmRSS": 0, "VmHWM": 0}
    with open(path, encoding="ascii", errors="replace") as stream:
        for line in stream:
            name, _, rest = line.partition(":")
            if name in found:
                found[name] = int(rest.split()[0]) << 10
    return found["VmRSS"], found["VmHWM"]


def note_start() -> None:
    """Remember what the process holds before there is a model."""
    global _before
    _before = resident()[0]


def seen(device: Any) -> dict[str, int]:
    """Bytes: `rss_before` the model, `rss_peak` so far; on a GPU the most that was allocated to tensors, and reserved from the device for them."""
    out = {"rss_before": _before, "rss_peak": resident()[1]}
    if device.type == "cuda":
        import torch

        out["gpu_allocated"] = torch.cuda.max_memory_allocated(device)
        out["gpu_reserved"] = torch.cuda.max_memory_reserved(device)
    return out
