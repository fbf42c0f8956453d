"""Storage roots that other Unix users can reach, and two real users to reach them."""

from __future__ import annotations

import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tuneplane.contract.layout import StorageRoot

from hpc.site.layout import init_root
from hpc.site.users import User, find_user

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
    made = [n for n in NAMES if not _exists(n)]
    subprocess.run(["groupadd", "--force", GROUP], check=True)
    for name in made:
        subprocess.run(["useradd", "--no-create-home", "--groups", GROUP, "--shell", "/bin/bash", name], check=True)
    yield find_user(NAMES[0]), find_user(NAMES[1])
    for name in made:
        subprocess.run(["userdel", name], check=True, capture_output=True)
    subprocess.run(["groupdel", GROUP], check=False, capture_output=True)


@pytest.fixture(scope="session")
def users_group(people: tuple[User, User]) -> str:
    """The Unix group that both people are in."""
    return GROUP


def _exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True
