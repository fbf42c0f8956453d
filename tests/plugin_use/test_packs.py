"""Recipe packs that users published: under their owner, locked to a version, never in the place of the admins' own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tuneplane.contract.layout import StorageRoot
from tuneplane.record.digest import digest_bytes

from tests.plugin_use.conftest import ME, TOY, Tp, commit, damage

Make = Callable[..., Path]
RECIPE = (
    (TOY / "recipe.yaml")
    .read_text("utf-8")
    .replace("name: ranks", "name: echo")
    .replace("params: {}", "params: {n: PARAM}")
)


@pytest.fixture
def echo(tp: Tp, root: StorageRoot, make: Make) -> Callable[..., str]:
    """Publish a version of the pack; gives its id."""

    def publish(version: str, default: int = 1) -> str:
        recipe = RECIPE.replace("PARAM", f"{{type: int, path: n, default: {default}}}")
        files = {"recipe.yaml": recipe, "template/train.py": f"print({default})\n"}
        tp("plugin", "publish", make("echo", version, files=files, capability="recipe", entrypoint=None))
        return f"{ME}/echo"

    return publish


def lock_of(project: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((project / "experiments/mine/recipe.lock.json").read_text("utf-8"))
    return value["recipe"]


def test_a_pack_is_a_method_under_its_owner_and_travels(
    tp: Tp, root: StorageRoot, project: Path, echo: Callable[..., str]
) -> None:
    pack = echo("2.0")
    assert pack in [m["id"] for m in tp.json("methods")["methods"]]
    assert pack in [r["id"] for r in tp.json("recipe", "ls")["recipes"]]
    tp("new", "mine", "--method", pack)
    assert (lock_of(project)["name"], lock_of(project)["version"]) == (pack, "2.0")
    commit(project)
    said = tp.json("submit", "mine", "--profile", "cpu", "--dry-run")
    assert said["jobspec"]["spec"]["recipe"] | {"digest": ""} == {"name": pack, "version": "2.0", "digest": ""}


def test_a_lock_stays_with_its_version_until_it_is_upgraded(tp: Tp, project: Path, echo: Callable[..., str]) -> None:
    pack = echo("1.0", default=1)
    tp("new", "mine", "--method", pack)
    commit(project)
    echo("1.1", default=2)
    assert [e["lock"]["state"] for e in tp.json("recipe", "status", "mine")["experiments"]] == ["current"]
    assert tp.json("submit", "mine", "--profile", "cpu", "--dry-run")["jobspec"]["spec"]["recipe"]["version"] == "1.0"
    tp("recipe", "upgrade", "mine")
    assert lock_of(project)["version"] == "1.1"


def test_disabled_means_no_new_experiments_while_locked_ones_run(
    tp: Tp, project: Path, echo: Callable[..., str]
) -> None:
    pack = echo("1.0")
    tp("new", "mine", "--method", pack)
    commit(project)
    tp("plugin", "disable", pack)
    assert pack not in [m["id"] for m in tp.json("methods")["methods"]]
    assert tp.codes("new", "more", "--method", pack) == ["E-REG-011"]
    tp("submit", "mine", "--profile", "cpu", "--dry-run")


def test_the_admins_shelf_comes_first(tp: Tp, root: StorageRoot, echo: Callable[..., str]) -> None:
    pack = echo("1.0")
    own = root.recipes / ME / "echo"
    shutil.copytree(TOY, own, ignore=shutil.ignore_patterns("__pycache__"))
    text = (own / "recipe.yaml").read_text("utf-8")
    (own / "recipe.yaml").write_text(
        text.replace("name: ranks", "name: echo").replace("framework: toy", f"framework: {ME}"), "utf-8"
    )
    found = [m for m in tp.json("methods")["methods"] if m["id"] == pack]
    assert [(m["version"], m["params"]) for m in found] == [("1.0.0", {})]


def test_a_pack_with_a_changed_byte_is_no_method(
    tp: Tp, root: StorageRoot, project: Path, echo: Callable[..., str]
) -> None:
    pack = echo("1.0")
    tp("new", "mine", "--method", pack)
    commit(project)
    template = root.shelf("plugins") / ME / "echo/1.0/content/template/train.py"
    before = digest_bytes(template.read_bytes())
    damage(template)
    assert digest_bytes(template.read_bytes()) != before
    assert tp.codes("new", "more", "--method", pack) == ["E-REG-013"]
    assert "E-REG-013" in json.dumps(tp.json("submit", "mine", "--profile", "cpu", "--dry-run", code=1))
