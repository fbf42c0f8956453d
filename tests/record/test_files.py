"""Files that appear whole or not at all: every system call fails once, and the process dies at every point."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tuneplane.record import files
from tuneplane.record.files import (
    fsync_dir,
    publish_dir,
    read_bytes,
    read_json,
    replace,
    replace_json,
    write_json_new,
    write_new,
)

CALLS = ("open", "write", "fchmod", "fsync", "close", "link", "rename", "unlink", "stat")
ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EACCES, errno.ESTALE, errno.EINTR)
OLD, NEW = b"old content\n", b"the new content, longer\n"


class Faulty:
    """Stands in for `os`: counts the listed calls, and lets the n-th go wrong by `fault(real, args)`."""

    def __init__(self, at: int, fault: Callable[..., Any]) -> None:
        self._at, self._fault = at, fault
        self.count, self.hit = 0, ""

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in CALLS:
            return real

        def call(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            if self.count != self._at:
                return real(*args, **kwargs)
            self.hit = name
            return self._fault(real, args, kwargs)

        return call


def fails(number: int) -> Callable[..., Any]:
    def fault(real: Any, args: Any, kwargs: Any) -> Any:
        if real is os.close:
            real(*args)  # close() frees the descriptor even when it reports an error
        raise OSError(number, os.strerror(number))

    return fault


def done_but_fails(number: int) -> Callable[..., Any]:
    """The reply is lost: the work was done, the caller sees an error."""

    def fault(real: Any, args: Any, kwargs: Any) -> Any:
        real(*args, **kwargs)
        raise OSError(number, os.strerror(number))

    return fault


def short_write(real: Any, args: Any, kwargs: Any) -> Any:
    return real(args[0], bytes(args[1])[:3]) if real is os.write else real(*args, **kwargs)


def litter(folder: Path) -> list[str]:
    return [n for n in os.listdir(folder) if n.endswith(".tmp")]


def every_fault(monkeypatch: pytest.MonkeyPatch, fault: Callable[..., Any]) -> Iterator[Faulty]:
    """One world a call that the operation makes, until it makes no more."""
    for at in range(1, 40):
        faulty = Faulty(at, fault)
        monkeypatch.setattr(files, "os", faulty)
        yield faulty
        if not faulty.hit:
            return
    raise AssertionError("the operation never ended without a fault")


@pytest.mark.parametrize("number", ERRORS)
@pytest.mark.parametrize("made", [fails, done_but_fails], ids=["fails", "lost-reply"])
def test_write_new_is_whole_or_absent_whatever_call_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, made: Any
) -> None:
    for round_, faulty in enumerate(every_fault(monkeypatch, made(number))):
        folder = tmp_path / str(round_)
        folder.mkdir()
        raised: OSError | None = None
        try:
            write_new(folder / "f", NEW)
        except OSError as exc:
            raised = exc
        assert not isinstance(raised, FileExistsError)
        there = (folder / "f").exists()
        assert there or raised, faulty.hit
        if there:
            assert (folder / "f").read_bytes() == NEW, faulty.hit
            assert (folder / "f").stat().st_mode & 0o777 == 0o644
        if not (made is fails and faulty.hit == "unlink"):
            assert litter(folder) == [] or faulty.hit == "open", faulty.hit


@pytest.mark.parametrize("number", ERRORS)
@pytest.mark.parametrize("made", [fails, done_but_fails], ids=["fails", "lost-reply"])
def test_replace_gives_old_or_new_whatever_call_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, made: Any
) -> None:
    path = tmp_path / "f"
    for faulty in every_fault(monkeypatch, made(number)):
        path.write_bytes(OLD)
        try:
            replace(path, NEW)
            assert path.read_bytes() == NEW
        except OSError:
            # Only the last step, the folder's fsync, comes after the rename.
            assert path.read_bytes() in (
                (OLD, NEW) if faulty.hit in ("fsync", "open", "close", "rename") else (OLD,)
            ), faulty.hit
        for name in litter(tmp_path):
            assert faulty.hit in ("open", "unlink")
            os.unlink(tmp_path / name)


@pytest.mark.parametrize("operation", [write_new, replace])
def test_short_writes_are_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: Any) -> None:
    for round_, _ in enumerate(every_fault(monkeypatch, short_write)):
        operation(tmp_path / str(round_), NEW)
        assert (tmp_path / str(round_)).read_bytes() == NEW


def test_a_rename_that_was_done_but_reported_as_failed_is_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(real: Any, args: Any, kwargs: Any) -> Any:
        value = real(*args, **kwargs)
        if real is os.rename:
            raise OSError(errno.ENOENT, "No such file or directory")
        return value

    (tmp_path / "f").write_bytes(OLD)
    hits = set()
    for faulty in every_fault(monkeypatch, lost):
        replace(tmp_path / "f", NEW)
        hits.add(faulty.hit)
        assert (tmp_path / "f").read_bytes() == NEW
    assert "rename" in hits


def test_a_failed_rename_over_equal_content_is_still_a_failure_without_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    path.write_bytes(NEW)
    seen = []
    for faulty in every_fault(monkeypatch, fails(errno.EIO)):
        try:
            replace(path, NEW)
        except OSError:
            seen.append(faulty.hit)
        if faulty.hit == "rename":
            assert litter(tmp_path) == []
    assert "rename" in seen


# A crash at every point


def in_a_child(work: Callable[[], object]) -> int:
    """Exit code of a forked child that runs `work`; -signal if it was killed."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def dies(*, after: bool) -> Callable[..., Any]:
    def fault(real: Any, args: Any, kwargs: Any) -> Any:
        if after:
            real(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)

    return fault


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("operation", ["write_new", "replace", "no-links"])
def test_a_crash_at_every_point_leaves_old_or_new_and_the_next_write_works(
    tmp_path: Path, after: bool, operation: str
) -> None:
    states = set()
    for at in range(1, 40):
        folder = tmp_path / str(at)
        folder.mkdir()
        path = folder / "f"
        if operation == "replace":
            path.write_bytes(OLD)

        def work(at: int = at, path: Path = path) -> None:
            faulty = Faulty(at, dies(after=after))
            if operation == "no-links":
                faulty.link = no_links  # type: ignore[attr-defined]
            files.os = faulty  # type: ignore[assignment]
            (replace if operation == "replace" else write_new)(path, NEW)

        code = in_a_child(work)
        content = path.read_bytes() if path.exists() else None
        states.add(content)
        allowed = {"write_new": (None, NEW), "replace": (OLD, NEW), "no-links": (None, b"", NEW)}[operation]
        assert content in allowed
        assert len(litter(folder)) <= 1
        replace(path, NEW + b"2")
        assert path.read_bytes() == NEW + b"2"
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert len(states) >= 2
    assert code == 0


