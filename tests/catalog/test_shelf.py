from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path

import pytest

from hpc.catalog.recipes import load_recipe
from hpc.catalog.shelf import Catalogue, publish_shipped
from hpc.errors import Refusal, Refusals
from tests.catalog.packs import TOY, toy_catalogue, toy_manifest, write_pack
from tests.catalog.roots import new_root


def test_ids_are_two_part_and_sorted_and_hidden_names_are_no_packs(tmp_path: Path) -> None:
    catalogue = toy_catalogue(tmp_path)
    write_pack(catalogue.folder, toy_manifest() | {"name": "a-dpo"})
    shutil.copytree(TOY, catalogue.folder / "toyfw" / ".hidden")
    (catalogue.folder / "toyfw" / "empty").mkdir()
    (catalogue.folder / "toyfw" / "notes.txt").write_text("x", "utf-8")
    assert catalogue.ids() == ["toyfw/a-dpo", "toyfw/toy-sft"]


@pytest.mark.parametrize(
    ("asked", "suggested"),
    [
        ("toyfw/toy-sftt", "toyfw/toy-sft"),
        ("toy-sft", "toyfw/toy-sft"),
        ("x/y", ""),
        ("../toyfw/toy-sft", ""),
        ("", ""),
    ],
)
def test_an_unknown_method_lists_the_catalogue_and_suggests(tmp_path: Path, asked: str, suggested: str) -> None:
    with pytest.raises(Refusal) as caught:
        toy_catalogue(tmp_path).get(asked)
    assert (caught.value.code, caught.value.allowed) == ("E-CATALOG-001", "toyfw/toy-sft")
    assert (f"did you mean {suggested}?" in caught.value.message) == bool(suggested)


def test_an_empty_shelf_is_an_empty_catalogue(tmp_path: Path) -> None:
    catalogue = Catalogue.load(new_root(tmp_path))
    assert catalogue.ids() == []
    assert catalogue.readable() == ([], [])
    with pytest.raises(Refusal) as caught:
        catalogue.get("custom/custom")
    assert "tp recipe publish" in caught.value.allowed


def test_one_broken_pack_does_not_hide_the_others(tmp_path: Path) -> None:
    catalogue = toy_catalogue(tmp_path)
    write_pack(catalogue.folder, toy_manifest() | {"name": "broken", "category": "cooking", "roles": 3})
    good, bad = catalogue.readable()
    assert [r.id for r in good] == ["toyfw/toy-sft"]
    assert [r.code for r in bad] == ["E-CATALOG-004", "E-CATALOG-004"]
    with pytest.raises(Refusals):
        catalogue.get("toyfw/broken")


def test_a_pack_of_another_framework_is_refused_where_it_lies(tmp_path: Path) -> None:
    catalogue = toy_catalogue(tmp_path)
    shutil.copytree(TOY, catalogue.folder / "otherfw" / "toy-sft")
    with pytest.raises(Refusal) as caught:
        catalogue.get("otherfw/toy-sft")
    assert (caught.value.code, caught.value.found, caught.value.allowed) == ("E-CATALOG-005", "toyfw", "otherfw")


def test_publishing_gives_the_root_the_packs_with_their_digests_and_twice_changes_nothing(tmp_path: Path) -> None:
    root = new_root(tmp_path)
    assert {p.id: p.action for p in publish_shipped(root)} == dict.fromkeys(Catalogue.shipped().ids(), "new")
    before = sorted(os.walk(root.recipes))
    assert {p.action for p in publish_shipped(root)} == {"unchanged"}
    assert sorted(os.walk(root.recipes)) == before
    for recipe_id in Catalogue.shipped().ids():
        ours, theirs = Catalogue.shipped().get(recipe_id), Catalogue.load(root).get(recipe_id)
        assert (theirs.digest, theirs.template_digest) == (ours.digest, ours.template_digest)
        assert theirs.template_files() == ours.template_files()
    train = root.recipes / "custom/custom/template/train.sh"
    assert os.stat(train).st_mode & 0o7777 == 0o755
    assert os.stat(root.recipes / "custom/custom/recipe.yaml").st_mode & 0o7777 == 0o644
    assert os.stat(train.parent).st_mode & 0o7777 == 0o2755


def test_byte_code_is_not_published(tmp_path: Path) -> None:
    root, source = new_root(tmp_path), toy_catalogue(tmp_path)
    cache = source.folder / "toyfw" / "toy-sft" / "template" / "__pycache__"
    cache.mkdir()
    (cache / "train.cpython-311.pyc").write_bytes(b"\0")
    publish_shipped(root, source)
    found = [p.name for p in (root.recipes / "toyfw" / "toy-sft").resolve().rglob("*") if p.is_file()]
    assert sorted(found) == ["recipe.yaml", "train.py"]
    assert publish_shipped(root, source)[0].action == "unchanged"


