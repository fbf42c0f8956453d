"""A storage root of the caller's own, folders of rows, and two users for what modes promise."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tuneplane.contract.layout import StorageRoot

from hpc.data.push import Pusher, push_dataset
from hpc.errors import Refusal, Refusals
from hpc.registry.publish import Published
from hpc.site.layout import init_root
from hpc.site.sitefile import Site, load_site
from hpc.site.users import User, find_user, real_user
from tests.accounts import accounts
from tests.launch.conftest import make_run

__all__ = ["make_run"]

NOW = "2026-01-02T03:04:05.000000Z"
NAMES, USERS = ("tpdata_a", "tpdata_b"), "tpdata_users"


def clear(path: Path) -> None:
    """Remove a tree with read-only folders, whoever we are."""
    for folder, _, _ in os.walk(path):
        os.chmod(folder, 0o700)
    shutil.rmtree(path)


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder that everybody can enter."""
    path = Path(tempfile.mkdtemp(prefix="tp-data-test-"))
    path.chmod(0o755)
    yield path
    clear(path)


@pytest.fixture
def root(scratch: Path) -> StorageRoot:
    return init_root(scratch / "root", name="lab").root


@pytest.fixture
def site(root: StorageRoot) -> Site:
    return load_site(root)


@pytest.fixture
def me() -> User:
    return real_user()


@pytest.fixture
def by(root: StorageRoot, site: Site, me: User) -> Pusher:
    return Pusher(root, site, me, NOW)


def rows(count: int, start: int = 0, **more: Any) -> list[dict[str, Any]]:
    return [{"prompt": f"What is {i} and {i}?", "completion": str(2 * i), **more} for i in range(start, start + count)]


def write_rows(path: Path, lines: Sequence[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in lines))
    return path


@pytest.fixture
def folder(scratch: Path) -> Path:
    """100 training rows, 10 validation rows, a card."""
    base = scratch / "sums"
    write_rows(base / "train.jsonl", rows(100))
    write_rows(base / "validation.jsonl", rows(10, 100))
    (base / "README.md").write_text("# Sums\n")
    return base


@pytest.fixture
def put(by: Pusher) -> Callable[..., Published]:
    """put(folder, "name", "1.0"): publish as the caller."""

    def do(source: Path, name: str = "sums", version: str = "1.0", **more: Any) -> Published:
        return push_dataset(by, name, version, source, **more)

    return do


def codes(call: Callable[[], object]) -> list[str]:
    """The codes with which `call` is refused; [] if it is not."""
    try:
        call()
    except Refusal as fault:
        return [fault.code]
    except Refusals as faults:
        return [f.code for f in faults.items]
    return []


@pytest.fixture(scope="session")
def people() -> Iterator[tuple[User, User]]:
    """Two ordinary Unix users who share a group."""
    with accounts(NAMES, group=USERS):
        yield find_user(NAMES[0]), find_user(NAMES[1])


def as_user(user: User, call: Callable[[], object], groups: Sequence[int] = ()) -> str:
    """Run `call` in a child that is `user`: what it returned, or the code with which it was refused, as text."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups(list(groups))
            os.setgid(user.gid)
            os.setuid(user.uid)
            try:
                said = str(call())
            except Refusal as fault:
                said = fault.code
            except Refusals as faults:
                said = faults.items[0].code
            os.write(writer, said.encode())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    with os.fdopen(reader) as stream:
        return stream.read()
