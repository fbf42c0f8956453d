"""Storage roots that other Unix users can reach, and two real users to reach them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tuneplane.contract.layout import StorageRoot

from hpc.site.layout import init_root
from hpc.site.users import User, find_user
from tests.accounts import accounts

NAMES = ("tpuser_a", "tpuser_b")
GROUP = "tptest_users"


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder that everybody can enter; pytest's own are closed to other users."""
    path = Path(tempfile.mkdtemp(prefix="tp-site-test-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def root(scratch: Path) -> StorageRoot:
    """The caller's own root."""
    return init_root(scratch / "root", name="lab").root


@pytest.fixture(scope="session")
def people() -> Iterator[tuple[User, User]]:
    """Two ordinary Unix users who share a group; made for the session where they do not exist."""
    with accounts(NAMES, group=GROUP):
        yield find_user(NAMES[0]), find_user(NAMES[1])


@pytest.fixture(scope="session")
def users_group(people: tuple[User, User]) -> str:
    """The Unix group that both people are in."""
    return GROUP
