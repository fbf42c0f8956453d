"""Fixtures of the training tests: a tiny model, rows with known answers, one torch thread."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model with its tokenizer, made by the program that the demo uses."""
    out = tmp_path_factory.mktemp("tiny") / "model"
    subprocess.run([sys.executable, "-m", "tuneplane.training.tiny", str(out)], check=True, capture_output=True)
    return out


@pytest.fixture(scope="session")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 small additions; the held-out ones lie beside them."""
    from tuneplane.training.sums import held_out_path, make

    out = tmp_path_factory.mktemp("rows") / "sums.jsonl"
    train, held_out = make(200, 20, seed=0)
    out.write_text("\n".join(train) + "\n")
    held_out_path(out).write_text("\n".join(held_out) + "\n")
    return out


@pytest.fixture(scope="session")
def wrong_sums(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """200 additions of a form with far-off wrong sums, written once a form; 20 held-out ones lie beside them."""
    from tuneplane.training.sums import held_out_path, make

    folder = tmp_path_factory.mktemp("forms")

    def rows(form: str) -> Path:
        out = folder / f"{form}.jsonl"
        if not out.exists():
            for path, lines in zip((out, held_out_path(out)), make(200, 20, 0, form, "far"), strict=True):
                path.write_text("\n".join(lines) + "\n")
        return out

    return rows


@pytest.fixture(scope="session")
def lessons(tmp_path_factory: pytest.TempPathFactory, tiny: Path, wrong_sums: Callable[[str], Path], warm: Any) -> Any:
    """Short runs of the methods, each made once and looked at in several tests."""
    from lessons import Lessons

    return Lessons(tmp_path_factory, tiny, wrong_sums, warm)


@pytest.fixture(scope="session")
def warm() -> Iterator[Any]:
    """A process that has imported torch, DeepSpeed and transformers, and forks ranks."""
    from ranks import ROOT
    from warm import WarmServer

    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "hpc" / "kernel"), "OMP_NUM_THREADS": "1"}
    server = WarmServer(env | {"LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1"})
    yield server
    server.close()


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """The tiny model's tokenizer, without the model."""
    from tuneplane.training.tiny import make_tokenizer

    return make_tokenizer()
