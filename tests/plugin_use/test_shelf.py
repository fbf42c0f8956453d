"""A package from its folder to the shelf, looked at, compared, switched; and what each refusal is."""

from __future__ import annotations

import shlex
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tuneplane.contract.layout import StorageRoot
from tuneplane.record.digest import digest_file, directory_digest_v1

from tests.plugin_use.conftest import ME, Tp, damage

Make = Callable[..., Path]


def test_a_package_is_published_once_and_for_all(tp: Tp, root: StorageRoot, make: Make) -> None:
    folder = make()
    done = tp.json("plugin", "publish", folder)
    assert (done["id"], done["version"], done["digest"]) == (f"{ME}/patch", "1.0", directory_digest_v1(folder))
    assert tp.codes("plugin", "publish", folder) == ["E-REG-001"]
    listed = {p["id"]: p for p in tp.json("plugin", "ls")["plugins"]}
    assert listed[f"{ME}/patch"]["offered"] == "1.0"
    info = tp.json("plugin", "info", f"{ME}/patch")
    assert (info["digest"], info["manifest"]["capability"], info["published"]["method"]) == (
        done["digest"],
        "algorithm",
        "publish",
    )


def test_a_fault_of_the_package_names_the_field_and_stores_nothing(tp: Tp, root: StorageRoot, make: Make) -> None:
    said = tp.json("plugin", "publish", make(entrypoint="nowhere:install"), code=1)
    assert [(e["code"][:9], e["field"]) for e in said["errors"]] == [("E-PLUGIN-", "entrypoint")]
    assert not (root.shelf("plugins") / ME / "patch").exists()


@pytest.mark.parametrize("owner", ["tuneplane"])
def test_the_shipped_namespace_is_nobody_s(tp: Tp, root: StorageRoot, make: Make, owner: str) -> None:
    assert tp.codes("plugin", "publish", make(), "--owner", owner) == ["E-REG-003"]


def test_versions_are_compared_and_files_shown(tp: Tp, root: StorageRoot, make: Make) -> None:
    old = make(version="1.0")
    new = make(version="1.1", files={"patch_code.py": "def install(hyperparams):\n    return 1\n", "extra.bin": "\0\1"})
    for folder in (old, new):
        tp("plugin", "publish", folder)
    found = tp.json("plugin", "compare", f"{ME}/patch@1.1", "--base", "1.0")
    assert [f["path"] for f in found["added"]] == ["extra.bin"]
    changed = {m["path"]: m["diff"] for m in found["modified"]}
    assert changed["patch_code.py"][-2:] == ["-    pass", "+    return 1"]
    assert tp("plugin", "files", f"{ME}/patch", "patch_code.py") == "def install(hyperparams):\n    return 1\n"
    binary = tp.json("plugin", "files", f"{ME}/patch", "extra.bin")
    assert (binary["text"], binary["sha256"]) == (None, digest_file(new / "extra.bin"))


def test_a_damaged_version_is_an_error_and_never_an_empty_list(tp: Tp, root: StorageRoot, make: Make) -> None:
    tp("plugin", "publish", make())
    damage(root.shelf("plugins") / ME / "patch/1.0/content/patch_code.py")
    assert tp.codes("plugin", "files", f"{ME}/patch") == ["E-REG-013"]
    assert tp.codes("plugin", "compare", f"{ME}/patch", "--base", "1.0") == ["E-REG-013"]


def test_a_damaged_record_spoils_no_list(tp: Tp, root: StorageRoot, make: Make) -> None:
    for name in ("bad", "good"):
        tp("plugin", "publish", make(name))
    damage(root.shelf("plugins") / ME / "bad/1.0/record.json")
    said = tp.json("plugin", "ls", code=1)
    assert f"{ME}/good" in [p["id"] for p in said["plugins"]]
    assert [e["code"] for e in said["errors"]] == ["E-REG-012"]


def test_what_a_reference_without_a_version_means(tp: Tp, root: StorageRoot, make: Make) -> None:
    for version in ("1.2", "1.10", "1.9"):
        tp("plugin", "publish", make(version=version))
    offered = lambda: tp.json("plugin", "info", f"{ME}/patch")["offered"]  # noqa: E731
    assert offered() == "1.10"
    tp("plugin", "disable", f"{ME}/patch@1.10")
    assert offered() == "1.9"
    tp("plugin", "recommend", f"{ME}/patch@1.2")
    assert offered() == "1.2"
    tp("plugin", "disable", f"{ME}/patch@1.2")
    assert offered() == "1.9"
    tp("plugin", "recommend", f"{ME}/patch", "--none")
    tp("plugin", "disable", f"{ME}/patch")
    assert offered() == ""
    tp("plugin", "publish", make(version="2.0"))
    assert offered() == ""


