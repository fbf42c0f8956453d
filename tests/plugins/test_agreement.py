"""What validation accepts, the job accepts: the two rooms read a package's import names and wheels alike, each with its own code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from tuneplane.plugins import locked
from tuneplane.plugins.wheel import read_wheel

from hpc.plugins.layout import RESERVED
from hpc.plugins.standard import STANDARD
from hpc.plugins.validate import Report, validate
from tests.plugins.making import algorithm, build_case, cases, cleaner, wheel_members

SHIPPED = Path(__file__).parents[2] / "hpc" / "plugins" / "shipped"


def in_the_job(folder: Path, report: Report) -> locked.LockedPlugin:
    manifest = report.facts["manifest"]
    name = manifest["name"]
    return locked.LockedPlugin(
        f"alice/{name}", manifest["version"], report.digest, name, folder, {"manifest": manifest}
    )


def agree(folder: Path) -> None:
    report = validate(folder)
    assert report.publishable is True, list(map(str, report.errors))
    plugin = in_the_job(folder, report)
    locked.verify(plugin)
    locked.check_collisions([plugin])
    assert list(locked.import_roots(plugin)) == report.facts["import_roots"]


@pytest.mark.parametrize(
    "case", [c for c in cases("layout") if c["id"] in ("l01", "l03", "l09", "w01", "w14", "w16")], ids=lambda c: c["id"]
)
def test_the_vectors_that_run_in_a_job(tmp_path: Path, case: dict[str, Any]) -> None:
    agree(build_case(tmp_path, case))


@pytest.mark.parametrize("name", ["jsonl-filter", "text-records"])
def test_the_shipped_packages(name: str) -> None:
    agree(SHIPPED / name)


def test_sources_of_every_shape(tmp_path: Path) -> None:
    files = {
        "sub/deep/x.py": "",
        "data/x.txt": "",
        "not-a-name/x.py": "",
        "README.md": "",
        "fast.so": "",
        "__pycache__/patch.cpython-311.pyc": "x",
    }
    agree(algorithm(tmp_path, files))


def test_wheels_of_every_shape(tmp_path: Path) -> None:
    agree(
        cleaner(
            tmp_path,
            wheel_members(
                more={"pkg/__init__.py": "", "pkg/sub/x.py": "", "pkg/data.json": "{}", "only_data/x.txt": ""}
            ),
        )
    )


def test_the_entry_point_is_the_same(tmp_path: Path) -> None:
    folder = cleaner(tmp_path, wheel_members(metadata="Requires-Python: >=3.12\nRequires-Dist: orjson\n"))
    facts, wheel = validate(folder).facts["wheel"], read_wheel(str(next(folder.glob("*.whl"))), "plugin x")
    assert (wheel.requires_python, list(wheel.requires_dist)) == (facts["requires_python"], facts["requires_dist"])


def test_what_is_reserved_in_the_job_is_refused_before() -> None:
    assert locked.RESERVED <= RESERVED


def test_the_standard_library_of_the_python_that_runs_here_is_known() -> None:
    assert sys.stdlib_module_names <= STANDARD
    assert {"imp", "asynchat", "distutils", "telnetlib", "annotationlib", "compression"} <= STANDARD
