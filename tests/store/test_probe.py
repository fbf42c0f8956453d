"""The probe shows which locks exclude, and is not fooled by ones that do not."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpc.errors import Refusal
from hpc.store import probe as room
from hpc.store.contest import MECHANISMS, contest, judge, overlaps
from hpc.store.probe import NEEDED, probe


@contextmanager
def no_lock(path: str, deadline: float) -> Iterator[None]:
    yield


@contextmanager
def no_such_lock(path: str, deadline: float) -> Iterator[None]:
    raise OSError(errno.ENOLCK, "No locks available")
    yield


@contextmanager
def hangs(path: str, deadline: float) -> Iterator[None]:
    time.sleep(600)
    yield


def test_p61_a_lock_that_does_not_exclude_is_found_out(tmp_path: Path) -> None:
    outcome = contest(no_lock, str(tmp_path / "lock"), rounds=30)
    assert outcome.verdict == "unsound"
    assert "both processes were inside at once" in outcome.detail


def test_p61_a_lock_that_is_not_implemented_is_named(tmp_path: Path) -> None:
    outcome = contest(no_such_lock, str(tmp_path / "lock"))
    assert (outcome.verdict, outcome.detail) == ("unsupported", "ENOLCK (No locks available)")


def test_p61_a_lock_that_hangs_is_stopped(tmp_path: Path) -> None:
    outcome = contest(hangs, str(tmp_path / "lock"), limit_s=0.1)
    assert outcome.verdict == "stuck"
    assert "0 and 0 of 40" in outcome.detail


def test_a_good_file_system_has_all_that_is_needed(tmp_path: Path) -> None:
    found = probe(tmp_path, rounds=10)
    assert found.missing == []
    assert found.sound_locks == list(MECHANISMS)
    assert found.skew_s == 0.0
    assert os.listdir(tmp_path) == []
    assert found.as_json()["checks"]["hard_link"] == {"verdict": "sound", "detail": "two names, link count 2"}


def test_p61_the_probe_never_names_another_lock_as_good_enough(tmp_path: Path) -> None:
    found = probe(tmp_path, rounds=60, mechanisms={**MECHANISMS, "strict_soft": no_lock})
    assert found.sound_locks == ["posix", "flock"]
    assert found.missing == ["strict_soft"]


def test_missing_hard_links_and_lost_modes_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    real = os.chmod
    monkeypatch.setattr(os, "link", no_links)
    monkeypatch.setattr(os, "chmod", lambda path, mode: real(path, mode & 0o777))
    found = probe(tmp_path, rounds=1, mechanisms={"strict_soft": no_lock})
    assert found.outcomes["hard_link"].verdict == "unsupported"
    assert found.outcomes["modes"].detail == "mode 3775 became 0775"
    assert {"hard_link", "modes"} <= set(found.missing) <= set(NEEDED)


def test_a_fsync_that_fails_with_eio_is_unsound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(room, "fsync_dir", broken)
    found = probe(tmp_path, rounds=1, mechanisms={"strict_soft": no_lock})
    assert found.outcomes["fsync"].verdict == "unsound"


def test_a_folder_that_cannot_be_written_is_a_refusal(tmp_path: Path) -> None:
    with pytest.raises(Refusal) as caught:
        probe(tmp_path / "absent")
    assert caught.value.code == "E-STORE-025"


def test_what_a_killed_probe_left_goes_with_a_later_one(tmp_path: Path) -> None:
    for name, age in ((".tp-probe-old", 3600), (".tp-probe-running", 5), ("other", 3600)):
        (tmp_path / name / "in").mkdir(parents=True)
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    probe(tmp_path, rounds=1, mechanisms={"strict_soft": no_lock})
    assert sorted(os.listdir(tmp_path)) == [".tp-probe-running", "other"]


def test_overlap_rule() -> None:
    assert overlaps([(0, 10)], [(10, 20)]) == 0
    assert overlaps([(0, 10)], [(9, 20)]) == 1
    assert judge([[(0, 1)], [(2, 3)]], 1).verdict == "sound"
    assert judge([[(0, 1)], []], 1).verdict == "stuck"
    assert judge([[(0, 1)], [(-1, errno.EIO)]], 1).verdict == "unsound"
