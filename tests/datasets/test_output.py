"""What a run produced: published by the job in the registry's own form, on success only, whole or not at all, and later where it could not be."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tuneplane.contract import schemas
from tuneplane.contract.layout import RunPaths, StorageRoot
from tuneplane.launch.output import publish_output as in_job
from tuneplane.record.files import write_json_new

from hpc.data import cards
from hpc.data.kinds import DATASET, VOLUME
from hpc.data.output import make_place, plan_output, publish_output
from hpc.data.push import Pusher, push_dataset
from hpc.data.references import resolve_dataset
from hpc.data.remove import remove_version
from hpc.registry.audit import Options, audit
from hpc.registry.look import SCHEMA
from hpc.registry.resolve import require_content
from hpc.registry.seal import seal
from hpc.registry.shelf import Ref, Shelf
from hpc.site.sitefile import Site
from hpc.site.users import User
from tests.datasets.conftest import NOW, codes, rows, write_rows
from tests.datasets.test_references import digest

MADE_BY = {
    "run_id": "run-00aa",
    "attempt": 0,
    "exp": "exp",
    "owner": "",
    "spec_digest": "",
    "package_digest": "",
    "inputs": ["a/b@1"],
}


@pytest.fixture
def output(by: Pusher) -> dict[str, str]:
    """launch.json's word on the output `half@1`, its place made."""
    planned = plan_output(by.root, by.site, by.user.name, f"{by.user.name}/half@1", array=False)
    make_place(by, planned)
    return planned


@pytest.fixture
def made(scratch: Path) -> Path:
    """What a job left in $TUNEPLANE_DATASET_OUT_DIR."""
    folder = scratch / "out/dataset"
    write_rows(folder / "train.jsonl", rows(20))
    write_rows(folder / "deep/test.jsonl", rows(4, 20))
    (folder / "README.md").write_text("# Half\n")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__/x.pyc").write_bytes(b"x")
    return folder


def publish(by: Pusher, output: dict[str, str], made: Path, **more: Any) -> dict[str, Any]:
    return in_job(by.root, output, made, {**MADE_BY, "owner": by.user.name}, now=NOW, left_s=more.get("left_s"))


def test_the_job_writes_what_the_engine_writes(
    by: Pusher, output: dict[str, str], made: Path, root: StorageRoot, site: Site
) -> None:
    assert schemas.REGISTRY_RECORD == SCHEMA
    said = publish(by, output, made)
    assert (said["state"], said["message"]) == ("published", "")
    mine = cards.find(root, f"{by.user.name}/half@1")
    require_content(mine)
    push_dataset(by, "half", "2", made, produced_by=dict(mine.facts["produced_by"]))
    other = cards.find(root, f"{by.user.name}/half@2")
    assert (mine.digest, mine.digest_v2, mine.facts) == (other.digest, other.digest_v2, other.facts)
    assert mine.record.keys() == other.record.keys()
    assert (said["digest"], mine.facts["produced_by"]["run_id"]) == (mine.digest, "run-00aa")
    assert oct((mine.content / "train.jsonl").stat().st_mode & 0o7777) == "0o444"
    report = audit(root, [DATASET, VOLUME], site=site, user=by.user, options=Options(), core_version="0.4.0", now=NOW)
    assert [p for p in report.problems if p.level == "tampered"] == []


def test_what_a_run_produced_trains_the_next_by_reference(
    by: Pusher, output: dict[str, str], made: Path, root: StorageRoot, site: Site
) -> None:
    publish(by, output, made)
    train = resolve_dataset(root, site, output["ref"], "", field="spec.data.train", digest=digest)
    assert (train["dataset"]["rows"], train["dataset"]["ref"]) == (20, output["ref"])


def test_called_again_it_finds_what_it_published(by: Pusher, output: dict[str, str], made: Path) -> None:
    first = publish(by, output, made)
    assert publish(by, output, made) == first
    other = in_job(by.root, output, made, {**MADE_BY, "run_id": "run-00bb"}, now=NOW, left_s=None)
    assert (other["state"], other["message"]) == ("refused", "the version exists and is another's")


