from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tuneplane.contract.layout import StorageRoot

from hpc.catalog import registering
from hpc.catalog.registering import add, build, provenance, shipped_definition
from hpc.catalog.runtimes import Entry, Runtimes, format_entries, parse_entries, verify
from hpc.errors import Refusal, Refusals
from hpc.sif.apptainer import Apptainer
from hpc.sif.image import sif_digest
from hpc.site.sitefile import load_site
from tests.catalog.roots import new_root
from tests.sif.sifs import small_sif

NOW = "2026-01-02T03:04:05.000000Z"
OTHER = b"hsqs" + b"\1" * 4092


@pytest.fixture(autouse=True)
def on_amd64(monkeypatch: pytest.MonkeyPatch) -> None:
    """The small SIFs say amd64, whatever this machine is."""
    monkeypatch.setattr("platform.machine", lambda: "x86_64")


@pytest.fixture
def root(tmp_path: Path) -> StorageRoot:
    return new_root(tmp_path, "images:\n  allowed_hosts: [registry.example.org]\n")


@pytest.fixture
def sif(tmp_path: Path) -> Path:
    (tmp_path / "apps").mkdir(mode=0o755)
    return small_sif(tmp_path / "apps" / "g.sif", labels={"python.version": "3.13.5"})


def test_a_registered_runtime_comes_back_with_all_that_was_recorded(root: StorageRoot, sif: Path) -> None:
    done = add(root, "general-1", sif, source="registry.example.org/base:1", now=lambda: NOW)
    assert done.action == "new"
    (found,) = Runtimes.load(root)
    status = sif.stat()
    assert (found.id, found.sif, found.sha256) == ("general-1", sif, sif_digest(sif))
    assert (found.size, found.mtime_ns, found.owner_uid) == (status.st_size, status.st_mtime_ns, os.getuid())
    assert (found.source, found.python, found.architecture) == ("registry.example.org/base:1", "3.13.5", "amd64")
    assert (found.registered_at, found.registered_by) == (NOW, registering_user())
    assert Runtimes.load(root).get("general-1") == found == done.runtime


def registering_user() -> str:
    from hpc.site.users import real_user

    return real_user().name


def test_registering_the_same_again_changes_nothing(root: StorageRoot, sif: Path) -> None:
    add(root, "general-1", sif, now=lambda: NOW)
    before = root.runtimes_file.read_bytes()
    assert add(root, "general-1", sif, now=lambda: "later").action == "unchanged"
    assert root.runtimes_file.read_bytes() == before


def test_an_id_keeps_its_sif_unless_replace_is_said(root: StorageRoot, sif: Path, tmp_path: Path) -> None:
    old = add(root, "general-1", sif, now=lambda: NOW).runtime
    other = small_sif(tmp_path / "apps" / "other.sif", root=OTHER)
    with pytest.raises(Refusal) as caught:
        add(root, "general-1", other)
    assert (caught.value.code, caught.value.allowed) == ("E-CATALOG-043", old.sha256)
    assert Runtimes.load(root).get("general-1") == old
    assert add(root, "general-1", other, replace=True).action == "replaced"
    assert Runtimes.load(root).get("general-1").sha256 == sif_digest(other)
    previous = root.runtimes_file.with_name("runtimes.yaml.previous").read_text("utf-8")
    assert parse_entries(previous, origin="x")["general-1"].sha256 == old.sha256


def test_an_id_keeps_its_sif_when_the_file_under_it_changed(root: StorageRoot, sif: Path) -> None:
    add(root, "general-1", sif, now=lambda: NOW)
    small_sif(sif, root=OTHER)
    with pytest.raises(Refusal) as caught:
        add(root, "general-1", sif)
    assert (caught.value.code, caught.value.found) == ("E-CATALOG-043", sif_digest(sif))


def test_a_copy_lies_under_the_site_and_is_written_relative_to_it(root: StorageRoot, sif: Path) -> None:
    os.chmod(sif.parent, 0o777)
    sif.chmod(0o666)
    found = add(root, "general-1", sif, copy=True, now=lambda: NOW).runtime
    name = f"general-1-{found.sha256[7:19]}.sif"
    assert found.sif == root.images / name
    assert found.sif.read_bytes() == sif.read_bytes()
    assert found.sif.stat().st_mode & 0o7777 == 0o644
    assert f'sif: "images/{name}"' in root.runtimes_file.read_text("utf-8")
    assert add(root, "general-1", sif, copy=True).action == "unchanged"
    assert [p.name for p in root.images.iterdir()] == [name]


