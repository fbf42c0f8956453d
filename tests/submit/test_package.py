"""The package is there whole or not at all: a full disk, a kill at any point, a file that vanishes, two writers of one run."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tuneplane.contract.layout import RunPaths, StorageRoot
from tuneplane.launch.verify import listed_files, package_differences
from tuneplane.record.files import read_json

from hpc.errors import Refusal
from hpc.submit.kernelzip import PARTS, archive, find_kernels, publish_kernels
from hpc.submit.package import Packed, write_package

NOW = "2026-01-01T00:00:00.000000Z"


@dataclass(frozen=True)
class File:
    source: Path
    path: str


def files(tmp_path: Path, count: int = 3, size: int = 100) -> list[File]:
    folder = tmp_path / "src"
    folder.mkdir(exist_ok=True)
    out = []
    for i in range(count):
        (folder / f"{i}.py").write_bytes(b"x" * size)
        out.append(File(folder / f"{i}.py", f"experiments/e/{i}.py"))
    return out


def run_in(base: Path) -> RunPaths:
    run = StorageRoot(base).run("alice", "e", "run-00aa")
    run.root.parent.mkdir(parents=True, exist_ok=True)
    return run


def write(run: RunPaths, items: list[File], limit: int = 1 << 30) -> Packed:
    return write_package(
        run, items, {"jobspec.json": {"a": 1}, "launch.json": {}, "recipe.json": {}}, max_bytes=limit, created_at=NOW
    )


def whole(run: RunPaths) -> bool:
    """True for a complete package, False for none; anything else fails."""
    if not run.root.exists():
        return False
    assert package_differences(run.work, listed_files(read_json(run.package))) == []
    assert {p.name for p in run.root.iterdir()} == {"work", "batch", "submissions", "attempts", "checkpoints", "events"}
    return True


def test_every_file_is_listed_and_read_only(tmp_path: Path) -> None:
    items = files(tmp_path)
    items[0].source.chmod(0o755)
    packed = write(run_in(tmp_path), items)
    assert whole(packed.run)
    assert packed.files == 6
    modes = {p.relative_to(packed.run.work).as_posix(): p.stat().st_mode & 0o777 for p in packed.run.work.rglob("*")}
    assert modes["experiments/e/0.py"] == 0o555
    assert modes["experiments/e/1.py"] == 0o444
    assert modes["experiments/e"] == 0o555


def test_scripts_get_unix_line_ends(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_bytes(b"a\r\nb\r\n")
    (tmp_path / "x.py").write_bytes(b"a\r\n")
    run = write(
        run_in(tmp_path), [File(tmp_path / "train.sh", "experiments/e/train.sh"), File(tmp_path / "x.py", "x.py")]
    ).run
    assert (run.work / "experiments/e/train.sh").read_bytes() == b"a\nb\n"
    assert (run.work / "x.py").read_bytes() == b"a\r\n"


def test_the_ceiling_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    with pytest.raises(Refusal) as caught:
        write(run, files(tmp_path, 3, 600), limit=1024)
    assert (caught.value.code, caught.value.field) == ("E-SUBMIT-041", "experiments/e/1.py")
    assert list(run.root.parent.iterdir()) == []


def test_a_huge_file_is_refused_without_being_read_and_a_pipe_without_waiting(tmp_path: Path) -> None:
    run, items = run_in(tmp_path), files(tmp_path)
    os.truncate(items[1].source, 1 << 42)
    with pytest.raises(Refusal) as refused:
        write(run, items, limit=1 << 20)
    assert (refused.value.code, refused.value.field) == ("E-SUBMIT-041", items[1].path)
    items[1].source.unlink()
    os.mkfifo(items[1].source)
    with pytest.raises(Refusal) as refused:
        write(run, items)
    assert (refused.value.code, "not a regular file" in refused.value.message) == ("E-SUBMIT-043", True)
    assert list(run.root.parent.iterdir()) == []


def test_a_file_that_vanished_or_became_a_link_leaves_nothing(tmp_path: Path) -> None:
    items, run = files(tmp_path), run_in(tmp_path)
    items[1].source.unlink()
    with pytest.raises(Refusal) as caught:
        write(run, items)
    assert caught.value.code == "E-SUBMIT-043"
    items[1].source.symlink_to("/etc/passwd")
    with pytest.raises(Refusal):
        write(run, items)
    assert list(run.root.parent.iterdir()) == []


def test_two_writers_of_one_run_one_wins(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    write(run, files(tmp_path))
    with pytest.raises(Refusal) as caught:
        write(run, files(tmp_path))
    assert caught.value.code == "E-SUBMIT-042"
    assert whole(run)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 256 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], check=True)
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.mark.two_users
def test_a_full_disk_is_try_later_and_leaves_nothing(small_disk: Path, tmp_path: Path) -> None:
    run = run_in(small_disk)
    with pytest.raises(Refusal) as caught:
        write(run, files(tmp_path, 40, 20_000))
    assert (caught.value.code, caught.value.exit) == ("E-SUBMIT-040", 75)
    assert list(run.root.parent.iterdir()) == []
    assert write(run, files(tmp_path, 3, 1000)).files == 6


def test_a_kill_at_any_point_leaves_all_or_nothing(tmp_path: Path) -> None:
    items = files(tmp_path, 60, 2000)
    began = time.perf_counter()
    write(run_in(tmp_path / "warm"), items)
    span = time.perf_counter() - began
    outcomes = set()
    for i in range(24):
        run = run_in(tmp_path / str(i))
        child = os.fork()
        if child == 0:
            try:
                write(run, items)
            finally:
                os._exit(0)
        time.sleep(span * 1.5 * i / 24)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        outcomes.add(whole(run))
        assert all(p.name in ("run-00aa", ".run-00aa.tmp") for p in run.root.parent.iterdir())
    assert False in outcomes


class TestKernel:
    def test_the_archive_is_a_function_of_the_sources(self) -> None:
        for part in PARTS:
            assert archive(part) == archive(part)

    def test_the_verifier_needs_nothing_but_the_standard_library(self, tmp_path: Path) -> None:
        path = tmp_path / "v.zip"
        path.write_bytes(archive("verifier"))
        program = (
            f"import sys; sys.path.insert(0, {str(path)!r}); import tuneplane.launch.main, tuneplane.launch.node, tuneplane.launch.finish\n"
            "foreign = {m.split('.')[0] for m in sys.modules} - set(sys.stdlib_module_names) - {'tuneplane', '__main__'}\n"
            "print(sorted(foreign))"
        )
        done = subprocess.run(
            ["/usr/bin/python3", "-I", "-S", "-c", program], capture_output=True, text=True, check=True
        )
        assert done.stdout == "[]\n"

    def test_a_changed_archive_is_refused(self, tmp_path: Path) -> None:
        root = StorageRoot(tmp_path)
        root.kernels.mkdir(parents=True)
        with pytest.raises(Refusal) as caught:
            find_kernels(root)
        assert caught.value.code == "E-SUBMIT-001"
        kernel = publish_kernels(root)
        assert publish_kernels(root) == kernel
        kernel.verifier.write_bytes(b"other")
        with pytest.raises(Refusal) as caught:
            find_kernels(root)
        assert caught.value.code == "E-SUBMIT-002"