def test_a_stale_generation_changes_nothing(tp: Tp, root: StorageRoot, make: Make) -> None:
    tp("plugin", "publish", make())
    assert tp.json("plugin", "disable", f"{ME}/patch", "--generation", "0")["generation"] == 1
    assert tp.codes("plugin", "enable", f"{ME}/patch", "--generation", "0") == ["E-REG-020"]
    assert tp.json("plugin", "info", f"{ME}/patch")["state"] == "disabled"


def test_an_import_is_looked_at_confirmed_with_its_receipt_and_starts_disabled(
    tp: Tp, root: StorageRoot, make: Make, tmp_path: Path
) -> None:
    folder, archive = make(), tmp_path / "p.tgz"
    with tarfile.open(archive, "w:gz") as out:
        out.add(folder, ".")
    shown = tp.json("plugin", "import", archive)
    assert (shown["name"], shown["version"], shown["archive_sha256"]) == ("patch", "1.0", digest_file(archive))
    assert not (root.shelf("plugins") / ME / "patch").exists()
    assert tp.codes("plugin", "import", archive, "--confirm", "x" + shown["receipt"]) == ["E-PLUGIN-070"]
    tp("plugin", "import", archive, "--confirm", shown["receipt"])
    info = tp.json("plugin", "info", f"{ME}/patch")
    assert (info["state"], info["published"]["method"]) == ("disabled", "import")
    assert info["published"]["archive_sha256"] == shown["archive_sha256"]
    tp("plugin", "enable", f"{ME}/patch@1.0")
    assert tp.json("plugin", "info", f"{ME}/patch")["offered"] == "1.0"


def test_other_bytes_than_the_preview_s_are_not_stored(tp: Tp, root: StorageRoot, make: Make, tmp_path: Path) -> None:
    archive = tmp_path / "p.tgz"
    for version in ("1.0", "1.1"):
        with tarfile.open(archive, "w:gz") as out:
            out.add(make(version=version), ".")
        if version == "1.0":
            receipt = tp.json("plugin", "import", archive)["receipt"]
    assert tp.codes("plugin", "import", archive, "--confirm", receipt) == ["E-PLUGIN-073"]
    assert not (root.shelf("plugins") / ME / "patch").exists()


def test_what_cannot_be_written_for_prometheus_loses_no_verdict(
    tp: Tp, root: StorageRoot, make: Make, tmp_path: Path
) -> None:
    tp("plugin", "publish", make())
    nowhere = tmp_path / "missing" / "tp.prom"
    assert tp.json("registry", "audit", "--prom", nowhere, code=1)["verdict"] == "verified"
    damage(root.shelf("plugins") / ME / "patch/1.0/record.json")
    assert tp.json("registry", "audit", "--prom", nowhere, code=2)["verdict"] == "tampered"
    assert str(nowhere.parent) in tp.err


def test_the_command_that_a_preview_prints_can_be_pasted(tp: Tp, root: StorageRoot, make: Make, tmp_path: Path) -> None:
    archive = tmp_path / "it's a \x1b[31m $(name).tar.gz"
    with tarfile.open(archive, "w:gz") as out:
        for path in sorted(make().iterdir()):
            out.add(path, path.name)
    said = tp("plugin", "import", archive)
    assert "\x1b" not in said + tp.err
    plain = archive.rename(tmp_path / "it's $(name).tar.gz")
    words = shlex.split(tp("plugin", "import", plain).splitlines()[-1])
    assert words[:4] == ["tp", "plugin", "import", str(plain)]
    assert words[-2] == "--confirm"


def test_a_package_of_which_nothing_can_be_shown_is_said_to_be_one(tp: Tp, root: StorageRoot, make: Make) -> None:
    tp("plugin", "publish", make())
    version = root.shelf("plugins") / ME / "patch/1.0"
    damage(version / "record.json")
    said = tp("plugin", "info", f"{ME}/patch", code=1)
    assert said.startswith(f"{ME}/patch: its versions cannot be believed\n")
    assert "damaged" in said
    seal = tp("registry", "seal", code=2)
    assert f"registry/plugins/{ME}/patch/1.0/record.json" in seal
    assert str(root.path) not in seal
    version.rename(root.path / "elsewhere")
    assert tp("plugin", "info", f"{ME}/patch") == f"{ME}/patch: no version was published\n"


def test_what_is_no_package_is_not_listed_as_one(tp: Tp, root: StorageRoot) -> None:
    for what in (f"{ME}/", "/x", f"{ME}/a/b", f"{ME}/.switch"):
        assert tp.codes("registry", "ls", what) == ["E-REG-008"]
