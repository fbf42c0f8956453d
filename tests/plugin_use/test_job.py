"""Plugins in real jobs of the local fleet: eager and deferred algorithms, environments on the path, and a start that is refused."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tuneplane.contract.layout import RunPaths, StorageRoot
from tuneplane.record.digest import directory_digest_v1

from tests.plugin_use.conftest import ME, Tp, commit, damage

Make = Callable[..., Path]
TRAIN = """\
import builtins
import env_code
from tuneplane.plugins import install_deferred
install_deferred("later", scale=3)
print(builtins.EAGER, builtins.LATER, env_code.WHERE)
"""
EAGER = "import builtins\ndef install(hyperparams):\n    builtins.EAGER = type(hyperparams).__name__\n"
LATER = "import builtins\ndef install(hyperparams, scale):\n    builtins.LATER = scale\n"


def finished(tp: Tp, exp: str) -> tuple[RunPaths, dict[str, Any]]:
    run = RunPaths(Path(tp.json("submit", exp, "--profile", "cpu")["run_dir"]))
    end = run.attempt(0).end
    deadline = time.monotonic() + 60
    while not end.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    return run, json.loads(end.read_text("utf-8"))


def lines(run: RunPaths, rank: int = 0) -> list[str]:
    return [line.partition(" ")[2] for line in run.attempt(0).rank_log(rank).read_text("utf-8").splitlines()]


def test_eager_deferred_and_environment_plugins_in_one_job(
    tp: Tp, root: StorageRoot, project: Path, make: Make
) -> None:
    packages = [
        make("eager", files={"eager_code.py": EAGER}),
        make("later", files={"later_code.py": LATER}, load="deferred"),
        make(
            "env", files={"env_code.py": "WHERE = 'on the path'\ndef install():\n    pass\n"}, capability="environment"
        ),
    ]
    for folder in packages:
        tp("plugin", "publish", folder)
        tp("plugin", "install", f"{ME}/{folder.name.rpartition('-')[0]}", "--exp", "ranks")
    (project / "experiments/ranks/train.py").write_text(TRAIN, "utf-8")
    commit(project)
    run, end = finished(tp, "ranks")
    assert end["class"] == "done", lines(run)
    assert lines(run) == [
        f"plugin  : {ME}/eager@1.0 applied in entrypoint process",
        f"plugin  : {ME}/later@1.0 registered in entrypoint process (deferred)",
        "dict 3 on the path",
    ]
    listed = {e["path"] for e in json.loads(run.package.read_text("utf-8"))["files"]}
    assert {"tuneplane_plugins/eager/eager_code.py", ".tuneplane/plugins.json"} <= listed
    rows = json.loads((run.work / ".tuneplane/plugins.json").read_text("utf-8"))["plugins"]
    assert [(r["leaf"], r["digest"]) for r in rows] == [("eager", directory_digest_v1(packages[0])), ("env", directory_digest_v1(packages[2])),
                                                       ("later", directory_digest_v1(packages[1]))]  # fmt: skip
    uses = tp.json("plugin", "usage", f"{ME}/later")["uses"]
    assert [(u["run_id"], u["version"]) for u in uses] == [(run.run_id, "1.0")]


def test_a_plugin_that_raises_ends_the_rank_with_its_own_words(
    tp: Tp, root: StorageRoot, project: Path, make: Make
) -> None:
    code = "def install(hyperparams):\n    raise ValueError('no such layer')\n"
    tp("plugin", "publish", make(files={"patch_code.py": code}))
    tp("plugin", "install", f"{ME}/patch", "--exp", "ranks")
    (project / "experiments/ranks/train.py").write_text("print('never')\n", "utf-8")
    commit(project)
    run, end = finished(tp, "ranks")
    said = "\n".join(lines(run))
    assert end["class"] == "error"
    assert f"plugin {ME}/patch@1.0" in said
    assert "ValueError: no such layer" in said
    assert "never" not in said


def refused(root: StorageRoot, run: RunPaths, work: Path, record: Any) -> list[str]:
    """What admission says of a copy of the package."""
    from hpc.catalog.shelf import Catalogue
    from hpc.site.sitefile import load_site
    from hpc.spec.jobspec import parse
    from hpc.submit.plugins import admission_refusals, job_facts

    site, spec = load_site(root), parse(json.loads(run.jobspec.read_text("utf-8")))
    facts = job_facts(spec, Catalogue.load(root).get(spec.spec.recipe.name), site, fleet="local")
    return [r.code for r in admission_refusals(root, site, work, spec, facts, record)]


def test_admission_compares_the_packed_plugin_with_registry_and_record(
    tp: Tp, root: StorageRoot, project: Path, make: Make, tmp_path: Path
) -> None:
    tp("plugin", "publish", make())
    tp("plugin", "install", f"{ME}/patch", "--exp", "ranks")
    (project / "experiments/ranks/train.py").write_text("print('ran')\n", "utf-8")
    commit(project)
    run, _ = finished(tp, "ranks")
    record = json.loads((run.work / ".tuneplane/plugins.json").read_text("utf-8"))
    assert refused(root, run, run.work, record) == []
    forged = json.loads(json.dumps(record))
    forged["plugins"][0]["facts"]["manifest"]["load"] = "deferred"
    assert refused(root, run, run.work, forged) == ["E-INSTALL-021"]
    assert refused(root, run, run.work, None) == ["E-INSTALL-021"]
    copy = tmp_path / "work"
    shutil.copytree(run.work, copy)
    damage(copy / "tuneplane_plugins/patch/patch_code.py")
    assert refused(root, run, copy, record) == ["E-INSTALL-020"]
    damage(root.shelf("plugins") / ME / "patch/1.0/record.json")
    assert refused(root, run, run.work, record) == ["E-REG-012"]
