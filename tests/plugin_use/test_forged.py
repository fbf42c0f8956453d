"""A record that its owner wrote by hand, before anybody sealed it: it costs nobody else a listing, and steers nobody's terminal."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tuneplane.contract.layout import StorageRoot

from hpc.plugins.requires import JobFacts, unmet
from hpc.registry.look import SCHEMA
from hpc.registry.records import encode_record
from tests.plugin_use.conftest import ME, Tp

Make = Callable[..., Path]
NOISE = "\x1b[31mred\x9b2J\u202e"


@pytest.fixture
def forge(tp: Tp, root: StorageRoot, make: Make) -> Callable[..., None]:
    """Publish `patch`, and write its record again with another value in one place."""
    tp("plugin", "publish", make())
    path = root.shelf("plugins") / ME / "patch/1.0/record.json"
    good = json.loads(path.read_text("utf-8"))
    assert good.pop("record_digest")
    assert good["schema"] == SCHEMA

    def put(value: Any, *keys: str) -> None:
        record = json.loads(json.dumps(good))
        inner = record
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value
        os.chmod(path, 0o644)
        path.write_bytes(encode_record(record))
        os.chmod(path, 0o444)

    return put


@pytest.mark.parametrize(
    ("value", "keys"),
    [
        ({}, ("facts",)),
        ("x", ("facts", "manifest")),
        ([1], ("facts", "manifest", "requires")),
        ([1], ("facts", "manifest", "requires", "methods")),
        ("torch", ("facts", "manifest", "requires", "frameworks")),
        (1, ("facts", "import_roots")),
        ([], ("published", "actor")),
    ],
)
def test_facts_of_another_shape_damage_their_own_version_alone(
    tp: Tp, root: StorageRoot, make: Make, forge: Callable[..., None], value: Any, keys: tuple[str, ...]
) -> None:
    tp("plugin", "publish", make("other"))
    forge(value, *keys)
    listed = tp.json("plugin", "ls", code=1)
    assert f"{ME}/other" in [p["id"] for p in listed["plugins"]]
    assert [e["code"] for e in listed["errors"]] == ["E-REG-012"]
    assert ".".join(keys[:2]) in listed["errors"][0]["message"] or keys == ("facts",)
    assert tp.codes("plugin", "install", f"{ME}/patch") == ["E-REG-012"]
    tp("registry", "ls", f"{ME}/patch", code=1)
    assert "E-REG-012" in tp("registry", "audit", code=2)


def test_what_a_record_says_of_its_bytes_is_not_believed_before_it_is_sealed(
    tp: Tp, project: Path, forge: Callable[..., None]
) -> None:
    tp("plugin", "install", f"{ME}/patch", "--exp", "ranks")
    for key, value in (("entrypoint", "os:_exit"), ("load", "deferred"), ("capability", "environment")):
        forge(value, "facts", "manifest", key)
        said = tp.json("submit", "ranks", "--profile", "cpu", "--allow-dirty", "--dry-run", code=1)["errors"]
        assert [e["code"] for e in said] == ["E-REG-012"]
        assert f"another {key}" in said[0]["message"]


def test_a_range_that_is_none_admits_nothing() -> None:
    job = JobFacts("0.4.0", "toy", "1.0", "toy/ranks", "local", True)
    requires = {"core": "~~", "frameworks": {"toy": "~~"}}
    assert [r.code for r in unmet("a/b@1", {"requires": requires}, job)] == ["E-INSTALL-010", "E-INSTALL-011"]


@pytest.mark.parametrize(
    "keys",
    [("facts", "manifest", k) for k in ("summary", "icon", "capability")]
    + [("published", k) for k in ("at", "actor", "method", "archive_sha256")],
)
def test_nothing_in_a_record_steers_a_terminal(tp: Tp, forge: Callable[..., None], keys: tuple[str, ...]) -> None:
    forge(NOISE, *keys)
    ref = f"{ME}/patch"
    commands = (
        ("plugin", "ls"), ("plugin", "info", ref), ("plugin", "files", ref), ("registry", "ls", ref), ("registry", "show", ref),
    )  # fmt: skip
    for command in commands:
        for form in ((), ("--json",)):
            shown = tp(*command, *form) + tp.err
            assert not any(c in shown for c in "\x1b\x9b\u202e"), (command, form)
    assert tp.json("registry", "show", ref)["record"][keys[0]] is not None
