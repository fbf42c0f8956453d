"""One real cluster, one login installation, one site with two users for all tests of this folder.

The long runs (training through a preemption and through the loss of a node) begin with the session where their tests are among those chosen, and
the tests that look at them come last: everything else happens meanwhile.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from journeys import LongRuns
from lab import ROOT, Lab, Person, install_login, moody_slurm
from labcluster import Cluster, free_place
from labsites import Sites

from tests.accounts import accounts

NAMES = ("tpalice", "tpbob", "tpservice")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of the long runs last."""
    items.sort(key=lambda item: bool({"long_runs", "after_long_runs"} & set(getattr(item, "fixturenames", ()))))


@pytest.fixture(scope="session")
def scratch() -> Iterator[Path]:
    """A folder with a short path that every user can enter."""
    path = Path(tempfile.mkdtemp(prefix="tp-cl-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def images() -> dict[str, Path]:
    """The two SIFs, by runtime id: one of them is two runtimes."""
    cache = Path(os.environ.get("TP_BUILD_CACHE") or "/var/cache/tuneplane-hpc")
    found = {"general-1": cache / "general.sif", "deepspeed-0.19.8": cache / "training.sif"}
    found["trl-1.16.0"] = found["deepspeed-0.19.8"]
    missing = [str(p) for p in found.values() if not p.is_file()]
    assert not missing, f"{', '.join(missing)} missing: run `make setup` as root"
    assert os.getuid() == 0, "tests/cluster starts a Slurm and becomes other users: run it as root"
    return {name: path.resolve() for name, path in found.items()}


@pytest.fixture(scope="session")
def people() -> Iterator[dict[str, Person]]:
    """Ordinary Unix accounts, made where they do not exist; who leaves last removes those that a session made."""
    with accounts(NAMES, home=True):
        yield {name: Person.of(name) for name in NAMES}


@pytest.fixture(scope="session")
def cluster(scratch: Path, images: dict[str, Path], people: dict[str, Person]) -> Iterator[Cluster]:
    """Four nodes with accounting; ended by its own pid files whatever happens."""
    with free_place() as (port, prefix):
        it = Cluster(scratch / "slurm", port, prefix)
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # a TERM, too, leaves through `finally`
        try:
            it.up()
            for name in people:
                it.add_account(name)
            yield it
        finally:
            it.down()
            signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def login(scratch: Path) -> Path:
    """`bin` of the login node's installation."""
    (scratch / "login").mkdir(mode=0o755)
    return install_login(scratch / "login")


@pytest.fixture(scope="session")
def sites(scratch: Path, cluster: Cluster, login: Path, images: dict[str, Path], people: dict[str, Person]) -> Sites:
    (scratch / "projects").mkdir(mode=0o755)
    moody_slurm(scratch / "moody")
    return Sites(scratch, cluster, login, images, people)


@pytest.fixture(scope="session")
def lab(sites: Sites) -> Lab:
    """The site: advisory admission, two users with a project each, both runtimes, a tiny model and rows to train it on."""
    lab = sites.new("root", runtimes=("general-1", "deepspeed-0.19.8", "trl-1.16.0"))
    model, rows = lab.root.cache / "models" / "tiny", lab.root.cache / "sums.jsonl"
    lab.as_user(ROOT, "python", "-m", "tuneplane.training.tiny", model, cwd=sites.scratch)
    lab.as_user(
        ROOT, "python", "-m", "tuneplane.training.sums", rows, "--rows", "256", "--seed", "7", cwd=sites.scratch
    )
    for name in ("tpalice", "tpbob"):
        lab.new_project(sites.people[name])
    return lab


@pytest.fixture(scope="session")
def alice(people: dict[str, Person]) -> Person:
    return people["tpalice"]


@pytest.fixture(scope="session")
def bob(people: dict[str, Person]) -> Person:
    return people["tpbob"]


@pytest.fixture(scope="session")
def long_runs(lab: Lab, alice: Person) -> Iterator[LongRuns]:
    """Runs that take a minute or two, started together. `finished(name)` waits for one of them."""
    runs = LongRuns(lab, alice)
    yield runs
    runs.stop()


@pytest.fixture(scope="session")
def after_long_runs(request: pytest.FixtureRequest) -> None:
    """Node 4 belongs to who asks: the long runs that need it, where there are any, are over."""
    if any("long_runs" in getattr(item, "fixturenames", ()) for item in request.session.items):
        for name in ("bereft", "beheaded"):
            request.getfixturevalue("long_runs").finished(name)


@pytest.fixture(scope="session", autouse=True)
def _long_runs_begin_first(request: pytest.FixtureRequest) -> None:
    if any("long_runs" in getattr(item, "fixturenames", ()) for item in request.session.items):
        request.getfixturevalue("long_runs")