def test_nothing_is_begun_that_the_time_limit_would_cut(
    by: Pusher, output: dict[str, str], made: Path, root: StorageRoot
) -> None:
    assert publish(by, output, made, left_s=30)["state"] == "deferred"
    assert os.listdir(Path(output["folder"])) == []
    assert publish(by, output, made, left_s=3600)["state"] == "published"


def _nothing(made: Path) -> None:
    for path in sorted(made.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (lambda m: (m / "bad.jsonl").write_text("[1]\n"), "E-DATA-003 bad.jsonl:1"),
        (lambda m: (m / "link").symlink_to("/etc/passwd"), "a link"),
        (lambda m: (m / "dataset.yaml").write_text("schema: tuneplane/dataset/v1\n"), "a job writes it as JSON"),
        (
            lambda m: (m / "dataset.yaml").write_text('{"schema": "tuneplane/dataset/v1", "name": "other"}'),
            "is another name",
        ),
        (_nothing, "left nothing"),
    ],
)
def test_what_is_no_data_set_is_said_and_leaves_nothing(
    by: Pusher, output: dict[str, str], made: Path, spoil: Callable[[Path], object], word: str
) -> None:
    spoil(made)
    said = publish(by, output, made)
    assert said["state"] == "refused"
    assert word in said["message"]
    assert os.listdir(output["folder"]) == []


def test_a_manifest_of_a_job_is_json(by: Pusher, output: dict[str, str], made: Path, root: StorageRoot) -> None:
    manifest = {
        "schema": "tuneplane/dataset/v1",
        "splits": {"train": ["train.jsonl", "deep/*.jsonl"]},
        "license": "CC0-1.0",
    }
    (made / "dataset.yaml").write_text(json.dumps(manifest))
    assert publish(by, output, made)["state"] == "published"
    facts = cards.find(root, output["ref"]).facts
    assert (facts["splits"]["train"]["rows"], facts["manifest"]["license"]) == (24, "CC0-1.0")


def test_a_sealed_name_is_not_given_to_other_bytes(
    by: Pusher, output: dict[str, str], made: Path, root: StorageRoot, site: Site
) -> None:
    publish(by, output, made)
    seal(root, [DATASET], site=site, user=by.user, now=NOW)
    remove_version(Shelf(root, DATASET, site=site), Ref(by.user.name, "half", "1"), user=by.user, now=NOW)
    assert "sealed" in publish(by, output, made)["message"]
    assert codes(lambda: plan_output(root, site, by.user.name, output["ref"], array=False)) == ["E-DATA-040"]


def test_killed_at_any_moment_it_is_there_whole_or_not_at_all(
    by: Pusher, made: Path, output: dict[str, str], root: StorageRoot
) -> None:
    for part in range(10):
        write_rows(made / f"train-{part}.jsonl", rows(2000))
    for number in range(12):
        planned = output | {"version": f"3.{number}", "ref": f"{by.user.name}/half@3.{number}"}
        pid = os.fork()
        if pid == 0:
            try:
                publish(by, planned, made)
            finally:
                os._exit(0)
        time.sleep(0.02 * number)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        for version in Shelf(root, DATASET).versions(by.user.name, "half"):
            require_content(cards.find(root, f"{by.user.name}/half@{version}"))
        assert publish(by, planned, made)["state"] == "published"


@pytest.fixture
def full(output: dict[str, str]) -> Iterator[Path]:
    """A file system of 64 KiB in the place of the data set's folder."""
    place = Path(output["folder"])
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=755", "tmpfs", place], check=True)
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.mark.two_users
def test_a_full_disk_never_changes_how_the_run_ended(
    by: Pusher, output: dict[str, str], made: Path, full: Path
) -> None:
    write_rows(made / "train.jsonl", rows(5000))
    said = publish(by, output, made)
    assert (said["state"], "No space left" in said["message"]) == ("failed", True)
    assert os.listdir(full) == []


