"""What a wheel carries is what the checkout has, byte code or not."""

from __future__ import annotations

import compileall
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tuneplane.record.digest import directory_digest_v1

from hpc.catalog.shelf import Catalogue
from hpc.catalog.shipped import shipped

REPO = Path(__file__).resolve().parents[2]
PARTS = ("pyproject.toml", "setup.cfg", "README.md", "LICENSE", "hpc", "recipes", "sbatch_templates", "containers")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, unpacked and byte-compiled as an installer does it."""
    work = tmp_path_factory.mktemp("wheel")
    (work / "src").mkdir()
    for part in PARTS:
        source = REPO / part
        if source.is_dir():
            shutil.copytree(source, work / "src" / part, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(source, work / "src" / part)
    code = "import setuptools.build_meta as b; b.build_wheel('../out')"
    subprocess.run([sys.executable, "-c", code], cwd=work / "src", check=True, capture_output=True)
    (wheel,) = (work / "out").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(work / "site")
    compileall.compile_dir(work / "site", quiet=2)
    return work / "site"


def test_the_recipes_of_wheel_and_checkout_have_the_same_digests(installed: Path) -> None:
    theirs = Catalogue(installed / "hpc" / "_shipped" / "recipes")
    ours = Catalogue.shipped()
    assert list((installed / "hpc/_shipped/recipes/deepspeed/sft/template/__pycache__").glob("*.pyc"))
    assert theirs.ids() == ours.ids()
    for recipe_id in ours.ids():
        one, other = ours.get(recipe_id), theirs.get(recipe_id)
        assert (one.digest, one.template_digest) == (other.digest, other.template_digest)
        assert one.template_files() == other.template_files()


def test_an_installed_wheel_finds_its_own_data(installed: Path) -> None:
    code = "from hpc.catalog.shipped import shipped, KINDS; print(*[shipped(k) for k in KINDS], sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd="/",
        env={"PYTHONPATH": str(installed)},
        check=True,
        capture_output=True,
        text=True,
    )
    kinds = ("recipes", "sbatch_templates", "containers", "plugins")
    assert done.stdout.splitlines() == [str(installed / "hpc" / "_shipped" / k) for k in kinds]
    assert shipped("recipes") == REPO / "recipes"
    packages = sorted(p.parent.name for p in (installed / "hpc/_shipped/plugins").glob("*/plugin.yaml"))
    assert packages == ["framework-nemo-rl", "framework-openrlhf", "framework-verl", "jsonl-filter", "text-records"]
    for name in packages:
        parts = [directory_digest_v1(base / name) for base in (installed / "hpc/_shipped/plugins", shipped("plugins"))]
        assert parts[0] == parts[1]
