"""Installing and locking: nothing is replaced before every byte was compared, and what no job could carry is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tuneplane.contract.layout import StorageRoot
from tuneplane.record.digest import directory_digest_v1

from hpc.project.plugins import alone
from tests.plugin_use.conftest import ME, TOY, Tp, commit, damage

Make = Callable[..., Path]
TP = Path(sys.executable).parent / "tp"


def lock_of(project: Path, exp: str = "ranks") -> list[dict[str, str]]:
    path = project / "experiments" / exp / "plugins.lock.json"
    return json.loads(path.read_text("utf-8"))["plugins"] if path.exists() else []


def test_install_downloads_checks_and_locks(tp: Tp, project: Path, make: Make) -> None:
    digest = tp.json("plugin", "publish", make())["digest"]
    said = tp.json("plugin", "install", f"{ME}/patch", "--exp", "ranks")
    folder = project / "tuneplane_plugins" / ME / "patch"
    assert (said["folder"], directory_digest_v1(folder)) == (str(folder), digest)
    assert lock_of(project) == [{"id": f"{ME}/patch", "version": "1.0", "digest": digest}]
    tp("plugin", "remove", f"{ME}/patch", "--exp", "ranks")
    assert lock_of(project) == []
    assert folder.is_dir()


def test_two_installations_into_one_lock_are_both_kept(tp: Tp, project: Path, make: Make) -> None:
    for name in ("patch", "other"):
        tp("plugin", "publish", make(name))
    tp("plugin", "install", f"{ME}/patch", "--exp", "ranks")
    order: list[str] = []

    def second() -> None:
        with alone(project / "experiments/ranks"):
            order.append("second")

    thread = threading.Thread(target=second)
    with alone(project / "experiments/ranks"):
        thread.start()
        time.sleep(0.2)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    calls = [[TP, "plugin", "install", f"{ME}/{name}", "--exp", "ranks"] for name in ("patch", "other")]
    ends = [subprocess.Popen(call, cwd=project, stdout=subprocess.DEVNULL) for call in calls]
    assert [end.wait(60) for end in ends] == [0, 0]
    assert {e["id"] for e in lock_of(project)} == {f"{ME}/patch", f"{ME}/other"}


def test_what_a_killed_installation_left_goes_with_a_later_one(tp: Tp, project: Path, make: Make) -> None:
    tp("plugin", "publish", make())
    tp("plugin", "install", f"{ME}/patch")
    shelf = project / "tuneplane_plugins" / ME
    for name, age in ((".patch.0123456789ab.tmp", 90_000), (".patch.0123456789ab.old", 90_000), (".patch.ffffffffffff.tmp", 10),
                      (".other.0123456789ab.tmp", 90_000)):  # fmt: skip
        (shelf / name / "inner").mkdir(parents=True)
        os.chmod(shelf / name, 0)
        os.utime(shelf / name, (time.time() - age,) * 2)
    tp("plugin", "install", f"{ME}/patch")
    assert sorted(p.name for p in shelf.iterdir()) == [".other.0123456789ab.tmp", ".patch.ffffffffffff.tmp", "patch"]


def test_a_bad_download_leaves_the_installation_and_the_lock_as_they_were(
    tp: Tp, root: StorageRoot, project: Path, make: Make
) -> None:
    tp("plugin", "publish", make(version="1.0"))
    tp("plugin", "install", f"{ME}/patch", "--exp", "ranks")
    before, folder = lock_of(project), project / "tuneplane_plugins" / ME / "patch"
    tp("plugin", "publish", make(version="1.1"))
    damage(root.shelf("plugins") / ME / "patch/1.1/content/plugin.yaml")
    assert tp.codes("plugin", "install", f"{ME}/patch", "--exp", "ranks") == ["E-REG-013"]
    assert (lock_of(project), directory_digest_v1(folder)) == (before, before[0]["digest"])
    assert [p.name for p in folder.parent.iterdir()] == ["patch"]


def test_a_link_in_the_way_is_not_followed(tp: Tp, project: Path, make: Make, tmp_path: Path) -> None:
    tp("plugin", "publish", make())
    (tmp_path / "elsewhere").mkdir()
    (project / "tuneplane_plugins").symlink_to(tmp_path / "elsewhere")
    assert tp.codes("plugin", "install", f"{ME}/patch") == ["E-INSTALL-007"]
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_pack_that_no_job_carries_is_not_locked_and_a_benchmark_is(tp: Tp, project: Path, make: Make) -> None:
    local = {"capability": "data-prep", "execution": "local", "entrypoint": None}
    tp("plugin", "publish", make("prep", files={"prepare_rows.py": "print('rows')\n"}, **local))
    assert tp.codes("plugin", "install", f"{ME}/prep", "--exp", "ranks") == ["E-INSTALL-002"]
    assert lock_of(project) == []
    tp("plugin", "install", f"{ME}/prep")
    tp("plugin", "publish", make("bench", files={"benchmark.yaml": BENCHMARK}, capability="benchmark", entrypoint=None))
    tp("plugin", "install", f"{ME}/bench", "--exp", "ranks")
    assert [p["id"] for p in lock_of(project)] == [f"{ME}/bench"]


BENCHMARK = """\
schema: tuneplane/benchmark/v1
name: bench
title: T
runner: lm-eval
suites: [gsm8k]
metrics:
  - {key: exact_match, label: EM, direction: higher, primary: true}
