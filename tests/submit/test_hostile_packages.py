"""A package's owner who changes it while it is admitted: the verdict and the copy are about the same bytes, and nothing leaks."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tuneplane.contract.layout import RunPaths, StorageRoot
from tuneplane.record.digest import FileEntry, TreeError, scan_tree, tree_digest_v2

from hpc.errors import Refusal
from hpc.site.model import Site
from hpc.submit import admission, enforce
from hpc.submit.package import write_package

SITE = Site.model_validate({"schema": "tuneplane-hpc/site/v1", "name": "lab"})
RECORDS = {"jobspec.json": {"a": 1}, "launch.json": {"options": {}}, "recipe.json": {}}


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    root = StorageRoot(tmp_path)
    made = root.run("alice", "exp", "run-0123abcd")
    made.root.parent.mkdir(parents=True)
    root.admitted.mkdir()
    write_package(made, [], RECORDS, max_bytes=1 << 20, created_at="2026-01-01T00:00:00.000000Z")
    return made


def swap(path: Path, text: str) -> None:
    os.chmod(path.parent, 0o755)
    path.unlink()
    path.write_text(text)


@pytest.mark.parametrize("name", ["jobspec.json", "launch.json"])
def test_a_record_that_is_swapped_after_it_was_digested_is_refused(
    run: RunPaths, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    assert admission.read_package(run)[0] == {"a": 1}

    def scan(work: Path, *, max_bytes: int) -> Iterator[FileEntry]:
        yield from list(scan_tree(work, max_bytes=max_bytes))
        swap(run.work / ".tuneplane" / name, '{"options": {}, "lie": 1}')

    monkeypatch.setattr(admission, "scan_tree", scan)
    with pytest.raises(Refusal) as refused:
        admission.read_package(run)
    assert (refused.value.code, name in refused.value.message) == ("E-SUBMIT-071", True)


@pytest.mark.parametrize(
    "launch", [[], {"options": []}, {"options": None}, {"runtime": "x"}, {"fleet": {}}, {"profiles": 1}]
)
def test_a_launch_json_of_another_form_is_refused(tmp_path: Path, launch: Any) -> None:
    made = StorageRoot(tmp_path).run("alice", "exp", "run-0123abcd")
    made.root.parent.mkdir(parents=True)
    write_package(made, [], {**RECORDS, "launch.json": launch}, max_bytes=1 << 20, created_at="")
    with pytest.raises(Refusal) as refused:
        admission.read_package(made)
    assert refused.value.code == "E-SUBMIT-071"


def test_a_copy_follows_no_link_waits_for_no_pipe_and_has_a_limit(tmp_path: Path) -> None:
    secret, source = tmp_path / "keys", tmp_path / "work"
    secret.mkdir()
    (secret / "admission.key").write_text("secret")
    (source / "a").mkdir(parents=True)
    (source / "a/run.sh").write_text("echo")
    os.chmod(source / "a/run.sh", 0o755)
    enforce._copy(source, tmp_path / "copy", max_bytes=4)
    assert tree_digest_v2(scan_tree(tmp_path / "copy")) == tree_digest_v2(scan_tree(source))
    with pytest.raises(TreeError, match="grew"):
        enforce._copy(source, tmp_path / "small", max_bytes=3)
    (source / "experiments").symlink_to(secret)
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        enforce._copy(source, tmp_path / "linked", max_bytes=1 << 20)
    (source / "experiments").unlink()
    os.mkfifo(source / "pipe")
    with pytest.raises(TreeError, match="not a regular file"):
        enforce._copy(source, tmp_path / "piped", max_bytes=1 << 20)
    assert not [p for p in tmp_path.rglob("admission.key") if p.parent != secret]


@pytest.fixture
def service(run: RunPaths, monkeypatch: pytest.MonkeyPatch) -> StorageRoot:
    """The judgement and the key are stood in for: what is tried here lies between the two."""
    digest = admission.read_package(run)[2]
    monkeypatch.setattr(enforce, "judge", lambda *_, **__: {"package_digest": digest})
    monkeypatch.setattr(enforce, "sign", lambda _, body: {**body, "signature": "00"})
    monkeypatch.setattr(enforce.os, "getuid", lambda: -1)
    return StorageRoot(run.root.parents[3])


def admit(root: StorageRoot, run: RunPaths) -> dict[str, Any]:
    return enforce.enforce(root, SITE, run, usage=lambda _: admission.Usage(0, 0), now="2026-01-01T00:00:00.000000Z")


def test_a_copy_can_be_read_by_others_only_once_it_is_the_package_that_was_judged(
    service: StorageRoot, run: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = []

    def seen(work: Path, body: dict[str, Any]) -> dict[str, Any]:
        modes.append(work.parent.stat().st_mode & 0o777)
        return body

    monkeypatch.setattr(enforce, "judge_copy", seen)
    admit(service, run)
    final = service.admitted / run.run_id
    assert (modes, final.stat().st_mode & 0o777) == ([0o700], 0o755)
    assert json.loads((final / "admission.json").read_text())["mode"] == "enforced"
    with pytest.raises(Refusal) as refused:
        admit(service, run)
    assert refused.value.code == "E-SUBMIT-082"


@pytest.mark.parametrize("how", ["changed", "link", "pipe"])
def test_a_package_that_changes_under_the_service_user_leaves_nothing_admitted(
    service: StorageRoot, run: RunPaths, how: str
) -> None:
    spec = run.work / ".tuneplane/jobspec.json"
    swap(spec, "{}")
    if how != "changed":
        spec.unlink()
        os.mkfifo(spec) if how == "pipe" else spec.symlink_to("/etc/passwd")
    with pytest.raises(Refusal) as refused:
        admit(service, run)
    assert refused.value.code == "E-SUBMIT-083"
    assert os.listdir(service.admitted) == []
