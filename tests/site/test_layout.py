"""Laying out a root: every folder of the plan with its owner and exact mode, whoever does it, whatever the umask."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from tuneplane.contract.layout import StorageRoot

from hpc.errors import Refusal, Refusals
from hpc.site import layout
from hpc.site.check import check_root
from hpc.site.findings import Finding
from hpc.site.layout import init_root
from hpc.site.plan import ROWS
from hpc.site.sitefile import load_site
from hpc.site.users import User, find_group, real_user
from tests.site.people import AsUserError, as_user

MODES = {
    "": "0755",
    "site": "2755",
    "site/sbatch_templates": "2755",
    "site/images": "2755",
    "site/kernels": "2755",
    "site/keys": "2755",
    "site/users": "2755",
    "registry": "2755",
    "registry/recipes": "2755",
    "registry/activation": "2755",
    "registry/plugins": "3775",
    "registry/datasets": "3775",
    "registry/volumes": "3775",
    "registry/models": "3775",
    "registry/environments": "3775",
    "registry/channels": "3775",
    "registry/seals": "2755",
    "registry/index": "2755",
    "registry/log": "2755",
    "runs": "3775",
    "admitted": "2755",
    "cache": "2755",
    "cache/hf": "2755",
    "cache/hf/hub": "3775",
    "cache/hf/assets": "3775",
    "cache/datasets": "2755",
    "cache/hubs": "2755",
    "state": "3775",
}


def found_modes(root: Path) -> dict[str, str]:
    return {row.path: f"{stat.S_IMODE((root / row.path).lstat().st_mode):04o}" for row in ROWS}


def problems(root: StorageRoot) -> list[Finding]:
    return [f for f in check_root(root) if f.status == "fail"]


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=["umask-000", "umask-022", "umask-077"])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_modes_are_those_of_the_design_whatever_the_umask(scratch: Path, umask: int) -> None:
    laid = init_root(scratch / "root", name="lab")
    me = real_user().name
    assert found_modes(laid.root.path) == MODES
    own = {
        laid.root.path / "registry/plugins" / me: 0o755,
        laid.root.path / "registry/models" / me: 0o755,
        laid.root.owner_runs(me): 0o750,
        laid.root.user_state(me): 0o700,
        laid.root.site_file: 0o644,
    }
    assert {p: stat.S_IMODE(p.lstat().st_mode) for p in own} == own
    assert laid.new_folders == tuple(row.path for row in ROWS)
    assert problems(laid.root) == []


def test_running_again_changes_nothing_and_mends_modes(root: StorageRoot) -> None:
    root.site_file.write_text(root.site_file.read_text() + "# an edit\n")
    root.runs.chmod(0o777)
    root.templates.chmod(0o700)
    (root.cache / "hubs").rmdir()
    again = init_root(root.path, name="another")
    assert (again.new_folders, again.new_site_file) == (("cache/hubs",), False)
    assert found_modes(root.path) == MODES
    assert root.site_file.read_text().endswith("# an edit\n")
    assert load_site(root).name == "lab"


def test_an_interrupted_layout_is_finished(scratch: Path) -> None:
    first = init_root(scratch / "root").root
    first.site_file.unlink()
    (first.path / "state" / real_user().name).rmdir()
    again = init_root(scratch / "root")
    assert again.new_site_file
    assert problems(again.root) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_disk_at_any_step_is_a_refusal_and_running_again_finishes(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    real, left = os.mkdir, 0

    def failing(path: object, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(number, os.strerror(number))
        real(path, mode, dir_fd=dir_fd)  # type: ignore[call-overload]

    for steps in (0, 1, 7, len(ROWS), len(ROWS) + 3):
        left = steps
        with monkeypatch.context() as patch:
            patch.setattr(os, "mkdir", failing)
            with pytest.raises(Refusal) as caught:
                init_root(scratch / f"root{steps}")
        assert caught.value.code == ("E-STORE-026" if number == errno.EIO else "E-STORE-020")
        assert problems(init_root(scratch / f"root{steps}").root) == []


def test_a_site_file_that_cannot_be_written_leaves_none(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(layout, "write_new", full)
        with pytest.raises(Refusal) as caught:
            init_root(scratch / "root")
    assert caught.value.code == "E-STORE-020"
    assert not (scratch / "root" / "site" / "site.yaml").exists()
    assert problems(init_root(scratch / "root").root) == []


def test_several_at_once_lay_out_one_root(scratch: Path) -> None:
    children = []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                init_root(scratch / "root", name="lab")
                code = 0
            finally:
                os._exit(code)
        children.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0, 0, 0, 0]
    assert found_modes(scratch / "root") == MODES
    assert problems(StorageRoot(scratch / "root")) == []


def test_a_foreign_folder_is_refused_and_left_alone(scratch: Path) -> None:
    (scratch / "thesis").mkdir()
    (scratch / "thesis" / "chapter1.tex").write_text("x")
    with pytest.raises(Refusal) as caught:
        init_root(scratch / "thesis")
    assert (caught.value.code, caught.value.found) == ("E-SITE-040", "chapter1.tex")
    assert os.listdir(scratch / "thesis") == ["chapter1.tex"]


def test_a_fresh_file_system_counts_as_empty(scratch: Path) -> None:
    (scratch / "mount" / "lost+found").mkdir(parents=True)
    assert len(init_root(scratch / "mount").new_folders) == len(ROWS) - 1


@pytest.mark.parametrize("path", ["relative/root", "/", "/tmp/no/such/parent", "/tmp/a b", "/tmp/../tmp/x"])
def test_a_path_that_cannot_be_a_root_is_refused(path: str) -> None:
    with pytest.raises(Refusal) as caught:
        init_root(path)
    assert caught.value.code == "E-SITE-041"


def test_a_link_is_no_root(scratch: Path) -> None:
    (scratch / "real").mkdir()
    (scratch / "link").symlink_to("real")
    with pytest.raises(Refusal) as caught:
        init_root(scratch / "link")
    assert caught.value.code == "E-SITE-041"
    assert os.listdir(scratch / "real") == []


def test_a_bad_name_is_refused_before_anything_is_made(scratch: Path) -> None:
    with pytest.raises(Refusals):
        init_root(scratch / "root", name="two words")
    with pytest.raises(Refusal) as caught:
        init_root(scratch / "root", admin_group="no-such-group-here")
    assert caught.value.code == "E-SITE-043"
    assert not (scratch / "root").exists()


@pytest.mark.two_users
def test_root_lays_out_for_an_admin_group_and_a_service_user(
    scratch: Path, people: tuple[User, User], users_group: str
) -> None:
    admin, service = people
    root = init_root(
        scratch / "root",
        name="lab",
        admin_user=admin.name,
        admin_group=users_group,
        service_user=service.name,
    ).root
    gid = find_group(users_group)
    owners = {row.path: (root.path / row.path).lstat() for row in ROWS}
    assert {p for p, s in owners.items() if s.st_uid == service.uid} == {
        "site/keys", "registry/seals", "registry/index", "registry/log", "admitted", "cache", "cache/hf", "cache/datasets", "cache/hubs",
    }  # fmt: skip
    assert {s.st_uid for s in owners.values()} == {admin.uid, service.uid}
    assert {s.st_gid for s in owners.values()} == {gid}
    assert root.site_file.lstat().st_uid == admin.uid
    assert found_modes(root.path) == MODES
    assert os.listdir(root.runs) == []  # a site with admins has no first user
    site = load_site(root)
    assert (site.admin_group, site.service_user, site.owner_uid) == (users_group, service.name, admin.uid)
    assert problems(root) == []
    # Later runs by root need no options again: the root itself says whose it is.
    assert init_root(root.path).new_folders == ()
    assert problems(root) == []


@pytest.mark.two_users
def test_an_ordinary_user_is_the_admin_of_their_own_root(scratch: Path, people: tuple[User, User]) -> None:
    one, other = people
    home = scratch / "home"
    home.mkdir()
    os.chown(home, one.uid, one.gid)
    laid = as_user(one, init_root, home / "root", name="mine")
    assert laid.admin == one.name
    assert found_modes(home / "root") == MODES
    assert {p.lstat().st_uid for p in (home / "root").rglob("*")} == {one.uid}
    assert [f.message for f in as_user(one, problems, laid.root)] == []
    with pytest.raises(AsUserError) as caught:
        as_user(other, init_root, home / "root")
    assert caught.value.code == "E-SITE-033"


@pytest.mark.two_users
def test_an_ordinary_user_cannot_make_others_folders(scratch: Path, people: tuple[User, User]) -> None:
    one, other = people
    home = scratch / "home"
    home.mkdir()
    os.chown(home, one.uid, one.gid)
    with pytest.raises(AsUserError) as caught:
        as_user(one, init_root, home / "root", service_user=other.name)
    assert caught.value.code == "E-SITE-033"
    assert os.listdir(home) == []


@pytest.mark.two_users
def test_another_users_empty_folder_is_not_taken(scratch: Path, people: tuple[User, User]) -> None:
    one, other = people
    (scratch / "theirs").mkdir()
    os.chown(scratch / "theirs", other.uid, other.gid)
    with pytest.raises(Refusal) as caught:
        init_root(scratch / "theirs", admin_user=one.name)
    assert (caught.value.code, caught.value.found) == ("E-SITE-042", other.name)


def test_check_finds_every_wrong_mode_at_once(root: StorageRoot) -> None:
    root.runs.chmod(0o775)
    root.kernels.chmod(0o755)
    (root.cache / "hf").chmod(0o777)
    (root.templates / "x.j2").write_text("x")
    (root.templates / "x.j2").chmod(0o666)
    assert {f.message for f in problems(root)} == {
        f"E-SITE-015 {root.runs}: has mode 0775",
        f"E-SITE-015 {root.kernels}: has mode 0755",
        f"E-SITE-015 {root.cache / 'hf'}: has mode 0777",
        f"E-SITE-011 {root.templates / 'x.j2'}: has mode 0666",
    }
