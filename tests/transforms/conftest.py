"""Work folders with one provider, and the runner started as a custom job's script starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tuneplane
from tuneplane.record.digest import directory_digest_v1

KERNEL = Path(tuneplane.__file__).parents[1]
VECTORS = json.loads((Path(__file__).parents[1] / "data/vectors/transform_cases.json").read_text())
IMPORTS = "import os, sys, time, json, signal, subprocess\nfrom tuneplane.contract.transforms import TransformResult\n"


@dataclass
class Place:
    """One provider `alice/probe` and its input; `out` is the job's TUNEPLANE_OUT_DIR when `within` is set."""

    base: Path
    within: bool = False

    @property
    def work(self) -> Path:
        return self.base / "work"

    @property
    def out(self) -> Path:
        return self.base / "out"

    @property
    def folder(self) -> Path:
        return self.work / "tuneplane_plugins" / "probe"

    @property
    def output(self) -> Path:
        return self.out / "dataset"

    def provider(self, source: str, manifest: str = VECTORS["manifest"], locked: str = "alice/probe") -> Place:
        """Lay out the provider and lock it, with no plugins.json: plugin.yaml is read."""
        self.folder.mkdir(parents=True)
        self.out.mkdir()
        (self.folder / "plugin.yaml").write_text(manifest)
        (self.folder / "probe_mod.py").write_text(source)
        return self.lock(locked)

    def lock(self, plugin: str = "alice/probe") -> Place:
        triple = {"id": plugin, "version": "1.0.0", "digest": directory_digest_v1(self.folder)}
        (self.work / ".tuneplane").mkdir(exist_ok=True)
        (self.work / ".tuneplane/jobspec.json").write_text(json.dumps({"spec": {"plugins": [triple]}}))
        (self.base / "in.jsonl").write_text('{"a":1}\n{"a":2}\n')
        return self

    def body(self, source: str) -> Place:
        """The provider whose body is `source`; `request` and `o`, the output folder, are at hand."""
        lines = "\n".join("    " + line for line in source.strip().splitlines())
        return self.provider(f"{IMPORTS}def transform(request):\n    o = request.output_dir\n{lines}\n")

    def request(self, value: Any = None) -> Path:
        path = self.base / "request.json"
        value = {"api": "tuneplane/transform/v1", "inputs": {"d": "in.jsonl"}} if value is None else value
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        return path

    def command(self, request: Any = None, *more: str, plugin: str = "alice/probe") -> list[str]:
        return [
            sys.executable, "-m", "tuneplane.transforms", "--plugin", plugin, "--request", str(self.request(request)),
            "--output", str(self.output), "--report", str(self.report_path), *more,
        ]  # fmt: skip

    @property
    def report_path(self) -> Path:
        return self.out / "transform-result.json"

    def env(self, **more: str) -> dict[str, str]:
        out = {"TUNEPLANE_OUT_DIR": str(self.out)} if self.within else {}
        base = {"PATH": os.environ["PATH"], "PYTHONPATH": str(KERNEL), "TUNEPLANE_WORK_DIR": str(self.work)}
        return base | out | more

    def run(self, request: Any = None, *more: str, env: Mapping[str, str] | None = None, **kw: Any) -> Any:
        return subprocess.run(
            self.command(request, *more, **kw), env=self.env(**(env or {})), cwd=self.base, capture_output=True,
            text=True, timeout=100, check=False,
        )  # fmt: skip

    def start(self, request: Any = None, *more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(request, *more), env=self.env(), cwd=self.base, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def report(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.report_path.read_text())
        return value

    def stages(self) -> list[str]:
        return [p.name for p in self.out.iterdir() if p.name.startswith(".transform-")]

    def entries(self) -> list[str]:
        return sorted(p.relative_to(self.output).as_posix() for p in self.output.rglob("*"))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


REPO = Path(__file__).parents[2]
SHIPPED, SOURCES = REPO / "hpc/plugins/shipped", REPO / "hpc/plugins/sources"
sys.path[:0] = [str(SOURCES / "jsonl_filter"), str(SOURCES / "text_records")]


@dataclass
class Call:
    """One call of a provider's own function, as its worker makes it."""

    transform: Any
    base: Path

    def __call__(self, inputs: Mapping[str, Path], **config: Any) -> Path:
        from tuneplane.contract.transforms import TransformRequest

        out = self.base / f"out-{len(list(self.base.iterdir()))}"
        out.mkdir()
        self.result = self.transform(TransformRequest(inputs, out, config))
        assert sorted(self.result.files) == sorted(p.relative_to(out).as_posix() for p in out.rglob("*"))
        return out


@pytest.fixture
def filter_jsonl(tmp_path: Path) -> Call:
    import tuneplane_jsonl_filter

    return Call(tuneplane_jsonl_filter.transform, tmp_path)


@pytest.fixture
def cut_text(tmp_path: Path) -> Call:
    import tuneplane_text_records

    return Call(tuneplane_text_records.transform, tmp_path)
