"""Fixtures of the evidence room."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from evidencelab import Lab, RunMaker


@pytest.fixture
def lab(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Lab:
    made = Lab(tmp_path, capsys)
    monkeypatch.setenv("TUNEPLANE_STORAGE_ROOT", str(made.root.path))
    return made


@pytest.fixture
def make(lab: Lab) -> Callable[..., RunMaker]:
    return lab.make
