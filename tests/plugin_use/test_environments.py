"""Environments: tasks that are believed, a shelf like the others, and what a job learns of the one that its spec names."""

from __future__ import annotations

import getpass
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tuneplane.contract.environments import Task, count_tasks, parse_task, read_tasks
from tuneplane.contract.layout import StorageRoot
from tuneplane.launch.data import data_variables, environment_variables, verify_data
from tuneplane.launch.verify import LaunchRefused, verify_inputs
from tuneplane.record.digest import digest_file

from hpc.cli.registry import _kinds
from hpc.data.push import Pusher, push_record
from hpc.errors import Refusal, Refusals
from hpc.plugins.environment_shelf import ENVIRONMENT, environment_input, environment_kind
from hpc.registry.audit import Options, audit
from hpc.registry.publish import Published
from hpc.site.layout import init_root
from hpc.site.members import ensure_owner
from hpc.site.sitefile import load_site
from hpc.site.users import real_user

ME, NOW = getpass.getuser(), "2026-01-02T03:04:05Z"
MANIFEST: dict[str, Any] = {
    "schema": "tuneplane/environment/v1", "protocol": "nemo-gym", "deployment": "local", "domain": "sums",
    "verifier": {"kind": "plugin", "ref": f"{ME}/sums-verifier"}, "tools": [{"name": "adder"}],
}  # fmt: skip
TASKS = [
    {"id": "a", "prompt": "What is 2 + 3?", "reference": "5", "split": "train"},
    {"id": "b", "prompt": [{"role": "user", "content": "What is 4 + 4?"}], "reference": 8, "metadata": {"hard": False}, "split": "train"},
    {"id": "c", "prompt": "What is 1 + 1?", "reference": "2", "split": "eval"},
]  # fmt: skip


def write(folder: Path, tasks: list[Any] | None = None, **manifest: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").write_text(json.dumps(MANIFEST | manifest))
    (folder / "tasks.jsonl").write_text("".join(json.dumps(t) + "\n" for t in (TASKS if tasks is None else tasks)))
    return folder


@pytest.fixture
def by(tmp_path: Path) -> Pusher:
    root = init_root(tmp_path / "root", name="lab").root
    return Pusher(root, load_site(root), real_user(), NOW)


@pytest.fixture
def put(by: Pusher, tmp_path: Path) -> Callable[..., Published]:
    def do(version: str = "1", folder: Path | None = None) -> Published:
        return push_record(by, environment_kind("sums", version), "sums", folder or write(tmp_path / "env"), None)

    return do


def given(by: Pusher, split: str = "train", ref: str = f"{ME}/sums@1") -> dict[str, Any]:
    return environment_input(by.root, by.site, ref, split, lambda path, info: digest_file(path))


def codes(call: Callable[[], object]) -> list[str]:
    with pytest.raises((Refusal, Refusals)) as caught:
        call()
    return [f"{f.code} {f.field}" for f in getattr(caught.value, "items", [caught.value])]


def test_tasks_are_read_in_order_and_counted_by_split(tmp_path: Path) -> None:
    folder = write(tmp_path)
    assert [t.id for t in read_tasks(folder)] == ["a", "b", "c"]
    assert count_tasks(folder) == {"train": 2, "eval": 1}
    assert list(read_tasks(folder))[1:] == [
        Task("b", [{"role": "user", "content": "What is 4 + 4?"}], 8, {"hard": False}, "train"),
        Task("c", "What is 1 + 1?", "2", {}, "eval"),
    ]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"id": ""}, "tasks.jsonl:1: id"),
        ({"id": 7}, "tasks.jsonl:1: id"),
        ({"prompt": None}, "tasks.jsonl:1: prompt"),
        ({"prompt": []}, "tasks.jsonl:1: prompt"),
        ({"prompt": [{"role": "chief", "content": "x"}]}, "tasks.jsonl:1: prompt"),
        ({"metadata": [1]}, "tasks.jsonl:1: metadata"),
        ({"split": "test"}, "tasks.jsonl:1: split"),
        ({"split": None}, "tasks.jsonl:1: split"),
        ({"answer": "5"}, "tasks.jsonl:1"),
        ({"id": "b"}, "tasks.jsonl:2: id"),
        ({"prompt": "What is 1 + 1?"}, "tasks.jsonl:3: prompt"),
    ],
)
def test_a_malformed_task_is_named_and_stops_the_push(
    put: Callable, tmp_path: Path, change: dict[str, Any], field: str
) -> None:
    folder = write(tmp_path / "bad", [TASKS[0] | change, *TASKS[1:]])
    assert codes(lambda: put(folder=folder)) == [f"E-DATA-060 {field}"]


def test_all_that_is_wrong_is_told_at_once(put: Callable, tmp_path: Path, by: Pusher) -> None:
    folder = write(tmp_path / "bad", [{"id": "x"}, *TASKS, {"id": "y"}], protocol="smtp")
    (folder / "tasks.jsonl").open("a").write("no json\n")
    said = codes(lambda: put(folder=folder))
    assert said == [
        "E-PLUGIN-064 manifest.json: protocol",
        "E-DATA-060 tasks.jsonl:1: prompt",
        "E-DATA-060 tasks.jsonl:5: prompt",
        "E-DATA-003 tasks.jsonl:6",
    ]
    for name, code in (("tasks.jsonl", "E-DATA-060 tasks.jsonl"), ("manifest.json", "E-PLUGIN-060 manifest.json")):
        shutil.rmtree(folder)
        (write(folder) / name).unlink()
        assert codes(lambda: put(folder=folder)) == [code]
    assert codes(lambda: put(folder=write(folder, name="other"))) == ["E-DATA-006 manifest.json: name"]
    assert not os.path.lexists(by.root.shelf("environments") / ME / "sums" / "1")


