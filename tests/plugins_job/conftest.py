"""Work folders with locked plugins, laid out as a package has them, and wheels made on the spot."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import tuneplane
from tuneplane.contract import schemas
from tuneplane.record.digest import directory_digest_v1

KERNEL = Path(tuneplane.__file__).parents[1]


def wheel_bytes(path: Path, files: Mapping[str, str], *, metadata: str = "", entry_points: str = "") -> Path:
    """A pure-Python wheel with a right RECORD, named by `path`."""
    name, version = path.name.split("-")[:2]
    info = f"{name}-{version}.dist-info"
    members = dict(files) | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if entry_points:
        members[f"{info}/entry_points.txt"] = entry_points
    rows = []
    for member, text in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        rows.append(f"{member},sha256={digest},{len(text.encode())}")
    members[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,"]) + "\n"
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in members.items():
            archive.writestr(member, text)
    return path


@dataclass
class Work:
    """A work folder. `add` lays out one plugin; `lock` writes the records as they are then."""

    root: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    spec: dict[str, Any] = field(default_factory=dict)

    def add(self, plugin: str, files: Mapping[str, str] | None = None, **manifest: Any) -> Path:
        name, _, version = plugin.partition("@")
        leaf = name.rpartition("/")[2]
        folder = self.root / "tuneplane_plugins" / leaf
        folder.mkdir(parents=True)
        body = {
            "schema": "tuneplane/plugin/v1", "name": leaf, "version": version or "1.0.0", "capability": "algorithm",
        } | manifest  # fmt: skip
        (folder / "plugin.yaml").write_text(json.dumps(body))
        for path, text in (files or {}).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        self.rows.append({"id": name, "version": version or "1.0.0", "leaf": leaf, "facts": {"manifest": body}})
        return folder

    def lock(self, *, record: bool = True, **spec: Any) -> Path:
        for row in self.rows:
            row["digest"] = directory_digest_v1(self.root / "tuneplane_plugins" / row["leaf"])
        triples = [{key: row[key] for key in ("id", "version", "digest")} for row in self.rows]
        self.spec = {"spec": {"hyperparams": {"lr": 0.1}, "plugins": triples, "recipe": {}} | spec}
        records = self.root / ".tuneplane"
        records.mkdir(exist_ok=True)
        (records / "jobspec.json").write_text(json.dumps(self.spec))
        if record:
            rows = [row | {"digest_v2": ""} for row in self.rows]
            (records / "plugins.json").write_text(json.dumps({"schema": schemas.LOCKED_PLUGINS, "plugins": rows}))
        return self.root

    def rank(self, *words: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Any:
        """`python -m tuneplane.plugins.rank WORDS` as the launcher starts it."""
        exp = cwd or self.root / "experiments" / "e"
        exp.mkdir(parents=True, exist_ok=True)
        variables = {
            "PATH": os.environ["PATH"], "PYTHONPATH": str(KERNEL), "TUNEPLANE_WORK_DIR": str(self.root),
            "PYTHONDONTWRITEBYTECODE": "1",
        } | dict(env or {})  # fmt: skip
        return subprocess.run(
            [sys.executable, "-m", "tuneplane.plugins.rank", *words],
            cwd=exp, env=variables, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip


@pytest.fixture
def work(tmp_path: Path) -> Work:
    root = tmp_path / "work"
    root.mkdir()
    return Work(root)


@pytest.fixture
def make_wheel() -> Callable[..., Path]:
    return wheel_bytes
