"""A framework that nobody here knows: the packages of docs/frameworks.md, published, locked, submitted and run, with no change in `hpc`."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tuneplane.contract.layout import RunPaths, StorageRoot
from tuneplane.record.digest import digest_json

from hpc.errors import Refusals
from hpc.plugins.fitting import SEVERAL
from hpc.site.sitefile import load_site
from hpc.submit import admission
from hpc.submit.frameworks import form_of
from tests.plugin_use.conftest import ME, Tp, commit
from tests.plugin_use.test_job import finished, lines

PAGE = Path(__file__).parents[2] / "docs" / "frameworks.md"
BLOCK = re.compile(r"^`(?P<path>[\w./-]+)`\n\n```\w+\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
FRAMEWORK = f"{ME}/framework-toy"
Edit = Callable[[str], str]


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """The page's files, with this user in alice's place."""
    folder = tmp_path / "page"
    for block in BLOCK.finditer(PAGE.read_text("utf-8")):
        path = folder / block["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block["text"].replace("alice/", f"{ME}/"), "utf-8")
    return folder


@pytest.fixture
def counting(tp: Tp, root: StorageRoot, project: Path, packages: Path) -> Callable[..., Path]:
    """Publish the page's packages, the compiler edited, and make the experiment; gives its folder."""

    def made(edit: Edit = lambda text: text, *, lock: bool = True) -> Path:
        compiler = packages / "framework-toy" / "compile.py"
        compiler.write_text(edit(compiler.read_text("utf-8")), "utf-8")
        tp("plugin", "publish", packages / "framework-toy")
        tp("plugin", "publish", packages / "count")
        tp("new", "counting", "--method", f"{ME}/count")
        if lock:
            tp("plugin", "install", FRAMEWORK, "--exp", "counting")
        commit(project)
        return project / "experiments" / "counting"

    return made


def test_a_new_framework_is_published_and_runs(tp: Tp, root: StorageRoot, counting: Callable[..., Path]) -> None:
    counting()
    run, end = finished(tp, "counting")
    assert end["class"] == "done", lines(run)
    assert lines(run, 0) == ["loud rank 0 of 2 counts [2, 4, 6, 8]"]
    assert lines(run, 1) == ["loud rank 1 of 2 counts [1, 3, 5, 7]"]
    assert json.loads((run.attempt(0).out / "result.json").read_text()) == {"to": 8}
    plan = json.loads((run.work / ".tuneplane/plan.json").read_text())
    entry = json.loads(run.launch.read_text())["entry"]
    assert (entry["kind"], entry["argv"], entry["plan"]) == ("rank", plan["argv"], digest_json(plan))
    assert plan["integration"]["id"] == FRAMEWORK
    assert plan["integration"]["profile"] == "count"
    assert plan["files"] == {"toy.json": '{"out": "${TUNEPLANE_OUT_DIR}", "start": 1, "to": 8, "world": 2}'}
    assert tp.json("runs", "audit", run.run_id)["verdict"] == "verified"


def test_an_integration_that_is_not_locked_is_refused(tp: Tp, counting: Callable[..., Path]) -> None:
    counting(lock=False)
    assert tp.codes("submit", "counting", "--profile", "cpu") == ["E-FRAME-001"]


def test_an_integration_that_the_recipe_does_not_name_is_refused(
    tp: Tp, project: Path, counting: Callable[..., Path]
) -> None:
    counting()
    tp("plugin", "install", FRAMEWORK, "--exp", "ranks")
    commit(project)
    assert tp.codes("submit", "ranks", "--profile", "cpu") == ["E-FRAME-002"]


def test_a_disabled_integration_is_not_installed_while_a_lock_of_it_runs(
    tp: Tp, project: Path, counting: Callable[..., Path]
) -> None:
    counting()
    tp("plugin", "disable", FRAMEWORK)
    assert tp.codes("plugin", "install", FRAMEWORK, "--exp", "ranks") == ["E-REG-011"]
    said = tp.json("submit", "counting", "--profile", "cpu", "--dry-run")
    assert [p["id"] for p in said["jobspec"]["spec"]["plugins"]] == [FRAMEWORK]


def test_a_compiler_that_refuses_is_heard(tp: Tp, project: Path, counting: Callable[..., Path]) -> None:
    counting()
    shown = tp.json("submit", "counting", "--profile", "cpu", "--set", "start=9", code=1)["errors"]
    assert [(e["code"], e["message"]) for e in shown] == [("E-FRAME-004", f"{FRAMEWORK}: to lies below start")]


def test_a_plan_that_breaks_the_contract_is_refused_before_anything_is_written(
    tp: Tp, root: StorageRoot, counting: Callable[..., Path]
) -> None:
    counting(lambda text: text.replace('"toy.json": json', '"../toy.json": json'))
    assert tp.codes("submit", "counting", "--profile", "cpu") == ["E-FRAME-009"]
    assert not list((root.runs / ME / "counting").glob("run-*"))


@pytest.fixture
def rl(tp: Tp, root: StorageRoot, project: Path, tmp_path: Path) -> Callable[..., tuple[str | Path, ...]]:
    """The experiment `rl` of nemo-rl/grpo; gives the words of a dry run with such rows on such a profile."""
    tp("new", "rl", "--method", "nemo-rl/grpo")
    commit(project)
    model, rows = tmp_path / "model", tmp_path / "rows.jsonl"
    model.mkdir()
    for path in (model / "config.json", rows, tmp_path / "rows.txt"):
        path.write_text("{}\n")

    def words(train: str = "rows.jsonl", profile: str = "cpu") -> tuple[str | Path, ...]:
        given = ("--model", model, "--train-data", tmp_path / train, "--validation-data", rows)
        return ("submit", "rl", *given, "--profile", profile, "--dry-run")

    return words


