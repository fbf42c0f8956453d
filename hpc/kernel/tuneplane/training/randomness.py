"""A rank's random numbers (Python, numpy, torch, its GPU) as JSON, and back."""

from __future__ import annotations

import base64
import random
from typing import Any


def random_state(device: Any) -> dict[str, Any]:
    """The state of every generator that this rank draws from."""
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
    """Go on drawing where `random_state` was taken."""
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