"""


def test_overlapping_import_names_are_refused_before_the_lock_changes(tp: Tp, project: Path, make: Make) -> None:
    code = {"shared.py": "def install(hyperparams):\n    pass\n"}
    for name in ("one", "two"):
        tp("plugin", "publish", make(name, files=code, entrypoint="shared:install"))
    tp("plugin", "install", f"{ME}/one", "--exp", "ranks")
    assert tp.codes("plugin", "install", f"{ME}/two", "--exp", "ranks") == ["E-INSTALL-004"]
    assert [p["id"] for p in lock_of(project)] == [f"{ME}/one"]


def test_disabled_refuses_new_references_while_the_lock_goes_on(
    tp: Tp, root: StorageRoot, project: Path, make: Make
) -> None:
    tp("plugin", "publish", make())
    tp("plugin", "install", f"{ME}/patch", "--exp", "ranks")
    commit(project)
    tp("plugin", "disable", f"{ME}/patch", "--site")
    assert tp.codes("plugin", "install", f"{ME}/patch@1.0", "--exp", "own") == ["E-REG-010"]
    said = tp.json("submit", "ranks", "--profile", "cpu", "--dry-run")
    assert [p["id"] for p in said["jobspec"]["spec"]["plugins"]] == [f"{ME}/patch"]


@pytest.mark.parametrize(
    ("fields", "exp", "codes"),
    [
        ({"requires": {"core": ">=9"}}, "ranks", ["E-INSTALL-010"]),
        ({"requires": {"frameworks": {"trl": ""}}}, "ranks", ["E-INSTALL-011"]),
        ({"requires": {"methods": ["deepspeed/sft"]}}, "ranks", ["E-INSTALL-012"]),
        ({"requires": {"backends": ["kubernetes"]}}, "ranks", ["E-INSTALL-013"]),
        ({}, "own", ["E-INSTALL-014"]),
    ],
)
def test_requirements_are_checked_before_submission(
    tp: Tp, project: Path, make: Make, fields: dict[str, object], exp: str, codes: list[str]
) -> None:
    tp("plugin", "publish", make(**fields))
    tp("plugin", "install", f"{ME}/patch", "--exp", exp)
    commit(project)
    assert tp.codes("submit", exp, "--profile", "cpu", "--dry-run") == codes
    expected = [] if codes == ["E-INSTALL-013"] else codes  # the backend is chosen at submit
    assert [e["code"] for e in tp.json("validate", exp, code=1 if expected else 0)["errors"]] == expected


def test_bytes_that_changed_on_the_shelf_are_not_packed(tp: Tp, root: StorageRoot, project: Path, make: Make) -> None:
    tp("plugin", "publish", make())
    tp("plugin", "install", f"{ME}/patch", "--exp", "ranks")
    commit(project)
    damage(root.shelf("plugins") / ME / "patch/1.0/content/patch_code.py")
    assert tp.codes("submit", "ranks", "--profile", "cpu") == ["E-REG-013"]
    assert not list((root.owner_runs(ME) / "ranks").glob("run-*"))


def test_a_lock_with_another_digest_is_refused(tp: Tp, project: Path, make: Make) -> None:
    tp("plugin", "publish", make())
    tp("plugin", "install", f"{ME}/patch", "--exp", "ranks")
    path = project / "experiments/ranks/plugins.lock.json"
    path.write_text(path.read_text("utf-8").replace(lock_of(project)[0]["digest"], "sha256:" + "0" * 64), "utf-8")
    commit(project)
    assert tp.codes("submit", "ranks", "--profile", "cpu", "--dry-run") == ["E-INSTALL-005"]


def test_a_recipe_s_own_plugins_must_be_locked(tp: Tp, root: StorageRoot, project: Path, make: Make) -> None:
    recipe = (TOY / "recipe.yaml").read_text("utf-8").replace("name: ranks", "name: needs\nplugins: [patch]")
    pack = make(
        "needs", capability="recipe", entrypoint=None, files={"recipe.yaml": recipe, "template/train.py": "print(1)\n"}
    )
    tp("plugin", "publish", pack)
    tp("new", "needy", "--method", f"{ME}/needs")
    commit(project)
    assert tp.codes("submit", "needy", "--profile", "cpu", "--dry-run") == ["E-INSTALL-015"]
    tp("plugin", "publish", make())
    tp("plugin", "install", f"{ME}/patch", "--exp", "needy")
    commit(project)
    said = tp.json("submit", "needy", "--profile", "cpu", "--dry-run")
    assert said["jobspec"]["spec"]["recipe"]["plugins"] == ["patch"]