@pytest.mark.parametrize("fault", ["mode", "folder"])
def test_a_sif_that_others_can_change_is_not_registered(root: StorageRoot, sif: Path, fault: str) -> None:
    if fault == "mode":
        sif.chmod(0o666)
    else:
        sif.parent.chmod(0o777)
    with pytest.raises(Refusal) as caught:
        add(root, "general-1", sif)
    assert caught.value.code == "E-CATALOG-045"
    assert "--copy" in caught.value.hint
    assert list(Runtimes.load(root)) == []


def test_only_admins_register(root: StorageRoot, sif: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hpc.site import users

    monkeypatch.setattr(users, "real_user", lambda: users.User("mallory", 54321, 54321))
    with pytest.raises(Refusal) as caught:
        add(root, "general-1", sif, copy=True)
    assert caught.value.code == "E-CATALOG-042"
    assert not root.runtimes_file.exists()


@pytest.mark.parametrize("runtime_id", ["", "a b", "../x", "-x", "x" * 65])
def test_an_id_is_a_plain_word(root: StorageRoot, sif: Path, runtime_id: str) -> None:
    with pytest.raises(Refusal) as caught:
        add(root, runtime_id, sif)
    assert (caught.value.code, caught.value.field) == ("E-CATALOG-041", "ID")


def test_a_path_that_a_mount_option_would_split_is_refused(root: StorageRoot, tmp_path: Path) -> None:
    with pytest.raises(Refusals) as caught:
        add(root, "general-1", small_sif(tmp_path / "a,b.sif"))
    assert [(r.code, r.field) for r in caught.value.items] == [
        ("E-CATALOG-041", "runtimes.yaml: runtimes.general-1.sif")
    ]


def test_what_is_no_sif_is_not_registered_and_no_copy_stays(root: StorageRoot, tmp_path: Path) -> None:
    (tmp_path / "x.sif").write_bytes(b"hsqs" + bytes(500))
    with pytest.raises(Refusal) as caught:
        add(root, "general-1", tmp_path / "x.sif", copy=True)
    assert caught.value.code == "E-SIF-004"
    assert not root.images.exists() or list(root.images.iterdir()) == []


def test_a_failure_after_the_copy_leaves_no_copy(root: StorageRoot, sif: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(registering.files, "replace", full)
    with pytest.raises(Refusal) as caught:
        add(root, "general-1", sif, copy=True)
    assert caught.value.code.startswith("E-STORE-02")
    assert list(root.images.iterdir()) == []
    assert not root.runtimes_file.exists()


def test_an_unknown_runtime_is_refused_and_never_replaced_by_another(root: StorageRoot, sif: Path) -> None:
    add(root, "general-1", sif)
    with pytest.raises(Refusal) as caught:
        Runtimes.load(root).get("general-2")
    assert (caught.value.code, caught.value.field, caught.value.allowed) == (
        "E-CATALOG-040",
        "spec.framework.runtime_id",
        "general-1",
    )


@pytest.mark.parametrize("full", [True, False])
def test_a_sif_changed_after_registration_is_refused_with_both_digests(
    root: StorageRoot, sif: Path, full: bool
) -> None:
    found = add(root, "general-1", sif).runtime
    small_sif(sif, root=OTHER)
    with pytest.raises(Refusal) as caught:
        verify(found, full)
    assert (caught.value.code, caught.value.found, caught.value.allowed) == (
        "E-CATALOG-044",
        sif_digest(sif),
        found.sha256,
    )


def test_verification_says_how_it_was_done(root: StorageRoot, sif: Path) -> None:
    found = add(root, "general-1", sif).runtime
    assert verify(found, full=True, root=root).how == "sha256"
    assert verify(found, full=False, root=root).how == "size+mtime+owner"
    os.utime(sif, ns=(1, 1))
    assert verify(found, full=False, root=root).how == "sha256"


def test_the_quick_check_does_not_see_a_change_that_keeps_size_and_time(root: StorageRoot, sif: Path) -> None:
    """What the weaker policy cannot promise; the full one refuses."""
    found = add(root, "general-1", sif).runtime
    data = bytearray(sif.read_bytes())
    data[-1] ^= 1
    sif.write_bytes(bytes(data))
    os.utime(sif, ns=(found.mtime_ns, found.mtime_ns))
    assert verify(found, full=False).how == "size+mtime+owner"
    with pytest.raises(Refusal):
        verify(found, full=True)


def test_a_sif_that_is_gone_or_became_writable_is_refused(root: StorageRoot, sif: Path) -> None:
    found = add(root, "general-1", sif).runtime
    sif.chmod(0o666)
    with pytest.raises(Refusal) as caught:
        verify(found, root=root)
    assert caught.value.code == "E-SITE-011"
    sif.unlink()
    with pytest.raises(Refusal) as caught:
        verify(found)
    assert (caught.value.code, caught.value.allowed) == ("E-SIF-004", found.sha256)


def test_an_image_is_found_by_any_spelling_of_its_source(root: StorageRoot, sif: Path) -> None:
    found = add(root, "mine-1", sif, source="docker://registry.example.org/team/a:1").runtime
    site = load_site(root)
    assert Runtimes.load(root).by_image("registry.example.org/team/a:1", site) == found
    with pytest.raises(Refusal) as caught:
        Runtimes.load(root).by_image("registry.example.org/team/a:2", site)
    assert (caught.value.code, caught.value.found) == ("E-CATALOG-048", "registry.example.org/team/a:2")
    assert "docker://registry.example.org/team/a:1" in caught.value.allowed
    with pytest.raises(Refusal) as caught:
        Runtimes.load(root).by_image("evil.example.org/team/a:1", site)
    assert caught.value.code == "E-CATALOG-047"
    with pytest.raises(Refusal) as caught:
        Runtimes.load(root).by_image("/scratch/mine.sif", site)
    assert caught.value.code == "E-CATALOG-046"


def test_one_image_is_the_source_of_one_runtime(root: StorageRoot, sif: Path, tmp_path: Path) -> None:
    add(root, "mine-1", sif, source="registry.example.org/a:1")
    other = small_sif(tmp_path / "apps" / "o.sif", root=OTHER)
    with pytest.raises(Refusal) as caught:
        add(root, "mine-2", other, source="docker://registry.example.org/a:1")
    assert (caught.value.code, caught.value.field) == ("E-CATALOG-050", "--source")
    assert add(root, "mine-1", other, source="registry.example.org/a:1", replace=True).action == "replaced"
    text = root.runtimes_file.read_text("utf-8")
    root.runtimes_file.write_text(text + text.split("runtimes:\n")[1].replace("mine-1:", "mine-9:"), "utf-8")
    with pytest.raises(Refusal) as caught:
        Runtimes.load(root).by_image("registry.example.org/a:1", load_site(root))
    assert (caught.value.code, caught.value.message) == (
        "E-CATALOG-050",
        "registry.example.org/a:1 is the source of mine-1 and mine-9",
    )


def test_a_source_that_is_no_reference_is_refused(root: StorageRoot, sif: Path) -> None:
    with pytest.raises(Refusal) as caught:
        add(root, "mine-1", sif, source="from Bob's laptop")
    assert (caught.value.code, caught.value.field) == ("E-CATALOG-046", "--source")


def test_a_file_that_others_can_write_is_not_read(root: StorageRoot, sif: Path) -> None:
    add(root, "general-1", sif)
    root.runtimes_file.chmod(0o666)
    with pytest.raises(Refusal) as caught:
        Runtimes.load(root)
    assert caught.value.code == "E-SITE-011"


GOOD = {"sif": "/apps/a.sif", "sha256": "sha256:" + "0" * 64, "size": 1, "mtime_ns": 2, "owner_uid": 0}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"sif": "a/../b.sif"}, "sif"),
        ({"sif": "../b.sif"}, "sif"),
        ({"sif": "/apps/a.img"}, "sif"),
        ({"sif": "/apps/a b.sif"}, "sif"),
        ({"sif": "/apps/a:b.sif"}, "sif"),
        ({"sha256": "0" * 64}, "sha256"),
        ({"sha256": "sha256:" + "A" * 64}, "sha256"),
        ({"size": "1"}, "size"),
        ({"size": -1}, "size"),
        ({"owner_uid": True}, "owner_uid"),
        ({"shasum": "x"}, "shasum"),
        ({"source": "a\nb"}, "source"),
        ({"definition": "x" * 1025}, "definition"),
    ],
)
def test_a_bad_entry_is_refused_with_its_field(change: dict[str, Any], field: str) -> None:
    import json

    text = json.dumps({"schema": "tuneplane-hpc/runtimes/v1", "runtimes": {"a": GOOD | change}})
    with pytest.raises(Refusals) as caught:
        parse_entries(text, origin="runtimes.yaml")
    assert [(r.code, r.field) for r in caught.value.items] == [("E-CATALOG-041", f"runtimes.yaml: runtimes.a.{field}")]


