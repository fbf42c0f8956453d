"""A toy kind of record: a folder with `toy.json` {name, version}; and packages of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tuneplane.record.files import read_json

from hpc.errors import Refusal
from hpc.registry.kinds import Checked, Kind

NOW = "2026-01-02T03:04:05.000000Z"
LATER = "2026-03-02T03:04:05.000000Z"
CORE = "0.4.0"


def check(folder: Path) -> Checked:
    value = read_json(folder / "toy.json")
    if not isinstance(value, dict) or "name" not in value:
        raise Refusal("E-REG-004", "is no toy", field="toy.json")
    return Checked(value["name"], value["version"], {"manifest": value}, bool(value.get("policy")))


TOY = Kind("plugin", "plugins", check, max_bytes=32 << 20, max_files=2000)


def write_toy(
    folder: Path, name: str = "toy", version: str = "1.0.0", files: Mapping[str, bytes] | None = None, **more: object
) -> Path:
    """A package's folder: toy.json and three more files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "toy.json").write_text(json.dumps({"name": name, "version": version, **more}))
    default = {"README.md": b"# toy\n", "lib/toy.py": b"print('toy')\n", "lib/data.bin": bytes(range(256))}
    for path, data in (files if files is not None else default).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder
