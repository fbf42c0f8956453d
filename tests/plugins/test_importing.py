"""Import by receipt: only the bytes that this user has looked at, only for a while, and checked again when they are stored."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tuneplane.contract.layout import StorageRoot

from hpc.errors import Refusal, Refusals
from hpc.plugins import importing as room
from hpc.plugins.importing import preview, receipt_key, redeem, scratch_folder
from hpc.plugins.validate import validate
from hpc.store.packing import pack
from tests.plugins.making import algorithm, cleaner

KEY = bytes(range(32))
NOW = 1_800_000_000.5
MINE = {"secret": KEY, "uid": 1000}


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    (tmp_path / "scratch").mkdir(mode=0o700)
    return tmp_path / "scratch"


def archive_of(folder: Path, name: str = "x.tgz") -> Path:
    target = folder.parent / name
    target.write_bytes(pack(folder, [str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()]))
    return target


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return archive_of(algorithm(tmp_path / "pkg", manifest="requires: {core: '>=0.3,<1'}\n"))


def code(call: object, *args: object, **kwargs: object) -> str:
    with pytest.raises((Refusal, Refusals)) as caught, call(*args, **kwargs):  # type: ignore[operator]
        raise AssertionError("it was taken")
    return caught.value.code if isinstance(caught.value, Refusal) else caught.value.items[0].code


def test_a_preview_shows_who_the_package_is_and_keeps_nothing(archive: Path, scratch: Path, tmp_path: Path) -> None:
    shown = preview(archive, scratch=scratch, now=NOW, **MINE).as_json()
    report = validate(tmp_path / "pkg")
    assert (shown["name"], shown["version"], shown["capability"]) == ("x", "1.0.0", "algorithm")
    assert shown["requires"]["core"] == ">=0.3,<1"
    assert (shown["digest"], shown["digest_v2"]) == (report.digest, report.digest_v2)
    assert shown["archive_sha256"].startswith("sha256:")
    assert (shown["files"], shown["archive_bytes"]) == (2, archive.stat().st_size)
    assert shown["expires_at"] == 1_800_000_900
    assert list(scratch.iterdir()) == []


def test_the_receipt_yields_the_same_package_again(archive: Path, scratch: Path) -> None:
    shown = preview(archive, scratch=scratch, now=NOW, **MINE)
    with redeem(archive, shown.receipt + "\n", scratch=scratch, now=NOW + 899, **MINE) as found:
        assert (found.report.digest, found.archive_digest) == (shown.report.digest, shown.archive_digest)
        assert validate(found.folder).digest == shown.report.digest
    assert list(scratch.iterdir()) == []


def test_a_copy_of_the_archive_elsewhere_is_the_same_archive(archive: Path, scratch: Path, tmp_path: Path) -> None:
    receipt = preview(archive, scratch=scratch, now=NOW, **MINE).receipt
    (tmp_path / "copy.tgz").write_bytes(archive.read_bytes())
    with redeem(tmp_path / "copy.tgz", receipt, scratch=scratch, now=NOW, **MINE) as found:
        assert found.report.publishable is True


def test_other_bytes_another_user_another_key_and_another_time_are_refused(
    archive: Path, scratch: Path, tmp_path: Path
) -> None:
    receipt = preview(archive, scratch=scratch, now=NOW, **MINE).receipt

    def refused(path: Path = archive, text: str = receipt, now: float = NOW, **changes: object) -> str:
        return code(redeem, path, text, scratch=scratch, now=now, **MINE | changes)

    same_files = tmp_path / "again.tgz"
    same_files.write_bytes(archive.read_bytes()[:3] + b"\x01" + archive.read_bytes()[4:])
    assert refused(same_files) == "E-PLUGIN-073"
    other = archive_of(algorithm(tmp_path / "other", {"more.txt": "x"}), "y.tgz")
    assert refused(other) == "E-PLUGIN-073"
    assert refused(uid=1001) == "E-PLUGIN-072"
    assert refused(secret=bytes(32)) == "E-PLUGIN-070"
    assert refused(now=NOW + 901) == "E-PLUGIN-071"
    assert refused(now=NOW - 3600) == "E-PLUGIN-071"
    for text in (
        "",
        "-",
        receipt[:-1],
        receipt.upper(),
        receipt + "0",
        "é" + receipt,
        "a" * 5000,
        receipt.replace("-", "."),
    ):
        assert refused(text=text) == "E-PLUGIN-070"
    assert list(scratch.iterdir()) == []


def test_a_forged_claim_is_refused(archive: Path, scratch: Path) -> None:
    receipt = preview(archive, scratch=scratch, now=NOW, **MINE).receipt
    issued, expires, uid, short, mac = receipt.split("-")
    for forged in (
        [issued, f"{int(expires) + 10**9}", uid, short, mac],
        [issued, expires, "1001", short, mac],
        [issued, expires, uid, short, mac[::-1]],
    ):
        who = MINE | {"uid": int(forged[2])}
        assert code(redeem, archive, "-".join(forged), scratch=scratch, now=NOW, **who) == "E-PLUGIN-070"


def test_a_package_that_changed_its_meaning_between_preview_and_import_is_refused(
    archive: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rules became stricter, or the unpacking differs: the second look decides."""
    receipt = preview(archive, scratch=scratch, now=NOW, **MINE).receipt
    real = room.validate

    def otherwise(folder: Path) -> object:
        (folder / "patch.py").write_text("def install(params, **ctx):\n    return 1\n")
        return real(folder)

    monkeypatch.setattr(room, "validate", otherwise)
    assert code(redeem, archive, receipt, scratch=scratch, now=NOW, **MINE) == "E-PLUGIN-070"