@pytest.mark.parametrize(
    "text",
    ["schema: tuneplane-hpc/runtimes/v2\n", "runtimes: {}\n", "[]", "schema: tuneplane-hpc/runtimes/v1\nmore: 1\n"],
)
def test_another_schema_or_key_is_refused(text: str) -> None:
    with pytest.raises(Refusals) as caught:
        parse_entries(text, origin="runtimes.yaml")
    assert {r.code for r in caught.value.items} == {"E-CATALOG-041"}


WORDS = st.text(st.characters(codec="utf-8").filter(str.isprintable), max_size=20)
IDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,9}", fullmatch=True)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(IDS, st.tuples(WORDS, WORDS), max_size=3))
def test_what_is_written_reads_back_as_it_was(values: dict[str, tuple[str, str]]) -> None:
    entries = {i: Entry(**GOOD, source=s, definition=d) for i, (s, d) in values.items()}
    assert parse_entries(format_entries(entries), origin="x") == entries


def fake_apptainer(tmp_path: Path, body: str) -> Apptainer:
    program = tmp_path / "apptainer"
    program.write_text(f"#!/bin/bash\n{body}\n", "utf-8")
    program.chmod(0o755)
    return Apptainer(str(program))


def test_a_build_is_registered_with_its_definition_and_cleans_up(root: StorageRoot, tmp_path: Path) -> None:
    made = small_sif(tmp_path / "made.sif")
    (tmp_path / "mine.def").write_text("Bootstrap: docker\nFrom: debian:trixie\n", "utf-8")
    apptainer = fake_apptainer(tmp_path, f'echo "$APPTAINER_CACHEDIR" >{tmp_path}/cachedir; cp {made} "${{@: -2:1}}"')
    room = tmp_path / "room"
    room.mkdir()
    done = build(root, "mine-1", tmp_path / "mine.def", apptainer=apptainer, room=room, need_bytes=0, now=lambda: NOW)
    assert (done.action, done.runtime.sha256) == ("new", sif_digest(made))
    assert done.runtime.definition == provenance(tmp_path / "mine.def")
    assert done.runtime.definition.startswith("mine.def@sha256:")
    assert done.runtime.sif.parent == root.images
    assert (tmp_path / "cachedir").read_text("utf-8").startswith(str(room))
    assert list(room.iterdir()) == []


