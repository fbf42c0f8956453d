"""The shipped packages as they travel: the committed wheel is its source, the page's checks pass, an older Python is refused by its own code."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import tuneplane
import yaml
from tuneplane.plugins import requirements
from tuneplane.plugins.locked import read_locked
from tuneplane.plugins.provider import target_of
from tuneplane.record.digest import directory_digest_v1

REPO = Path(__file__).parents[2]
SHIPPED, SOURCES = REPO / "hpc/plugins/shipped", REPO / "hpc/plugins/sources"
PACKAGES = {"jsonl-filter": "jsonl_filter", "text-records": "text_records"}
RECORDS = {"jsonl-filter": 2, "text-records": 1}


def manifest(name: str) -> dict[str, Any]:
    value: dict[str, Any] = yaml.safe_load((SHIPPED / name / "plugin.yaml").read_text())
    return value


def wheel(name: str) -> Path:
    return SHIPPED / name / str(manifest(name)["wheel"])


@pytest.mark.parametrize("name", PACKAGES)
def test_the_package_is_what_the_page_says(name: str) -> None:
    found = manifest(name)
    assert (found["name"], found["capability"], found["execution"], found["api"]) == (name, "data-prep", "job", "1")
    assert found["requires"] == {
        "core": ">=0.3.56,<1", "python": ">=3.12", "frameworks": {"custom": ""}, "methods": ["custom/custom"],
    }  # fmt: skip
    files = sorted(p.name for p in (SHIPPED / name).iterdir())
    assert files == sorted(["README.md", "icon.png", "plugin.yaml", found["wheel"]])
    assert (SHIPPED / name / "icon.png").stat().st_size <= 64 << 10
    assert (SHIPPED / name / "README.md").stat().st_size <= 64_000


@pytest.mark.parametrize("name", PACKAGES)
def test_the_package_passes_the_validator_without_a_word(name: str) -> None:
    from hpc.plugins.validate import validate

    report = validate(SHIPPED / name)
    assert (report.errors, report.warnings) == ([], [])
    assert report.facts["import_roots"] == [f"tuneplane_{PACKAGES[name]}"]


@pytest.mark.parametrize("name", PACKAGES)
def test_the_wheel_holds_its_sources_and_nothing_else(name: str) -> None:
    project = SOURCES / PACKAGES[name]
    package = f"tuneplane_{PACKAGES[name]}"
    sources = {f"{package}/{p.name}": p.read_bytes() for p in (project / package).glob("*.py")}
    with zipfile.ZipFile(wheel(name)) as archive:
        members = {n: archive.read(n) for n in archive.namelist()}
    info = f"{package}-1.0.0.dist-info"
    assert {n: data for n, data in members.items() if not n.startswith(info)} == sources
    assert {n for n in members if n.startswith(info)} == {
        f"{info}/{n}" for n in ("METADATA", "WHEEL", "entry_points.txt", "top_level.txt", "RECORD")
    }
    assert b"Requires-Python: >=3.12" in members[f"{info}/METADATA"]
    assert b"Requires-Dist" not in members[f"{info}/METADATA"]


@pytest.mark.parametrize("name", PACKAGES)
def test_record_lists_every_member_with_its_digest(name: str) -> None:
    with zipfile.ZipFile(wheel(name)) as archive:
        members = {n: archive.read(n) for n in archive.namelist()}
    record = next(n for n in members if n.endswith("/RECORD"))
    rows = {path: (digest, size) for path, digest, size in csv.reader(members[record].decode().splitlines())}
    want = {record: ("", "")}
    for path, data in members.items():
        if path != record:
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            want[path] = (f"sha256={digest}", str(len(data)))
    assert rows == want


def test_building_again_gives_the_same_members_and_twice_the_same_bytes(tmp_path: Path) -> None:
    """Another setuptools may name itself in WHEEL; everything else, and two builds here, are equal."""
    sys.path.insert(0, str(SOURCES))
    try:
        from build_wheels import build, projects
    finally:
        sys.path.remove(str(SOURCES))
    assert set(projects()) == set(PACKAGES)
    for name, project in projects().items():
        made = []
        for turn in ("one", "two"):
            (tmp_path / turn).mkdir(exist_ok=True)
            made.append(build(project, tmp_path / turn))
        assert made[0].read_bytes() == made[1].read_bytes()
        assert made[0].name == wheel(name).name
        contents = []
        for path in (made[0], wheel(name)):
            with zipfile.ZipFile(path) as archive:
                contents.append({
                    n: archive.read(n) for n in archive.namelist() if not n.endswith(("/WHEEL", "/RECORD"))
                })  # fmt: skip
        assert contents[0] == contents[1]


def work_with(name: str, base: Path) -> Path:
    """A work folder as a package has it, with this package locked."""
    folder = base / "work/tuneplane_plugins" / name
    shutil.copytree(SHIPPED / name, folder)
    triple = {"id": f"tuneplane/{name}", "version": "1.0.0", "digest": directory_digest_v1(folder)}
    records = base / "work/.tuneplane"
    records.mkdir()
    (records / "jobspec.json").write_text(json.dumps({"spec": {"plugins": [triple]}}))
    row = triple | {"leaf": name, "digest_v2": "", "facts": {"manifest": manifest(name)}}
    (records / "plugins.json").write_text(json.dumps({"schema": "tuneplane-hpc/locked-plugins/v1", "plugins": [row]}))
    (base / "in.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    (base / "request.json").write_text('{"api": "tuneplane/transform/v1", "inputs": {"d": "in.jsonl"}}')
    return base / "work"


def transform(name: str, base: Path) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "tuneplane.transforms", "--plugin", f"tuneplane/{name}", "--request", base / "request.json",
         "--output", base / "dataset", "--report", base / "report.json", "--work-dir", base / "work"],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(tuneplane.__file__).parents[1])},
        cwd=base, capture_output=True, check=False,
    )  # fmt: skip
    report: dict[str, Any] = json.loads((base / "report.json").read_text())
    return done.returncode, report


@pytest.mark.parametrize("name", PACKAGES)
def test_a_python_below_3_12_is_refused_by_its_own_code(name: str, tmp_path: Path) -> None:
    (plugin,) = read_locked(work_with(name, tmp_path))
    assert requirements.unmet_python(plugin, "3.12.0") == []
    assert requirements.unmet_python(plugin, "3.11.14") == [
        f"plugin tuneplane/{name}@1.0.0 requires Python >=3.12 (requires.python), this one is 3.11.14"
    ]
    code, report = transform(name, tmp_path)
    if sys.version_info < (3, 12):
        assert (code, report["status"], report["reason"]["code"]) == (1, "refused", "E-JOB-033")
        assert not (tmp_path / "dataset").exists()
    else:
        assert (code, report["status"], report["records"]) == (0, "succeeded", RECORDS[name])


@pytest.mark.parametrize("name", PACKAGES)
def test_the_wheels_provider_runs_from_the_archive(name: str, tmp_path: Path) -> None:
    """In whatever Python this is: the provider's module is imported from the wheel and called as the worker calls it."""
    (plugin,) = read_locked(work_with(name, tmp_path))
    module, _, attribute = target_of(plugin).partition(":")
    code = (
        "import sys, importlib, pathlib; sys.path.insert(0, sys.argv[1])\n"
        "from tuneplane.contract.transforms import TransformRequest\n"
        "module = importlib.import_module(sys.argv[2])\n"
        "assert module.__file__.startswith(sys.argv[1])\n"
        "out = pathlib.Path('out'); out.mkdir()\n"
        "result = getattr(module, sys.argv[3])(TransformRequest({'d': pathlib.Path('in.jsonl')}, out, {}))\n"
        "print(result.records, sorted(p.name for p in out.iterdir()) == sorted(result.files))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, plugin.wheel, module, attribute], cwd=tmp_path, capture_output=True, text=True,
        check=True, env={"PYTHONPATH": str(Path(tuneplane.__file__).parents[1])},
    )  # fmt: skip
    assert done.stdout == f"{RECORDS[name]} True\n"