def test_an_integration_that_comes_with_tp_is_bound_by_itself_and_ray_is_started_once_a_node(
    tp: Tp, rl: Callable[..., tuple[str | Path, ...]]
) -> None:
    said = tp.json(*rl())
    assert [p["id"] for p in said["jobspec"]["spec"]["plugins"]] == ["tuneplane/framework-nemo-rl"]
    entry, shape = said["entry"], said["shape"]
    assert (entry["kind"], shape["ranks_per_node"], shape["world_size"]) == ("ray", 1, 1)
    assert entry["argv"] == said["plan"]["argv"]
    assert entry["argv"][-2:] == ["--config", "${TUNEPLANE_GENERATED_DIR}/grpo.yaml"]
    tp("plugin", "disable", "tuneplane/framework-nemo-rl", "--site")
    assert tp.codes(*rl()) == ["E-REG-011"]


def test_rows_and_roles_that_the_framework_would_stop_at_are_refused_before_the_queue(
    tp: Tp, rl: Callable[..., tuple[str | Path, ...]]
) -> None:
    assert tp.json(*rl("model"))["plan"]["files"] == tp.json(*rl())["plan"]["files"], "a folder that the user names"
    (fault,) = tp.json(*rl("rows.txt"), code=1)["errors"]
    assert (fault["code"], fault["field"], fault["found"]) == ("E-FRAME-013", "spec.data.train", "txt")
    (fault,) = tp.json(*rl(profile="actr=cpu"), code=1)["errors"]
    assert (fault["code"], fault["field"], fault["found"]) == ("E-FRAME-014", "spec.resources.roles", "actr=actr")


def test_a_path_that_the_framework_would_split_is_refused_as_the_job_would_see_it(
    tp: Tp, project: Path, rl: Callable[..., tuple[str | Path, ...]], tmp_path: Path
) -> None:
    rl()
    tp("new", "tuned", "--method", "openrlhf/sft")
    commit(project)
    rows = tmp_path / "gsm8k@v2" / "train.jsonl"
    rows.parent.mkdir()
    rows.write_text("{}\n")
    words = ("submit", "tuned", "--model", tmp_path / "model", "--train-data", rows, "--profile", "cpu", "--dry-run")
    (fault,) = tp.json(*words, code=1)["errors"]
    assert (fault["code"], fault["field"], fault["found"]) == ("E-FRAME-013", "spec.data.train", str(rows))


@pytest.mark.parametrize(
    ("row", "source", "found"),
    [
        ({"path": "/shared/a.parquet", "files": [{"path": ""}]}, {"path": "a.parquet"}, "parquet"),
        ({"path": "/run/work/experiments/e/a.jsonl", "files": []}, {"path": "a.jsonl"}, "jsonl"),
        ({"path": "/shared/rows.d", "files": [{"path": "a.jsonl"}]}, {"path": "rows.d"}, "folder"),
        ({"path": "/root/content", "files": [{"path": "a.jsonl"}, {"path": "b.jsonl"}]}, {"dataset": "alice/gsm8k@v2"}, SEVERAL),
        ({"path": "/root/content/a.jsonl", "files": [{"path": ""}]}, {"dataset": "alice/gsm8k@v2"}, "jsonl"),
        ({"path": "/shared/rows", "files": [{"path": ""}]}, {"path": "rows"}, ""),
    ],
)  # fmt: skip
def test_the_form_of_an_input_is_told_by_what_is_recorded_of_it(
    row: dict[str, Any], source: dict[str, str], found: str
) -> None:
    assert form_of(row, {"spec": {"data": {"train": source}}}, "train") == found


def test_admission_compiles_again_and_refuses_another_plan(
    tp: Tp, root: StorageRoot, counting: Callable[..., Path]
) -> None:
    counting()
    run, _ = finished(tp, "counting")
    copy = RunPaths(run.root.with_name("run-00000001"))
    shutil.copytree(run.root, copy.root)
    plan = copy.work / ".tuneplane/plan.json"
    for path in (copy.work, plan.parent, plan, copy.package):
        os.chmod(path, 0o755)
    value: dict[str, Any] = json.loads(plan.read_text())
    value["argv"] = ["/bin/true"]
    plan.write_text(json.dumps(value))
    _list_again(copy)
    with pytest.raises(Refusals) as caught:
        admission.judge(root, load_site(root), copy, usage=lambda _: admission.Usage(0, 0))
    assert [r.code for r in caught.value.items] == ["E-FRAME-010"]


def _list_again(run: RunPaths) -> None:
    """A forger's package.json for the files as they are."""
    from tuneplane.record.canonical import pretty_bytes
    from tuneplane.record.digest import scan_tree, tree_digest_v2

    entries = [e for e in scan_tree(run.work) if e.path != admission.PACKAGE_LIST]
    listing = json.loads(run.package.read_text())
    listing |= {"digest_v2": tree_digest_v2(entries), "files": [e.as_json() for e in entries]}
    run.package.write_bytes(pretty_bytes(listing))
