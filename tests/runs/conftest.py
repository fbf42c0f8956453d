"""Fixtures of the runs room."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tuneplane.contract.layout import StorageRoot

sys.path.insert(0, str(Path(__file__).parent))

from builder import RunMaker

if TYPE_CHECKING:
    from fakeslurm import FakeSlurm
    from runcommands import Tp

ME = pwd.getpwuid(os.getuid()).pw_name


@pytest.fixture
def root(tmp_path: Path) -> StorageRoot:
    """A storage root with the folders that readers need, of one user: whoever runs the tests."""
    root = StorageRoot(tmp_path / "root")
    for folder in (root.site, root.owner_runs(ME), root.user_state(ME), root.index):
        folder.mkdir(parents=True)
    return root


@pytest.fixture
def make_run(root: StorageRoot) -> Callable[..., RunMaker]:
    """A run maker for one of my runs; the run id may be given."""

    def make(run_id: str = "run-0a1b2c3d", exp: str = "sft", **kwargs: object) -> RunMaker:
        return RunMaker(root, owner=ME, exp=exp, run_id=run_id, **kwargs)  # type: ignore[arg-type]

    return make


@pytest.fixture
def tp(
    tmp_path: Path, fake_slurm: FakeSlurm, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Tp:
    """The command on a root of its own, with the Slurm of files."""
    from runcommands import Tp

    from hpc.site.layout import init_root

    root = init_root(
        tmp_path / "root", name="test", fleet="slurm", bin_dir=str(fake_slurm.bin), conf=fake_slurm.conf
    ).root
    monkeypatch.setenv("TUNEPLANE_STORAGE_ROOT", str(root.path))
    return Tp(root, fake_slurm, capsys)
