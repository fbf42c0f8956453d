"""`tp` typed in this process, on a storage root whose Slurm is the one of files."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace

import pytest
from builder import RunMaker
from conftest import ME
from fakeslurm import FakeSlurm
from tuneplane.contract.layout import StorageRoot

from hpc.cli import main as cli

START = 1772366400


class Tp:
    """Runs `tp` in this process; `out`, `err` and `code` of the last call."""

    def __init__(self, root: StorageRoot, fake: FakeSlurm, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self.fake, self._capsys = root, fake, capsys

    def __call__(self, *argv: str) -> SimpleNamespace:
        with pytest.raises(SystemExit) as ended:
            cli.main(list(argv))
        captured = self._capsys.readouterr()
        return SimpleNamespace(
            out=captured.out, err=captured.err, code=ended.value.code, json=lambda: json.loads(captured.out)
        )

    def make(self, run_id: str = "run-0a1b2c3d", exp: str = "sft", **kwargs: object) -> RunMaker:
        return RunMaker(self.root, owner=ME, exp=exp, run_id=run_id, clock=time.time() - START, **kwargs)  # type: ignore[arg-type]

    def live(self, run_id: str = "run-0a1b2c3d", exp: str = "sft", **job: object) -> RunMaker:
        maker = self.make(run_id, exp)
        maker.job_id = str(
            self.fake.add(name=f"{exp}.{run_id}.0", comment=f"tp:{run_id}:{maker.nonce}", user=ME, **job)
        )
        return maker.package().admit().submit()