def test_a_build_that_fails_registers_nothing_and_leaves_nothing(root: StorageRoot, tmp_path: Path) -> None:
    (tmp_path / "mine.def").write_text("Bootstrap: docker\nFrom: debian:trixie\n", "utf-8")
    apptainer = fake_apptainer(tmp_path, "echo FATAL: no network >&2; exit 255")
    with pytest.raises(Refusal) as caught:
        build(root, "mine-1", tmp_path / "mine.def", apptainer=apptainer, room=tmp_path, need_bytes=0)
    assert (caught.value.code, caught.value.found) == ("E-SIF-003", "FATAL: no network")
    assert not root.runtimes_file.exists()
    assert list(tmp_path.glob("tp-build-*")) == []
    assert list(root.images.iterdir()) == []


def test_a_taken_id_is_refused_before_a_long_build(root: StorageRoot, sif: Path, tmp_path: Path) -> None:
    add(root, "general-1", sif)
    apptainer = fake_apptainer(tmp_path, f"touch {tmp_path}/started")
    with pytest.raises(Refusal) as caught:
        build(root, "general-1", None, apptainer=apptainer, room=tmp_path)
    assert caught.value.code == "E-CATALOG-043"
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(
    ("runtime_id", "name"),
    [
        ("general-1", "general.def"),
        ("deepspeed-0.19.8", "training.def"),
        ("trl-1.16.0", "training.def"),
        ("lm-eval-0.4.13", "evaluation.def"),
    ],
)
def test_each_runtime_of_the_shipped_recipes_has_a_definition(runtime_id: str, name: str) -> None:
    assert shipped_definition(runtime_id).name == name


def test_an_id_without_a_definition_names_those_that_have_one() -> None:
    with pytest.raises(Refusal) as caught:
        shipped_definition("mine-1")
    assert (caught.value.code, caught.value.allowed) == (
        "E-CATALOG-049",
        "deepspeed-0.19.8, general-1, lm-eval-0.4.13, trl-1.16.0",
    )
