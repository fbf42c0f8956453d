"""What is refused at use: owners, modes, ACLs, links, and the way to the root."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tuneplane.contract.layout import StorageRoot

from hpc.errors import Refusal
from hpc.site.acl import ACCESS, DEFAULT, GROUP, GROUP_OBJ, MASK, OTHER, USER, USER_OBJ, Entry, format_acl
from hpc.site.layout import init_root
from hpc.site.sitefile import load_site
from hpc.site.trust import require_admin_owned, require_owner_folder, writers
from hpc.site.users import real_user

STRANGER = 54321


def code(root: StorageRoot, path: Path) -> str:
    """The refusal's code, or nothing."""
    try:
        require_admin_owned(root, path)
    except Refusal as fault:
        return fault.code
    return ""


def acl(*named: Entry) -> bytes:
    entries = [Entry(USER_OBJ, 7), *named, Entry(GROUP_OBJ, 5), Entry(MASK, 7), Entry(OTHER, 5)]
    return format_acl(sorted(entries, key=lambda e: e.tag))


@pytest.fixture
def template(root: StorageRoot) -> Path:
    """A file of the admins, deep in site/."""
    path = root.templates / "train.sbatch.j2"
    path.write_text("#!/bin/bash\n")
    path.chmod(0o644)
    return path


def test_the_admins_own_file_is_taken(root: StorageRoot, template: Path) -> None:
    assert code(root, template) == ""
    assert load_site(root).name == "lab"


def test_a_writable_file_is_refused(root: StorageRoot, template: Path) -> None:
    template.chmod(0o646)
    assert code(root, template) == "E-SITE-011"
    template.chmod(0o664)
    assert code(root, template) == "E-SITE-011"


@pytest.mark.parametrize("part", ["", "site", "site/sbatch_templates"])
def test_a_writable_parent_is_refused(root: StorageRoot, template: Path, part: str) -> None:
    (root.path / part).chmod(0o777)
    assert code(root, template) == "E-SITE-011"


def test_the_sticky_bit_does_not_excuse_a_writable_admin_folder(root: StorageRoot, template: Path) -> None:
    root.templates.chmod(0o1777)
    assert code(root, template) == "E-SITE-011"


@pytest.mark.parametrize("part", ["", "site/sbatch_templates", "site/sbatch_templates/train.sbatch.j2"])
@pytest.mark.two_users
def test_a_strangers_file_or_parent_is_refused(root: StorageRoot, template: Path, part: str) -> None:
    os.chown(root.path / part, STRANGER, -1)
    assert code(root, template) == "E-SITE-010"


@pytest.mark.two_users
def test_the_site_file_itself_is_refused_before_it_is_believed(root: StorageRoot) -> None:
    os.chown(root.site_file, STRANGER, -1)
    with pytest.raises(Refusal) as caught:
        load_site(root)
    assert caught.value.code == "E-SITE-010"


def test_a_link_is_refused_even_to_a_good_file(root: StorageRoot, template: Path) -> None:
    link = root.templates / "link.j2"
    link.symlink_to(template.name)
    assert code(root, link) == "E-SITE-013"


def test_a_linked_parent_is_refused(root: StorageRoot, template: Path) -> None:
    root.templates.rename(root.site / "other")
    root.templates.symlink_to("other")
    assert code(root, template) == "E-SITE-013"


@pytest.mark.parametrize("entry", [Entry(USER, 7, STRANGER), Entry(GROUP, 7, STRANGER)], ids=["user", "group"])
def test_a_writer_added_by_acl_is_found(root: StorageRoot, template: Path, entry: Entry) -> None:
    os.setxattr(template, ACCESS, acl(entry))
    assert code(root, template) == "E-SITE-012"
    template.chmod(0o644)  # the mask takes the writer's permission away again
    assert code(root, template) == ""


