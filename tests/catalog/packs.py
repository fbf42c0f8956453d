"""The toy pack of the vectors, whole or with changes, for tests."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from hpc.catalog.recipes import Recipe, load_recipe
from hpc.catalog.shelf import Catalogue
from hpc.spec.yamltext import parse_yaml

VECTORS = Path(__file__).resolve().parent.parent / "data" / "vectors"
TOY = VECTORS / "recipe-pack-toy" / "toy-sft"


def toy_manifest() -> dict[str, Any]:
    value = parse_yaml((TOY / "recipe.yaml").read_text("utf-8"))
    assert isinstance(value, dict)
    return value


def write_pack(shelf: Path, manifest: dict[str, Any], template: dict[str, str] | None = None) -> Path:
    """A pack with that manifest under `shelf/<framework>/<name>/`; JSON is YAML, so the manifest is written as JSON."""
    folder = shelf / manifest["framework"] / manifest["name"]
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "template").mkdir(parents=True)
    (folder / "recipe.yaml").write_text(json.dumps(manifest), "utf-8")
    for name, text in (template or {"train.py": 'print("train")\n'}).items():
        (folder / "template" / name).write_text(text, "utf-8")
    return folder


def toy_catalogue(tmp_path: Path) -> Catalogue:
    """A catalogue with toyfw/toy-sft, unchanged."""
    shutil.copytree(TOY, tmp_path / "packs" / "toyfw" / "toy-sft")
    return Catalogue(tmp_path / "packs")


def toy() -> Recipe:
    return load_recipe(TOY)
