"""Publishing: whole or not at all, immutable, in one's own namespace, and only what was checked."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from tuneplane.contract.layout import StorageRoot
from tuneplane.record.canonical import canonical_bytes, parse_json
from tuneplane.record.digest import directory_digest_v1, scan_tree, tree_digest_v2

from hpc.errors import Refusal
from hpc.registry import storing, trees
from hpc.registry.publish import Published, publish
from hpc.registry.resolve import resolve
from hpc.site.members import retire_user
from hpc.site.sitefile import Site
from hpc.site.users import User
from tests.registry.toys import CORE, LATER, NOW, TOY, write_toy

Put = Callable[..., Published]


def test_a_version_stands_as_its_record_says(root: StorageRoot, put: Put, me: User) -> None:
    done = put("1.0.0")
    record = parse_json((done.folder / "record.json").read_bytes())
    assert canonical_bytes(record) == (done.folder / "record.json").read_bytes()
    content = done.folder / "content"
    assert record["digest"] == done.digest == directory_digest_v1(content)
    assert record["digest_v2"] == tree_digest_v2(scan_tree(content))
    assert [f["path"] for f in record["files"]] == ["README.md", "lib/data.bin", "lib/toy.py", "toy.json"]
    assert (record["kind"], record["owner"], record["name"], record["version"]) == ("plugin", me.name, "toy", "1.0.0")
    assert record["facts"] == {"manifest": {"name": "toy", "version": "1.0.0"}}
    assert record["published"] == {
        "method": "publish", "actor": me.name, "uid": me.uid, "at": NOW, "archive_sha256": "", "core_version": CORE,
    }  # fmt: skip


def test_everything_is_read_only_and_executables_stay_so(
    root: StorageRoot, site: Site, me: User, scratch: Path
) -> None:
    source = write_toy(scratch / "p")
    (source / "lib/toy.py").chmod(0o4777)
    done = publish(root, TOY, source, user=me, owner=me.name, site=site, method="publish", core_version=CORE, now=NOW)
    modes = {
        str(p.relative_to(done.folder)): oct(stat.S_IMODE(p.lstat().st_mode))
        for p in [done.folder, *done.folder.rglob("*")]
    }
    assert modes == {
        ".": "0o555", "record.json": "0o444", "content": "0o555", "content/README.md": "0o444", "content/toy.json": "0o444",
        "content/lib": "0o555", "content/lib/toy.py": "0o555", "content/lib/data.bin": "0o444",
    }  # fmt: skip


def test_a_version_exists_once(put: Put) -> None:
    first = put("1.0.0")
    before = (first.folder / "record.json").read_bytes()
    with pytest.raises(Refusal) as caught:
        put("1.0.0", files={"other": b"x"})
    assert caught.value.code == "E-REG-001"
    assert (first.folder / "record.json").read_bytes() == before
    assert [p.name for p in first.folder.parent.iterdir()] == ["1.0.0"]


def test_byte_code_and_caches_are_never_stored(put: Put) -> None:
    done = put(files={"a.py": b"x", "__pycache__/a.pyc": b"y", "b.pyc": b"z", ".git/config": b"g", ".DS_Store": b"d"})
    assert sorted(p.name for p in (done.folder / "content").iterdir()) == ["a.py", "toy.json"]


@pytest.mark.parametrize(
    ("spoil", "field"),
    [
        (lambda p: (p / "link").symlink_to("toy.json"), "link"),
        (lambda p: (p / "dangling").symlink_to("nowhere"), "dangling"),
        (lambda p: (p / "folder").symlink_to("lib"), "folder"),
        (lambda p: os.mkfifo(p / "lib/pipe"), "lib/pipe"),
        (lambda p: (p / "a\nb").write_bytes(b""), "a\\nb"),
        (lambda p: (p / "back\\slash").write_bytes(b""), "back\\slash"),
        (lambda p: (p / ("x" * 241)).write_bytes(b""), "x" * 241),
    ],
)
def test_what_is_no_plain_file_is_refused_by_name(
    root: StorageRoot, site: Site, me: User, scratch: Path, spoil: Callable[[Path], object], field: str
) -> None:
    source = write_toy(scratch / "p")
    spoil(source)
    with pytest.raises(Refusal) as caught:
        publish(root, TOY, source, user=me, owner=me.name, site=site, method="publish", core_version=CORE, now=NOW)
    assert (caught.value.code, caught.value.field) == ("E-REG-004", field)
    assert not (root.shelf("plugins") / me.name / "toy").exists()


@pytest.mark.parametrize("limit", ["max_bytes", "max_files"])
def test_limits_are_held_before_anything_is_read(
    root: StorageRoot, site: Site, me: User, scratch: Path, limit: str
) -> None:
    from dataclasses import replace

    kind = replace(TOY, check=lambda folder: pytest.fail("was read"), **{limit: 3})  # type: ignore[arg-type]
    with pytest.raises(Refusal) as caught:
        publish(
            root, kind, write_toy(scratch / "p"), user=me, owner=me.name, site=site, method="publish", core_version=CORE, now=NOW
        )  # fmt: skip
    assert caught.value.code == "E-REG-004"
    assert caught.value.allowed.startswith("at most 3 ")


def test_content_that_changes_between_check_and_copy_is_refused(
    put: Put, root: StorageRoot, me: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = trees.copy

    def copy(source_fd: int, target_fd: int, tick: trees.Tick) -> None:
        os.truncate(os.open("README.md", os.O_WRONLY, dir_fd=source_fd), 1)
        real(source_fd, target_fd, tick)

    monkeypatch.setattr(storing, "copy", copy)
    with pytest.raises(Refusal) as caught:
        put()
    assert (caught.value.code, caught.value.field) == ("E-REG-005", "README.md")
    assert list((root.shelf("plugins") / me.name / "toy").iterdir()) == []


def test_a_retired_user_publishes_nothing_new(put: Put, root: StorageRoot, me: User) -> None:
    retire_user(root, me.name, now=NOW)
    with pytest.raises(Refusal) as caught:
        put()
    assert caught.value.code == "E-SITE-032"


def test_the_reserved_namespace_takes_shipped_records_only(
    root: StorageRoot, site: Site, me: User, scratch: Path
) -> None:
    source = write_toy(scratch / "p")
    with pytest.raises(Refusal) as caught:
        publish(root, TOY, source, user=me, owner="tuneplane", site=site, method="publish", core_version=CORE, now=NOW)
    assert caught.value.code == "E-REG-003"
    publish(root, TOY, source, user=me, owner="tuneplane", site=site, method="shipped", core_version=CORE, now=NOW)
    assert str(resolve(root, TOY, "tuneplane/toy", for_new=True)) == "tuneplane/toy@1.0.0"


def test_litter_of_a_dead_publisher_goes_after_a_day(put: Put) -> None:
    package = put("1.0.0").folder.parent
    old, young = package / ".2.0.0.aaaa.tmp", package / ".2.0.0.bbbb.tmp"
    for litter in (old, young):
        (litter / "content").mkdir(parents=True)
        (litter / "content").chmod(0o555)
    os.utime(old, (0, 0))
    os.utime(young, (4e9, 4e9))
    put("1.1.0", now=LATER)
    assert sorted(p.name for p in package.iterdir()) == [".2.0.0.bbbb.tmp", "1.0.0", "1.1.0"]
