"""A hub of our own over real HTTP, a storage root, and a clock that does not wait."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fakehub import FakeHub
from tuneplane.contract.layout import StorageRoot

from hpc.data.hub_client import HuggingFace
from hpc.data.hub_names import HubCache, Repo, RepoType
from hpc.data.prefetch import Clockwork, Prefetched, Watch, prefetch
from hpc.site.layout import init_root

NOW = "2026-01-02T03:04:05Z"
CONFIG = b'{"model_type": "llama", "hidden_size": 8}'
WEIGHTS = bytes(range(256)) * 300
MODEL = {
    "config.json": CONFIG,
    "model.safetensors": WEIGHTS,
    "tokenizer.json": b'{"version": "1.0"}',
    "pytorch_model.bin": b"pickle" * 1000,
    "modeling_x.py": b"import os",
    "onnx/model.onnx": b"onnx",
    "README.md": b"# A model",
    ".gitattributes": b"* text",
}


@pytest.fixture(autouse=True)
def _online(monkeypatch: pytest.MonkeyPatch) -> None:
    """A login node, whatever tests of training left behind in this process: they are offline, and the library reads that once."""
    from huggingface_hub import constants

    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    made = FakeHub()
    yield made
    made.close()


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder that everybody can enter."""
    path = Path(tempfile.mkdtemp(prefix="tp-hub-test-"))
    path.chmod(0o755)
    yield path
    for folder, _, _ in os.walk(path):
        os.chmod(folder, 0o700)
    shutil.rmtree(path)


@pytest.fixture
def root(scratch: Path) -> StorageRoot:
    return init_root(scratch / "root", name="lab").root


@pytest.fixture
def cache(root: StorageRoot) -> HubCache:
    return HubCache(root)


@pytest.fixture
def slept() -> list[float]:
    """Every wait that was asked for; none of them was waited."""
    return []


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def get(hub: FakeHub, cache: HubCache, slept: list[float], said: list[str]) -> Callable[..., Prefetched]:
    """Fetch from the hub: get("org/tiny", revision="", kind="model", …)."""
    ticks = itertools.count()

    def do(name: str = "org/tiny", revision: str = "", kind: RepoType = "model", **more: Any) -> Prefetched:
        time = Clockwork(lambda: next(ticks) / 1000, slept.append, NOW)
        watch = more.pop("watch", Watch(said.append))
        user = more.pop("user", "ann")
        return prefetch(
            cache, HuggingFace(hub.endpoint), Repo(kind, name), revision, user=user, time=time, watch=watch, **more
        )

    return do
