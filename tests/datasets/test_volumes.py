"""Volumes: the newest push is what the next job gets, and what a job got stays as it was."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from threading import Barrier, Thread

import pytest
from tuneplane.contract.layout import StorageRoot
from tuneplane.launch.data import data_variables, verify_data, volume_note
from tuneplane.launch.verify import LaunchRefused
from tuneplane.record.files import write_json_new

from hpc.data.kinds import VOLUME
from hpc.data.push import Pusher, push_volume
from hpc.data.visibility import PRIVATE, PUBLIC, Visibility
from hpc.data.volumes import create, remove, resolve_volumes
from hpc.errors import Refusal
from hpc.registry.seal import seal
from hpc.registry.shelf import Ref, Shelf
from hpc.site.layout import init_root
from hpc.site.members import add_user
from hpc.site.sitefile import Site, load_site
from hpc.site.users import User
from tests.datasets.conftest import NOW, as_user, codes


@pytest.fixture
def content(scratch: Path) -> Callable[[str], Path]:
    """content("text"): a folder with that text in it."""

    def make(text: str) -> Path:
        folder = scratch / f"content-{text}"
        (folder / "deep").mkdir(parents=True)
        (folder / "a.txt").write_text(text)
        (folder / "deep/b.txt").write_text(text)
        return folder

    return make


@pytest.fixture
def volume(by: Pusher, content: Callable) -> str:
    create(by, "ref", Visibility(PUBLIC))
    push_volume(by, "ref", content("one"))
    return f"{by.user.name}/ref"


def test_a_push_moves_the_volume_on_and_a_job_keeps_its_content(
    by: Pusher, volume: str, content: Callable, root: StorageRoot, site: Site
) -> None:
    before = resolve_volumes(root, site, [volume])["ref"]
    push_volume(by, "ref", content("two"))
    after = resolve_volumes(root, site, [volume])["ref"]
    assert (before["generation"], after["generation"]) == (1, 2)
    assert Path(before["path"], "a.txt").read_text() == "one"
    assert Path(after["path"], "a.txt").read_text() == "two"
    for number in range(3, 12):
        push_volume(by, "ref", content(str(number)))
    assert resolve_volumes(root, site, [volume])["ref"]["generation"] == 11


def test_what_is_not_there_is_named_all_at_once(by: Pusher, root: StorageRoot, site: Site) -> None:
    me = by.user.name
    create(by, "empty", Visibility(PUBLIC))
    assert codes(lambda: resolve_volumes(root, site, [f"{me}/empty", f"{me}/none"])) == ["E-DATA-030", "E-DATA-030"]
    assert codes(lambda: push_volume(by, "none", root.path)) == ["E-DATA-030"]
    assert codes(lambda: create(by, "empty", Visibility(PUBLIC))) == ["E-REG-001"]
    assert codes(lambda: create(by, "a/b", Visibility(PUBLIC))) == ["E-SPEC-017"]


def test_of_two_pushes_at_once_each_is_whole_and_none_is_lost(
    by: Pusher, volume: str, content: Callable, root: StorageRoot
) -> None:
    folders, start = [content(f"at-once-{n}") for n in range(4)], Barrier(4)
    outcome: list[str] = []

    def one(folder: Path) -> None:
        start.wait()
        try:
            outcome.append(push_volume(by, "ref", folder).version)
        except Refusal as fault:
            outcome.append(fault.code)

    threads = [Thread(target=one, args=(f,)) for f in folders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    there = set(Shelf(root, VOLUME).versions(by.user.name, "ref")) - {"1"}
    assert {o for o in outcome if o != "E-REG-001"} == there
    assert len(outcome) == 4


def test_a_number_is_never_used_twice(
    by: Pusher, volume: str, content: Callable, root: StorageRoot, site: Site
) -> None:
    push_volume(by, "ref", content("two"))
    seal(root, [VOLUME], site=site, user=by.user, now=NOW)
    remove(by, Ref(by.user.name, "ref"))
    create(by, "ref", Visibility(PUBLIC))
    assert push_volume(by, "ref", content("three")).version == "3"


def test_without_a_container_links_stand_for_the_mounts(
    volume: str, root: StorageRoot, site: Site, tmp_path: Path
) -> None:
    launch = {"volumes": resolve_volumes(root, site, [volume])}
    place = Path(data_variables(launch, tmp_path)["VOLUMES_DIR"])
    assert f"{volume} (generation 1); no container here" in volume_note(launch)
    assert "read-only below /tuneplane/volumes" in volume_note(launch | {"runtime": {"container": True}})
    assert (place / "ref/deep/b.txt").read_text() == "one"
    assert data_variables(launch, tmp_path)["VOLUMES_DIR"] == str(place)


def test_in_a_container_a_missing_mount_is_refused(volume: str, root: StorageRoot, site: Site, tmp_path: Path) -> None:
    launch = {"volumes": resolve_volumes(root, site, [volume]), "runtime": {"container": True}}
    with pytest.raises(LaunchRefused) as caught:
        data_variables(launch, tmp_path)
    assert caught.value.code == "E-JOB-050"


def test_mounts_are_read_only_binds_by_leaf(volume: str, root: StorageRoot, site: Site) -> None:
    from hpc.submit.batchscript import mounts

    found = resolve_volumes(root, site, [volume])
    run = root.run("alice", "exp", "run-00aa")
    lines = mounts(
        root, run, run.work, {"inputs": {}, "binds": [], "volumes": found, "output_dataset": {"folder": "/x"}}
    )
    assert lines[-1] == f"type=bind,src={found['ref']['path']},dst=/tuneplane/volumes/ref,ro"
    writable = [line for line in lines if not line.endswith(",ro")]
    assert writable == [f"type=bind,src={run.root},dst={run.root}"]


def test_a_volume_that_changed_by_hand_is_refused_twice(volume: str, root: StorageRoot, site: Site) -> None:
    launch = {"volumes": resolve_volumes(root, site, [volume])}
    folder = Path(launch["volumes"]["ref"]["path"])
    folder.chmod(0o755)
    (folder / "more.txt").write_text("x")
    assert "E-REG-013" in codes(lambda: resolve_volumes(root, site, [volume]))
    record = folder.parent / "record.json"
    record.chmod(0o644)
    record.write_text("{}")
    with pytest.raises(LaunchRefused) as caught:
        verify_data(launch)
    assert caught.value.code == "E-JOB-050"


def test_only_what_no_open_run_needs_is_removed(
    by: Pusher, volume: str, content: Callable, root: StorageRoot, site: Site
) -> None:
    run = root.run(by.user.name, "exp", "run-00aa")
    run.jobspec.parent.mkdir(parents=True)
    write_json_new(run.launch, {"volumes": resolve_volumes(root, site, [volume])})
    push_volume(by, "ref", content("two"))
    push_volume(by, "ref", content("three"))
    assert remove(by, Ref(by.user.name, "ref"), old=True) == ["2"]
    assert codes(lambda: remove(by, Ref(by.user.name, "ref"))) == ["E-DATA-020"]
    run.attempt(0).root.mkdir(parents=True)
    write_json_new(run.attempt(0).end, {"class": "failed", "requeue": False})
    assert remove(by, Ref(by.user.name, "ref"), old=True) == ["1"]
    assert remove(by, Ref(by.user.name, "ref")) == ["3"]
    assert os.listdir(root.shelf("volumes") / by.user.name) == [".gone"]


@pytest.mark.two_users
def test_access_is_checked_as_the_user_who_submits(scratch: Path, people: tuple[User, User], content: Callable) -> None:
    root = init_root(scratch / "shared", name="lab").root
    site = load_site(root)
    anna, bert = people
    for user in people:
        add_user(root, user.name)
    folder = content("secret")
    by = Pusher(root, site, anna, NOW)
    as_user(anna, lambda: (create(by, "ref", Visibility(PRIVATE)), push_volume(by, "ref", folder)))
    ref = f"{anna.name}/ref"
    assert as_user(anna, lambda: resolve_volumes(root, site, [ref])["ref"]["generation"]) == "1"
    assert as_user(bert, lambda: resolve_volumes(root, site, [ref])) == "E-DATA-031"
    launch = {"volumes": resolve_volumes(root, site, [ref])}

    def starts() -> str:
        try:
            return str(len(verify_data(launch)))
        except LaunchRefused as refused:
            return refused.code

    assert (as_user(anna, starts), as_user(bert, starts)) == ("1", "E-JOB-050")
    assert as_user(bert, lambda: push_volume(Pusher(root, site, bert, NOW, anna.name), "ref", folder)) == "E-REG-003"