def test_readers_see_the_old_pack_or_the_new_one(tmp_path: Path) -> None:
    """Reads while two versions are published in turn: manifest and template always belong together."""
    root, source = new_root(tmp_path), Catalogue(tmp_path / "packs")
    pairs = set()
    for version in ("1.0.0", "2.0.0"):
        folder = write_pack(source.folder, toy_manifest() | {"version": version}, {"train.py": f"print({version!r})\n"})
        pairs.add((version, load_recipe(folder).template_digest))
        publish_shipped(root, source)
    seen, failed, stop = set(), [], threading.Event()

    def read() -> None:
        try:
            while not stop.is_set():
                recipe = Catalogue.load(root).get("toyfw/toy-sft")
                seen.add((recipe.version, recipe.template_digest))
        except Exception as exc:
            failed.append(exc)

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(20):
        version = ("1.0.0", "2.0.0")[turn % 2]
        write_pack(source.folder, toy_manifest() | {"version": version}, {"train.py": f"print({version!r})\n"})
        assert publish_shipped(root, source)[0].action == "updated"
    stop.set()
    reader.join()
    assert failed == []
    assert seen
    assert seen <= pairs
    assert len(list((root.recipes / "toyfw" / ".packs").iterdir())) == 2


def test_a_pack_that_an_admin_put_there_by_hand_is_read_and_never_replaced(tmp_path: Path) -> None:
    root, source = new_root(tmp_path), toy_catalogue(tmp_path)
    by_hand = root.recipes / "toyfw" / "toy-sft"
    shutil.copytree(TOY, by_hand)
    assert Catalogue.load(root).get("toyfw/toy-sft").version == "1.0.0"
    assert publish_shipped(root, source)[0].action == "unchanged"
    write_pack(source.folder, toy_manifest() | {"version": "2.0.0"})
    with pytest.raises(Refusal) as caught:
        publish_shipped(root, source)
    assert caught.value.code == "E-CATALOG-008"
    assert load_recipe(by_hand).version == "1.0.0"


def test_nothing_is_written_when_one_shipped_pack_is_broken(tmp_path: Path) -> None:
    root, source = new_root(tmp_path), toy_catalogue(tmp_path)
    write_pack(source.folder, toy_manifest() | {"name": "zz", "category": "cooking"})
    with pytest.raises(Refusals):
        publish_shipped(root, source)
    assert Catalogue.load(root).ids() == []


def test_a_full_disk_while_publishing_is_a_refusal_and_leaves_no_half_pack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpc.catalog import shelf

    root, source, calls = new_root(tmp_path), toy_catalogue(tmp_path), iter(range(10))
    write_new = shelf.files.write_new

    def full(path: Path, data: bytes, *, mode: int) -> None:
        if next(calls) == 1:
            raise OSError(28, "No space left on device")
        write_new(path, data, mode=mode)

    monkeypatch.setattr(shelf.files, "write_new", full)
    with pytest.raises(Refusal) as caught:
        publish_shipped(root, source)
    assert caught.value.code.startswith("E-STORE-02")
    assert Catalogue.load(root).ids() == []
    assert list((root.recipes / "toyfw" / ".packs").iterdir()) == []
    assert publish_shipped(root, source)[0].action == "new"


@pytest.mark.parametrize("target", ["/etc", "../../../evil", ".packs/../../evil", "other"])
def test_a_link_that_leaves_the_shelf_is_refused(tmp_path: Path, target: str) -> None:
    root = new_root(tmp_path)
    publish_shipped(root, toy_catalogue(tmp_path))
    link = root.recipes / "toyfw" / "toy-sft"
    for place in (tmp_path / "evil", root.recipes / "toyfw" / "other", root.path / "evil", root.registry / "evil"):
        shutil.copytree(TOY, place)
    link.unlink()
    link.symlink_to(target)
    with pytest.raises(Refusal) as caught:
        Catalogue.load(root).get("toyfw/toy-sft")
    assert caught.value.code in ("E-CATALOG-001", "E-CATALOG-002")


@pytest.mark.parametrize("part", ["recipe.yaml", "template", "."])
def test_a_pack_that_others_can_write_is_not_used(tmp_path: Path, part: str) -> None:
    root = new_root(tmp_path)
    publish_shipped(root, toy_catalogue(tmp_path))
    pack = (root.recipes / "toyfw" / "toy-sft").resolve()
    os.chmod(pack / part, os.stat(pack / part).st_mode | 0o002)
    with pytest.raises(Refusal) as caught:
        Catalogue.load(root).get("toyfw/toy-sft")
    assert caught.value.code == "E-SITE-011"


def test_only_admins_publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hpc.site import users

    root = new_root(tmp_path)
    monkeypatch.setattr(users, "real_user", lambda: users.User("mallory", 54321, 54321))
    with pytest.raises(Refusal) as caught:
        publish_shipped(root)
    assert (caught.value.code, caught.value.found) == ("E-CATALOG-007", "mallory")
    assert Catalogue.load(root).ids() == []


def test_a_manifest_may_be_json_since_that_is_yaml(tmp_path: Path) -> None:
    folder = write_pack(tmp_path, json.loads(json.dumps(toy_manifest())))
    assert load_recipe(folder).digest == load_recipe(TOY).digest