def test_what_could_not_be_published_gets_no_receipt(tmp_path: Path, scratch: Path) -> None:
    bad = archive_of(algorithm(tmp_path / "pkg", {"torch.py": ""}))
    with pytest.raises(Refusals) as caught:
        preview(bad, scratch=scratch, now=NOW, **MINE)
    assert [e.code for e in caught.value.items] == ["E-PLUGIN-022"]
    assert list(scratch.iterdir()) == []


def test_a_manifest_below_the_root_is_answered_with_the_command(tmp_path: Path, scratch: Path) -> None:
    folder = algorithm(tmp_path / "top" / "pkg")
    with pytest.raises(Refusals) as caught:
        preview(archive_of(folder.parent), scratch=scratch, now=NOW, **MINE)
    assert caught.value.items[0].code == "E-PLUGIN-001"
    assert "tar czf PACKAGE.tgz -C pkg ." in caught.value.items[0].hint


def test_a_wheel_provider_shows_what_it_asks_for(tmp_path: Path, scratch: Path) -> None:
    shown = preview(archive_of(cleaner(tmp_path / "pkg")), scratch=scratch, now=NOW, **MINE).as_json()
    assert shown["wheel"]["entry_point"] == "my_company_cleaner:transform"


@pytest.fixture
def root(tmp_path: Path) -> StorageRoot:
    found = StorageRoot(tmp_path / "root")
    found.user_state("me").mkdir(parents=True, mode=0o700)
    return found


def test_the_key_is_private_made_once_and_differs_between_roots(root: StorageRoot, tmp_path: Path) -> None:
    key = receipt_key(root, "me")
    assert (len(key), receipt_key(root, "me")) == (32, key)
    path = root.user_state("me") / room.KEY_NAME
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in path.parent.iterdir()] == [room.KEY_NAME]
    other = StorageRoot(tmp_path / "other")
    other.user_state("me").mkdir(parents=True)
    assert receipt_key(other, "me") != key


@pytest.mark.parametrize("damage", ["short", "text", "open", "link"])
def test_a_damaged_key_is_refused_and_never_replaced(root: StorageRoot, damage: str) -> None:
    receipt_key(root, "me")
    path = root.user_state("me") / room.KEY_NAME
    if damage == "open":
        path.chmod(0o644)
    elif damage == "link":
        path.rename(path.with_name("real"))
        path.symlink_to("real")
    else:
        path.write_text("ab" if damage == "short" else "not hexadecimal")
    with pytest.raises(Refusal) as caught:
        receipt_key(root, "me")
    assert caught.value.code == ("E-STORE-011" if damage == "link" else "E-PLUGIN-074")


def test_the_scratch_folder_is_private(root: StorageRoot) -> None:
    before = os.umask(0)
    try:
        folder = scratch_folder(root, "me")
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@given(st.text(alphabet="0123456789abcdef-٣ \n", max_size=60))
def test_any_text_is_no_receipt(text: str) -> None:
    assert code(redeem, "no such archive", text, scratch=Path("nowhere"), now=NOW, **MINE) == "E-PLUGIN-070"