def no_links(*args: Any, **kwargs: Any) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")


# Names that are taken


@pytest.mark.parametrize("links", [True, False], ids=["links", "no-links"])
def test_an_existing_name_is_never_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    (tmp_path / "f").write_bytes(OLD)
    (tmp_path / "l").symlink_to("nowhere")
    (tmp_path / "d").mkdir()
    for name in ("f", "l", "d"):
        with pytest.raises(FileExistsError):
            write_new(tmp_path / name, NEW)
    assert (tmp_path / "f").read_bytes() == OLD
    assert not (tmp_path / "nowhere").exists()
    assert litter(tmp_path) == []


@pytest.mark.parametrize("links", [True, False], ids=["links", "no-links"])
def test_of_two_writers_one_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    for round_ in range(10):
        path = tmp_path / str(round_)
        reader, writer = os.pipe()

        def contend(mine: bytes, path: Path = path, reader: int = reader, writer: int = writer) -> None:
            os.close(writer)
            os.read(reader, 1)  # until both are there and the parent lets go
            write_new(path, mine)

        children = []
        for mine in (b"one", b"two"):
            pid = os.fork()
            if pid == 0:
                try:
                    contend(mine)
                    os._exit(0)
                except FileExistsError:
                    os._exit(17)
                finally:
                    os._exit(1)
            children.append(pid)
        os.close(reader)
        os.close(writer)
        codes = sorted(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children)
        assert codes == [0, 17]
        assert path.read_bytes() in (b"one", b"two")


def test_modes_are_exact_under_any_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_new(tmp_path / "a", NEW)
        replace(tmp_path / "b", NEW, mode=0o600)
        write_new(tmp_path / "c", NEW, mode=0o555)
    finally:
        os.umask(before)
    assert [(tmp_path / n).stat().st_mode & 0o777 for n in "abc"] == [0o644, 0o600, 0o555]


# Folders and reading


def test_a_folder_is_published_whole_or_not(tmp_path: Path) -> None:
    (tmp_path / "temp").mkdir()
    (tmp_path / "temp/f").write_text("x")
    publish_dir(tmp_path / "temp", tmp_path / "final")
    assert (tmp_path / "final/f").read_text() == "x"
    for taken in ("final", "empty", "link"):
        (tmp_path / "again").mkdir(exist_ok=True)
        (tmp_path / "empty").mkdir(exist_ok=True)
        if not (tmp_path / "link").is_symlink():
            (tmp_path / "link").symlink_to("nowhere")
        with pytest.raises(FileExistsError):
            publish_dir(tmp_path / "again", tmp_path / taken)
        assert (tmp_path / "again").is_dir()


def test_reading_refuses_links_fifos_and_floods(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 100)
    (tmp_path / "l").symlink_to("f")
    os.mkfifo(tmp_path / "p")
    assert read_bytes(tmp_path / "f", limit=100) == b"x" * 100
    with pytest.raises(ValueError, match="larger than 99"):
        read_bytes(tmp_path / "f", limit=99)
    with pytest.raises(OSError):
        read_bytes(tmp_path / "l")
    assert read_bytes(tmp_path / "p") == b""  # nobody writes; it must not wait


def test_p69_a_stale_handle_is_opened_again_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").write_bytes(NEW)

    def stale_until(good: int) -> Any:
        calls = []
        real = os.open

        def fake(*args: Any, **kwargs: Any) -> int:
            calls.append(1)
            if len(calls) < good:
                raise OSError(errno.ESTALE, "Stale file handle")
            return real(*args, **kwargs)

        return fake

    monkeypatch.setattr(os, "open", stale_until(3))
    assert read_bytes(tmp_path / "f") == NEW
    monkeypatch.undo()
    monkeypatch.setattr(os, "open", stale_until(4))
    with pytest.raises(OSError):
        read_bytes(tmp_path / "f")


def test_json_records(tmp_path: Path) -> None:
    write_json_new(tmp_path / "a", {"b": 1, "a": 2})
    assert (tmp_path / "a").read_text() == '{\n  "a": 2,\n  "b": 1\n}\n'
    replace_json(tmp_path / "a", [])
    assert read_json(tmp_path / "a") == []
    (tmp_path / "a").write_text('{"a":1,"a":2}')
    with pytest.raises(ValueError, match="twice"):
        read_json(tmp_path / "a")


def test_einval_from_a_folders_fsync_is_tolerated_and_eio_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, tolerated in ((errno.EINVAL, True), (errno.EIO, False)):

        def fail(fd: int, number: int = number) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "fsync", fail)
        if tolerated:
            fsync_dir(tmp_path)
        else:
            with pytest.raises(OSError):
                fsync_dir(tmp_path)
