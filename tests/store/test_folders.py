"""Folders get exactly the mode, owner and group that are meant, and nothing is reached through a link."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc.errors import Refusal
from hpc.store import folders as room
from hpc.store.folders import folder, make_folder, make_private, open_record, read_record


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=["umask-000", "umask-022", "umask-077"])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.parametrize("wanted", [0o3775, 0o2755, 0o755, 0o750, 0o700])
def test_mode_is_exact_whatever_the_umask(tmp_path: Path, umask: int, wanted: int) -> None:
    assert make_folder(tmp_path / "new", wanted) is True
    assert mode(tmp_path / "new") == wanted


def test_running_again_mends_a_mode_and_keeps_the_content(tmp_path: Path) -> None:
    make_folder(tmp_path / "shelf", 0o2755)
    (tmp_path / "shelf" / "kept").write_text("x")
    os.chmod(tmp_path / "shelf", 0o777)
    assert make_folder(tmp_path / "shelf", 0o2755) is False
    assert mode(tmp_path / "shelf") == 0o2755
    assert (tmp_path / "shelf" / "kept").read_text() == "x"


def test_private_folder_is_0700_below_a_setgid_parent(tmp_path: Path) -> None:
    make_folder(tmp_path / "state", 0o3775)
    make_private(tmp_path / "state" / "alice")
    assert mode(tmp_path / "state" / "alice") == 0o700


def test_a_link_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(Refusal) as caught:
        make_folder(tmp_path / "link", 0o755)
    assert caught.value.code == "E-STORE-010"
    assert mode(tmp_path / "real") != 0o000


def test_a_link_between_anchor_and_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "registry").symlink_to("elsewhere")
    with pytest.raises(Refusal) as caught:
        make_folder(tmp_path / "registry" / "alice", 0o755, anchor=tmp_path)
    assert caught.value.code == "E-STORE-010"
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("mine")
    with pytest.raises(Refusal) as caught:
        make_folder(tmp_path / "runs", 0o755)
    assert caught.value.code == "E-STORE-010"
    assert (tmp_path / "runs").read_text() == "mine"


def test_a_folder_of_another_owner_is_not_taken_over(tmp_path: Path) -> None:
    make_folder(tmp_path / "alice", 0o755)
    with pytest.raises(Refusal) as caught:
        make_folder(tmp_path / "alice", 0o700, uid=os.geteuid() + 1)
    assert caught.value.code == "E-STORE-012"
    assert mode(tmp_path / "alice") == 0o755


def test_missing_parent_and_full_disk_have_codes_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refusal) as missing:
        make_folder(tmp_path / "no" / "such", 0o755)
    assert missing.value.code == "E-STORE-025"

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EDQUOT, "quota")

    monkeypatch.setattr(os, "mkdir", full)
    with pytest.raises(Refusal) as refused:
        make_folder(tmp_path / "new", 0o755)
    assert refused.value.code == "E-STORE-020"


def test_a_mode_that_does_not_stick_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fchmod
    monkeypatch.setattr(os, "fchmod", lambda fd, wanted: real(fd, wanted & 0o777))
    with pytest.raises(Refusal) as caught:
        make_folder(tmp_path / "runs", 0o3775)
    assert caught.value.code == "E-STORE-013"
    assert caught.value.found == "0775"


def test_record_is_read_only_if_it_has_one_name_and_is_no_link(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_bytes(b"{}")
    assert read_record(tmp_path / "record.json", anchor=tmp_path) == b"{}"
    (tmp_path / "link.json").symlink_to("record.json")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link.json", "pipe"):
        with pytest.raises(Refusal) as caught:
            read_record(tmp_path / name)
        assert caught.value.code == "E-STORE-011", name
    os.link(tmp_path / "record.json", tmp_path / "second")
    with pytest.raises(Refusal) as twice:
        read_record(tmp_path / "record.json")
    assert twice.value.code == "E-STORE-011"
    assert "2 names" in twice.value.message


def test_record_has_a_limit(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"x" * 11)
    with pytest.raises(Refusal, match="larger than 10 bytes"):
        read_record(tmp_path / "big", limit=10)


def test_open_descriptors_are_closed(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with folder(tmp_path) as fd, pytest.raises(Refusal):
        open_record("absent", dir_fd=fd)
    make_folder(tmp_path / "a", 0o755)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_folder_that_cannot_be_made_durable_is_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(room, "fsync_dir", broken)
    with pytest.raises(Refusal) as caught:
        make_folder(tmp_path / "new", 0o755)
    assert caught.value.code == "E-STORE-026"
