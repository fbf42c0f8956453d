"""A storage root of the caller's own, and one that two real users share."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tuneplane.contract.layout import StorageRoot

from hpc.registry.publish import Published, publish
from hpc.registry.shelf import Shelf
from hpc.site.layout import init_root
from hpc.site.sitefile import Site, load_site
from hpc.site.users import User, find_user, real_user
from tests.accounts import accounts
from tests.registry.toys import CORE, NOW, TOY, write_toy

NAMES = ("tpreg_a", "tpreg_b")
GROUP = "tpreg_users"


def clear(path: Path) -> None:
    """Remove a tree with read-only folders, whoever we are."""
    for folder, _, _ in os.walk(path):
        os.chmod(folder, 0o700)
    shutil.rmtree(path)


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder that everybody can enter."""
    path = Path(tempfile.mkdtemp(prefix="tp-registry-test-"))
    path.chmod(0o755)
    yield path
    clear(path)


@pytest.fixture
def root(scratch: Path) -> StorageRoot:
    """The caller's own root."""
    return init_root(scratch / "root", name="lab").root


@pytest.fixture
def site(root: StorageRoot) -> Site:
    return load_site(root)


@pytest.fixture
def me() -> User:
    return real_user()


@pytest.fixture
def shelf(root: StorageRoot, site: Site) -> Shelf:
    return Shelf(root, TOY, site=site)


@pytest.fixture
def put(root: StorageRoot, site: Site, me: User, scratch: Path) -> Callable[..., Published]:
    """Publish a toy of the caller's: put("1.0.0", name="toy", files={…})."""

    def do(version: str = "1.0.0", name: str = "toy", **more: object) -> Published:
        starts = str(more.pop("starts", "enabled"))
        now = str(more.pop("now", NOW))
        source = write_toy(Path(tempfile.mkdtemp(dir=scratch)), name, version, **more)  # type: ignore[arg-type]
        return publish(
            root, TOY, source, user=me, owner=me.name, site=site, method="publish", starts=starts, core_version=CORE, now=now
        )  # fmt: skip

    return do


@pytest.fixture(scope="session")
def people() -> Iterator[tuple[User, User]]:
    """Two ordinary Unix users who share a group; made for the session where they do not exist."""
    with accounts(NAMES, group=GROUP):
        yield find_user(NAMES[0]), find_user(NAMES[1])
