"""Models without weights, and runs that ended, for the planner's tests."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from hollow import LLAMA, llama_shapes, write_safetensors


@pytest.fixture
def make_model(tmp_path: Path) -> Callable[..., Path]:
    """A model's folder: config.json and a safetensors file of zeros."""

    def make(name: str = "model", *, head: bool = False, **changes: Any) -> Path:
        config = LLAMA | changes
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        write_safetensors(folder / "model.safetensors", llama_shapes(LLAMA | changes, head=head))
        return folder

    return make