def test_the_job_gets_the_folder_the_id_and_the_split_of_its_operation(put: Callable, by: Pusher) -> None:
    done = put()
    source = given(by)
    assert [f["path"] for f in source["files"]] == ["manifest.json", "tasks.jsonl"]
    assert source["environment"]["digest"] == done.digest
    launch = {"inputs": {"environment": source}}
    names = {name.rpartition("_")[2]: value for name, value in data_variables(launch, by.root.path).items()}
    assert names == {"DIR": str(done.folder / "content"), "ID": f"{ME}/sums@1", "SPLIT": "train", "PORT": "8900"}
    assert given(by, "eval")["environment"]["split"] == "eval"
    assert len(verify_inputs(launch)) == 2
    assert verify_data(launch)[0]["checked"] == "record"


def test_a_remote_environment_s_endpoint_reaches_the_job(put: Callable, by: Pusher, tmp_path: Path) -> None:
    put(folder=write(tmp_path / "far", protocol="openenv", deployment="remote", endpoint="https://h.example/x"))
    variables = environment_variables(given(by)["environment"])
    assert variables["TUNEPLANE_JOB_ENVIRONMENT_ENDPOINT"] == "https://h.example/x"


def test_training_on_evaluation_tasks_alone_is_refused_before_the_queue(
    put: Callable, by: Pusher, tmp_path: Path
) -> None:
    put(folder=write(tmp_path / "e", TASKS[2:]))
    assert codes(lambda: given(by)) == ["E-DATA-061 spec.data.environment"]
    assert given(by, "eval")["environment"]["tasks"] == {"eval": 1}
    assert codes(lambda: given(by, ref=f"{ME}/sums@2"))[0].startswith("E-REG-002")


def test_a_changed_task_stops_the_submission_and_the_job(put: Callable, by: Pusher) -> None:
    done = put()
    source = given(by)
    tasks = done.folder / "content" / "tasks.jsonl"
    data = tasks.read_bytes()
    tasks.chmod(0o644)
    tasks.write_bytes(data.replace(b'"5"', b'"6"'))
    tasks.chmod(0o444)
    assert codes(lambda: given(by)) == [f"E-REG-013 {tasks}"]
    with pytest.raises(LaunchRefused) as caught:
        verify_inputs({"inputs": {"environment": source}})
    assert caught.value.code == "E-JOB-009"


def test_the_audit_knows_the_shelf(put: Callable, by: Pusher) -> None:
    put()
    report = audit(
        by.root, _kinds(), site=by.site, user=by.user, options=Options(deep=True), core_version="0.4.0", now=NOW
    )
    assert (report.verdict, [p.path for p in report.problems]) == ("verified", [])
    assert report.tally.versions == 1


def test_a_root_of_an_earlier_release_has_no_such_shelf_and_works(by: Pusher, tmp_path: Path) -> None:
    shutil.rmtree(by.root.shelf("environments"))
    shutil.rmtree(by.root.shelf("volumes") / ME, ignore_errors=True)
    ensure_owner(by.root, by.user, site=by.site)
    assert (by.root.shelf("volumes") / ME).is_dir()
    assert codes(lambda: push_record(by, environment_kind("sums", "1"), "sums", write(tmp_path / "x"), None))[
        0
    ].startswith("E-SITE-022")
    init_root(by.root.path, name="lab")
    assert push_record(by, environment_kind("sums", "1"), "sums", write(tmp_path / "x"), None).files == 2


def test_the_commands(put: Callable, by: Pusher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from click.testing import CliRunner

    from hpc.cli.env import env

    monkeypatch.setenv("TUNEPLANE_STORAGE_ROOT", str(by.root.path))
    run = CliRunner().invoke
    assert "no environments" in run(env, ["ls"]).output
    folder = write(tmp_path / "env")
    pushed = json.loads(run(env, ["push", "sums", "1", str(folder), "--json"]).output)
    assert (pushed["id"], pushed["version"], pushed["files"]) == (f"{ME}/sums", "1", 2)
    assert run(env, ["ls"]).output.split()[-7:] == [
        f"{ME}/sums",
        "1",
        "eval:1",
        "train:2",
        "nemo-gym",
        "plugin",
        "public",
    ]
    listed = json.loads(run(env, ["ls", "--json"]).output)
    assert listed["environments"][0]["newest"]["facts"]["tasks"] == {"train": 2, "eval": 1}
    shown = run(env, ["show", f"{ME}/sums", "--sample", "1"]).output
    assert "1 eval, 2 train" in shown
    assert '"id": "a"' in shown
    assert json.loads(run(env, ["rm", f"{ME}/sums@1", "--json"]).output) == {"removed": f"{ME}/sums@1", "unseen": []}
    assert json.loads(run(env, ["ls", "--json"]).output)["environments"][0]["versions"] == []
    assert ENVIRONMENT.shelf == "environments"


def test_one_row_is_judged_alone() -> None:
    assert parse_task({"id": "a", "prompt": "x", "split": "eval"}, "here") == Task("a", "x", None, {}, "eval")
    assert StorageRoot(Path("/r")).shelf("environments") == Path("/r/registry/environments")