def finished(root: StorageRoot, user: User, output: dict[str, str], made: Path, **report: Any) -> RunPaths:
    """A run that ended well and whose job did not publish."""
    run = root.run(user.name, "exp", "run-00aa")
    run.jobspec.parent.mkdir(parents=True)
    write_json_new(run.launch, {"output_dataset": output})
    run.attempt(0).out.mkdir(parents=True)
    os.rename(made, run.attempt(0).out / "dataset")
    write_json_new(run.report, {"status": "done", "attempts": [{"attempt": 0}], **report})
    return run


def test_of_one_folder_made_twice_the_digest_is_the_same(by: Pusher, made: Path, scratch: Path) -> None:
    """P59: names in another order, other times and another umask are no other data."""
    again = scratch / "again"
    for path in sorted((p for p in made.rglob("*") if p.is_file()), reverse=True):
        target = again / path.relative_to(made)
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        target.write_bytes(path.read_bytes())
        target.chmod(0o600)
        os.utime(target, (1, 1))
    one, two = push_dataset(by, "one", "1", made), push_dataset(by, "one", "2", again)
    assert (one.digest, one.digest_v2) == (two.digest, two.digest_v2)


def test_later_it_is_published_once(by: Pusher, output: dict[str, str], made: Path, root: StorageRoot) -> None:
    run = finished(root, by.user, output, made, output_dataset={"state": "deferred", "digest_v2": ""})
    first = publish_output(by, run)
    assert first == publish_output(by, run) | {}
    assert cards.find(root, output["ref"]).facts["produced_by"]["run_id"] == run.run_id


def test_bytes_that_changed_since_are_refused(
    by: Pusher, output: dict[str, str], made: Path, root: StorageRoot
) -> None:
    run = finished(root, by.user, output, made, output_dataset={"state": "failed", "digest_v2": "sha256:" + "0" * 64})
    assert codes(lambda: publish_output(by, run)) == ["E-DATA-041"]


def test_a_run_that_failed_publishes_nothing(by: Pusher, output: dict[str, str], made: Path, root: StorageRoot) -> None:
    run = finished(root, by.user, output, made)
    run.report.unlink()
    assert codes(lambda: publish_output(by, run)) == ["E-DATA-040"]


def test_a_name_that_can_never_be_had_is_refused_before_the_queue(
    by: Pusher, output: dict[str, str], made: Path, root: StorageRoot, site: Site
) -> None:
    me = by.user.name

    def plan(ref: str, array: bool = False) -> list[str]:
        return codes(lambda: plan_output(root, site, me, ref, array=array))

    assert plan(f"{me}/half@2") == []
    assert plan("nobody/half@2") == ["E-DATA-040"]
    assert plan(f"{me}/half@2", array=True) == ["E-DATA-040"]
    publish(by, output, made)
    assert plan(output["ref"]) == ["E-DATA-040"]


@pytest.mark.parametrize(("script", "published"), [("true", True), ("false", False)])
def test_the_end_of_a_run_publishes_on_success_only(
    make_run: Callable, by: Pusher, output: dict[str, str], root: StorageRoot, script: str, published: bool
) -> None:
    """A whole run on one node: the launcher, the script, and the batch step's last act."""
    from tuneplane.launch.finish import finish
    from tuneplane.launch.node import run_node
    from tuneplane.launch.place import read_place

    lines = f'head -c 0 /dev/null\nprintf \'{{"prompt": "a", "completion": "b"}}\\n\' > "$TUNEPLANE_DATASET_OUT_DIR/train.jsonl"\n{script}\n'
    run = make_run(lines, launch_data={"output_dataset": output}, data={"output_dataset": output["ref"]})
    env = run.env()
    code = run_node(read_place(env), env)
    word = finish(read_place(env), {**env, "TP_STEP_CODE": str(code)})
    assert word == ("done" if published else "failed")
    assert Shelf(root, DATASET).versions(by.user.name, "half") == (["1"] if published else [])
    if published:
        report = json.loads(run.run.report.read_text())
        assert report["output_dataset"]["state"] == "published"
        assert cards.find(root, output["ref"]).facts["produced_by"]["run_id"] == run.run.run_id
        assert finish(read_place(env), env) == "done"
