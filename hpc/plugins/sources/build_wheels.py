"""Build the shipped plugins' wheels, the same bytes each time: `python hpc/plugins/sources/build_wheels.py [--check]`."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SHIPPED = HERE.parent / "shipped"
EPOCH = "1767225600"
"""2026-01-01, the time of every member."""
_HOOK = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"


def projects() -> dict[str, Path]:
    """Shipped package's name → its wheel's project."""
    return {p.parent.name.replace("_", "-"): p.parent for p in sorted(HERE.glob("*/pyproject.toml"))}


def build(project: Path, into: Path) -> Path:
    """The wheel of one project, built from a copy so that the checkout stays as it is. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory(prefix="wheel-") as scratch:
        copy = Path(scratch) / project.name
        shutil.copytree(project, copy, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"))
        for path in copy.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        env = os.environ | {"SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH", EPOCH)}
        done = subprocess.run(
            [sys.executable, "-c", _HOOK, str(into)], cwd=copy, env=env, umask=0o022, check=True, stdout=subprocess.PIPE
        )
    return into / done.stdout.decode().splitlines()[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the committed wheels, change nothing")
    check, differs = parser.parse_args().check, False
    for name, project in projects().items():
        with tempfile.TemporaryDirectory(prefix="wheels-") as scratch:
            wheel = build(project, Path(scratch))
            there = SHIPPED / name / wheel.name
            same = there.exists() and there.read_bytes() == wheel.read_bytes()
            differs |= not same
            if not check:
                shutil.copyfile(wheel, there)
            print(f"{there.relative_to(HERE.parent)}: {'unchanged' if same else 'differs' if check else 'written'}")
    return 1 if check and differs else 0


if __name__ == "__main__":
    sys.exit(main())
