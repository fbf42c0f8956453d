"""The reference page names every field, and only codes that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpc.errors.spec import KINDS
from hpc.spec.jobspec import JobSpec
from hpc.spec.model import keys_of
from hpc.spec.yamltext import parse_yaml

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "jobspec.md").read_text("utf-8")


def fields() -> list[str]:
    """The last part of every key of the model, at any depth."""
    found, todo = [], [JobSpec]
    while todo:
        for name, (inner, _) in keys_of(todo.pop()).items():
            found.append(name)
            todo += [inner] if inner else []
    return sorted(set(found) - {"spec", "metadata", "framework", "resources", "data", "model", "provenance"})


@pytest.mark.parametrize("name", fields())
def test_the_page_names_every_field(name: str) -> None:
    assert re.search(rf"[`.\[{{ ]{name}[`\]}},\[ ]", PAGE)


def test_the_page_covers_every_code_with_a_range() -> None:
    ranges = [(int(a), int(b)) for a, b in re.findall(r"E-SPEC-(\d{3}) … (\d{3})", PAGE)]
    numbers = [int(code.rpartition("-")[2]) for code in KINDS]
    assert [n for n in numbers if not any(low <= n <= high for low, high in ranges)] == []


def test_the_example_config_of_the_project_page_is_our_yaml() -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", (DOCS / "projects.md").read_text("utf-8"), re.DOTALL)
    assert parse_yaml(block) == {
        "defaults": "../../configs/base.yaml",
        "model": {"base": "/models/smol"},
        "data": {"train": {"path": "rows.jsonl"}},
        "training": {"learning_rate": 1e-4},
        "slurm": {"time": "12:00:00", "partition": "gpu"},
    }