@pytest.mark.parametrize("entry", [Entry(USER, 7, STRANGER), Entry(GROUP, 7, STRANGER)], ids=["user", "group"])
def test_a_writer_of_new_files_by_default_acl_is_found(root: StorageRoot, template: Path, entry: Entry) -> None:
    os.setxattr(root.templates, DEFAULT, acl(entry))
    assert code(root, template) == "E-SITE-012"


def test_the_root_may_be_named_in_an_acl(root: StorageRoot, template: Path) -> None:
    os.setxattr(root.templates, DEFAULT, acl(Entry(USER, 7, 0)))
    assert code(root, template) == ""


def test_a_world_writable_folder_above_the_root_is_refused(scratch: Path) -> None:
    open_folder = scratch / "open"
    open_folder.mkdir()
    root = init_root(open_folder / "root", name="lab").root
    assert code(root, root.site_file) == ""
    open_folder.chmod(0o777)
    assert code(root, root.site_file) == "E-SITE-014"
    open_folder.chmod(0o1777)
    assert code(root, root.site_file) == ""


def test_a_root_is_not_laid_out_below_an_open_folder(scratch: Path) -> None:
    scratch.chmod(0o777)
    with pytest.raises(Refusal) as caught:
        init_root(scratch / "root")
    assert caught.value.code == "E-SITE-014"
    assert not (scratch / "root").exists()


def test_a_file_elsewhere_is_judged_all_the_way(root: StorageRoot, scratch: Path) -> None:
    apps = scratch / "apps"
    apps.mkdir()
    image = apps / "x.sif"
    image.write_bytes(b"x")
    assert code(root, image) == ""  # below /tmp, which is open but sticky
    image.chmod(0o646)
    assert code(root, image) == "E-SITE-011"
    image.chmod(0o644)
    apps.chmod(0o777)
    assert code(root, image) == "E-SITE-011"


@pytest.mark.two_users
def test_group_members_may_write_only_where_the_site_file_names_their_group(scratch: Path, users_group: str) -> None:
    group_name = users_group
    root = init_root(scratch / "root", name="lab", admin_group=group_name).root
    template = root.templates / "a.sbatch.j2"
    template.write_text("x")
    root.templates.chmod(0o2775)
    template.chmod(0o664)
    assert code(root, template) == ""
    root.site_file.write_text(root.site_file.read_text().replace(f'admin_group: "{group_name}"', 'admin_group: ""'))
    assert code(root, template) == "E-SITE-011"


def test_an_owner_folder_is_taken_only_from_its_owner(root: StorageRoot) -> None:
    home = root.owner_runs(real_user().name)
    require_owner_folder(home, os.getuid())
    with pytest.raises(Refusal) as squatted:
        require_owner_folder(home, STRANGER)
    assert squatted.value.code == "E-SITE-020"
    with pytest.raises(Refusal) as missing:
        require_owner_folder(root.owner_runs("nobody-here"), STRANGER)
    assert missing.value.code == "E-SITE-022"


def test_an_owner_folder_that_others_can_write_is_refused(root: StorageRoot) -> None:
    home = root.runs / "x"
    home.mkdir()
    for mode, wanted in ((0o770, "E-SITE-021"), (0o757, "E-SITE-021"), (0o750, "")):
        home.chmod(mode)
        assert _owner_code(home) == wanted, oct(mode)
    os.setxattr(home, DEFAULT, acl(Entry(USER, 7, STRANGER)))
    assert _owner_code(home) == "E-SITE-021"


@pytest.mark.two_users
def test_a_parent_without_the_sticky_bit_is_refused(root: StorageRoot) -> None:
    home = root.runs / "x"
    home.mkdir(mode=0o750)
    os.chown(root.runs, STRANGER, -1)
    root.runs.chmod(0o2775)
    assert _owner_code(home) == "E-SITE-011"


def _owner_code(path: Path) -> str:
    try:
        require_owner_folder(path, os.getuid())
    except Refusal as fault:
        return fault.code
    return ""


def test_writers_names_everybody(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    kinds = [w.kind for w in writers(tmp_path)]
    assert kinds == ["owner", "group", "everybody"]
